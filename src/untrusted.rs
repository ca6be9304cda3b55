//! Untrusted input: files named by the user or by others, and text that ends up on a terminal.
//!
//! ```text
//! path ─ file ─▶ bytes of a regular file, at most as many as its kind needs
//! text ─ text ─▶ the same text, with nothing in it that a terminal obeys
//! ```

pub mod file;
pub mod text;
