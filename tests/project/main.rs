//! The project as a whole: layers, documents, commands, the blocks of the book, damaged files, the short campaign.

mod book;
mod campaign;
mod commands;
mod documents;
#[path = "../helper/mod.rs"]
mod helper;
mod layers;
mod mutate;
