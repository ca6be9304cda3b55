//! Untrusted input: files named by the user or by others, text that ends up on a terminal, sockets, and programs that
//! others wrote.
//!
//! ```text
//! path ─ file ─▶ bytes of a regular file, up to the limit of its kind
//! text ─ text ─▶ the same text, without anything a terminal would interpret
//! output ─ escapes ─▶ its text, without colours, hyperlinks and cursor moves
//! command line ─ words ─▶ its words, as a shell splits them, and where they end
//! pattern ─ glob ─▶ the paths that match, within a bounded search
//! socket ─ peer ─▶ a listener of this user or of root, or a refusal
//! host and port ─ port ─▶ whether the ranks of a training can meet there, or what is in the way
//! listener ─ accept ─▶ the next connection, also after too many open files
//! SQLite file ─ database ─▶ a connection whose schema runs no code
//! program ─ child ─▶ its exit, or none after a limit
//! work ─ thread ─▶ a thread of its own, or this one where the system refuses another
//! bytes ─ checksum ─▶ proof that a record is what its writer wrote
//! ```

pub mod accept;
pub mod checksum;
pub mod child;
pub mod database;
pub mod escapes;
pub mod file;
pub mod glob;
pub mod peer;
pub mod poll;
pub mod port;
pub mod text;
pub mod thread;
pub mod words;
