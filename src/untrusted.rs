//! Input from outside: files that the user or somebody else names, and text that ends up on a terminal.
//!
//! ```text
//! path ─ file ─▶ bytes of a regular file, at most as many as its kind needs
//! text ─ text ─▶ the same text, with nothing in it that a terminal obeys
//! ```

pub mod file;
pub mod text;
