//! The project as a whole: layers, documents, commands, the blocks of the book, damaged files.

mod book;
mod commands;
mod documents;
#[path = "../helper/mod.rs"]
mod helper;
mod layers;
mod mutate;
mod schemas;
