//! W&B's offline files: LevelDB's log format with zlib's CRC-32, and protocol buffers inside.
//!
//! ```text
//! file    ":W&B" 0xBEE1 version, then blocks of 32 KiB (the first includes these 7 bytes)
//! block   records: u32 CRC of type and bytes, u16 length, u8 type (1 whole, 2 first, 3 middle, 4 last); zeros at its end
//! Record  2 History      History  1 repeated Item   2 Step { 1 int64 }      Item  1 key   2 nested_key   16 value as JSON
//! ```

use super::Reading;
use super::file::Taken;
use super::jsonl::special;
use super::protobuf::{Content, Fields};
use super::record::Record;
use crate::untrusted::checksum::CRC32;

const BLOCK: u64 = 32 << 10;
const HEADER: usize = 7;
/// The first bytes of every file, before its version.
pub const MAGIC: [u8; 6] = *b":W&B\xe1\xbe";
/// Maximum length of a record that is read; longer ones hold tables and text.
const MAX_RECORD: usize = 1 << 20;
const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const LAST: u8 = 4;

/// The place within the records of a file.
#[derive(Debug, Default)]
pub struct Wandb {
    /// Bytes read so far.
    at: u64,
    /// The parts of a record so far; none between records and within a record that is too long.
    parts: Option<Vec<u8>>,
}

impl Wandb {
    /// Reads whole records.
    pub fn take(&mut self, bytes: &[u8], out: &mut dyn FnMut(Reading)) -> Taken {
        let mut rest = bytes;
        loop {
            let consumed = bytes.len() - rest.len();
            let room = (BLOCK - self.at % BLOCK) as usize;
            let size = if self.at == 0 {
                let Some(header) = rest.get(..HEADER) else { return Taken::good(consumed) };
                if header[..MAGIC.len()] != MAGIC {
                    return Taken::damaged(consumed);
                }
                HEADER
            } else if room < HEADER {
                if rest.len() < room {
                    return Taken::good(consumed);
                }
                room
            } else {
                let Some((header, after)) = rest.split_first_chunk::<HEADER>() else { return Taken::good(consumed) };
                let [c0, c1, c2, c3, l0, l1, kind] = *header;
                let length = usize::from(u16::from_le_bytes([l0, l1]));
                if HEADER + length > room {
                    return Taken::damaged(consumed);
                }
                let Some(part) = after.get(..length) else { return Taken::good(consumed) };
                if CRC32.of(&[&[kind], part]) != u32::from_le_bytes([c0, c1, c2, c3]) {
                    return Taken::damaged(consumed);
                }
                self.take_part(kind, part, out);
                HEADER + length
            };
            self.at += size as u64;
            rest = &rest[size..];
        }
    }

    fn take_part(&mut self, kind: u8, part: &[u8], out: &mut dyn FnMut(Reading)) {
        if kind == WHOLE || kind == FIRST {
            self.parts = Some(Vec::new());
        }
        let Some(parts) = &mut self.parts else { return };
        if parts.len() + part.len() > MAX_RECORD {
            self.parts = None;
            return;
        }
        parts.extend_from_slice(part);
        if kind == WHOLE || kind == LAST {
            let record = self.parts.take().unwrap_or_default();
            let history = Fields(&record).find_map(|field| match field {
                (2, Content::Bytes(history)) => Some(history),
                _ => None,
            });
            if let Some(reading) = history.and_then(read_history) {
                out(reading);
            }
        }
    }
}

fn read_history(bytes: &[u8]) -> Option<Reading> {
    let mut record = Record::default();
    for field in Fields(bytes) {
        match field {
            (1, Content::Bytes(item)) => {
                if let Some((key, value)) = read_item(item) {
                    record.add(&key, value);
                }
            }
            (2, Content::Bytes(step)) => {
                if let Some((1, Content::Varint(step))) = Fields(step).next() {
                    record.add("_step", step as f64);
                }
            }
            _ => {}
        }
    }
    record.finish()
}

fn read_item(bytes: &[u8]) -> Option<(String, f64)> {
    let (mut keys, mut value) = (Vec::new(), None);
    for field in Fields(bytes) {
        match field {
            (1 | 2, Content::Bytes(key)) => keys.push(std::str::from_utf8(key).ok()?),
            (16, Content::Bytes(json)) => value = std::str::from_utf8(json).ok(),
            _ => {}
        }
    }
    let text = value?.trim();
    let number = special(text.trim_matches('"')).or_else(|| serde_json::from_str(text).ok())?;
    Some((keys.join("/"), number))
}
