//! Untrusted input: files named by the user or by others, and text that ends up on a terminal.
//!
//! ```text
//! path ─ file ─▶ bytes of a regular file, up to the limit of its kind
//! text ─ text ─▶ the same text, without anything a terminal would interpret
//! ```

pub mod file;
pub mod text;
