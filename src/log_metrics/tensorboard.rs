//! TensorBoard event files: TFRecords (length, masked CRC of it, bytes, masked CRC of them) of `Event` messages.
//!
//! ```text
//! Event   2 int64 step   5 Summary          Value   1 string tag   2 float simple_value   8 Tensor
//! Summary 1 repeated Value                  Tensor  1 type   4 content   5 float_val   6 double_val
//! ```

use super::Reading;
use super::file::Taken;
use super::protobuf::{Content, Fields};
use super::record::Record;
use crate::untrusted::checksum::tfrecord;

/// Maximum length of a record that is read; pictures and graphs are longer and are skipped.
const MAX_RECORD: u64 = 1 << 20;
const HEADER: usize = 12;
const CHECKSUM: usize = 4;
const FLOAT: u64 = 1;
const DOUBLE: u64 = 2;

/// The place within the records of a file.
#[derive(Debug, Default)]
pub struct Events {
    /// Bytes of a long record that are still to be skipped.
    skip: u64,
}

impl Events {
    /// Reads whole records.
    pub fn take(&mut self, bytes: &[u8], out: &mut dyn FnMut(Reading)) -> Taken {
        let mut rest = bytes;
        loop {
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rest.len());
            self.skip -= skipped as u64;
            rest = &rest[skipped..];
            let consumed = bytes.len() - rest.len();
            let Some((header, body)) = rest.split_first_chunk::<HEADER>() else { return Taken::good(consumed) };
            let Some(length) = checked_length(header) else { return Taken::damaged(consumed) };
            if length > MAX_RECORD {
                self.skip = length.saturating_add(CHECKSUM as u64);
                rest = body;
                continue;
            }
            let Some((record, after)) = body.split_at_checked(length as usize) else { return Taken::good(consumed) };
            let Some((checksum, after)) = after.split_first_chunk() else { return Taken::good(consumed) };
            if tfrecord(record) == u32::from_le_bytes(*checksum)
                && let Some(reading) = read_event(record)
            {
                out(reading);
            }
            rest = after;
        }
    }
}

/// Reports whether a file begins like one of events.
pub fn is_event_file(bytes: &[u8]) -> bool {
    bytes.first_chunk::<HEADER>().is_some_and(|header| checked_length(header).is_some())
}

fn checked_length(header: &[u8; HEADER]) -> Option<u64> {
    let (length, checksum) = header.split_first_chunk::<8>()?;
    let checksum: [u8; CHECKSUM] = checksum.try_into().ok()?;
    (tfrecord(length) == u32::from_le_bytes(checksum)).then(|| u64::from_le_bytes(*length))
}

fn read_event(bytes: &[u8]) -> Option<Reading> {
    let (mut step, mut summary) = (0, None);
    for field in Fields(bytes) {
        match field {
            (2, Content::Varint(value)) => step = value,
            (5, Content::Bytes(bytes)) => summary = Some(bytes),
            _ => {}
        }
    }
    // A negative step is a 64-bit number of two's complement.
    let mut record = Record::of_step(i64::try_from(step).is_ok().then_some(step));
    for field in Fields(summary?) {
        if let (1, Content::Bytes(value)) = field
            && let Some((tag, value)) = read_value(value)
        {
            record.add(tag, value);
        }
    }
    record.finish()
}

fn read_value(bytes: &[u8]) -> Option<(&str, f64)> {
    let (mut tag, mut number) = (None, None);
    for field in Fields(bytes) {
        match field {
            (1, Content::Bytes(bytes)) => tag = std::str::from_utf8(bytes).ok(),
            (2, Content::Fixed32(bytes)) => number = Some(f64::from(f32::from_le_bytes(bytes))),
            (8, Content::Bytes(tensor)) => number = read_tensor(tensor),
            _ => {}
        }
    }
    Some((tag?, number?))
}

/// Reads a tensor of one number, which is how TensorFlow 2 and Keras write scalars.
fn read_tensor(bytes: &[u8]) -> Option<f64> {
    let (mut kind, mut content): (u64, &[u8]) = (0, &[]);
    let mut single = None;
    for field in Fields(bytes) {
        match field {
            (1, Content::Varint(value)) => kind = value,
            (4..=6, Content::Bytes(bytes)) => content = bytes,
            (5, Content::Fixed32(bytes)) => single = Some(f64::from(f32::from_le_bytes(bytes))),
            (6, Content::Fixed64(bytes)) => single = Some(f64::from_le_bytes(bytes)),
            _ => {}
        }
    }
    let whole = match kind {
        FLOAT => content.try_into().ok().map(|bytes| f64::from(f32::from_le_bytes(bytes))),
        DOUBLE => content.try_into().ok().map(f64::from_le_bytes),
        _ => return None,
    };
    whole.or(single)
}

#[cfg(test)]
mod tests {
    use super::{Events, MAX_RECORD, is_event_file};
    use crate::log_metrics::Reading;
    use crate::untrusted::checksum::tfrecord;

    fn framed(record: &[u8]) -> Vec<u8> {
        let length = (record.len() as u64).to_le_bytes();
        let parts = [&length[..], &tfrecord(&length).to_le_bytes(), record, &tfrecord(record).to_le_bytes()];
        parts.concat()
    }

    /// An event of step 3 with `a` = 1.
    fn event() -> Vec<u8> {
        framed(&[0x10, 3, 0x2a, 10, 0x0a, 8, 0x0a, 1, b'a', 0x15, 0, 0, 0x80, 0x3f])
    }

    fn read(bytes: &[u8]) -> (usize, bool, Vec<Reading>) {
        let mut readings = Vec::new();
        let taken = Events::default().take(bytes, &mut |reading| readings.push(reading));
        (taken.consumed, taken.is_damaged, readings)
    }

    #[test]
    fn a_torn_end_waits_and_damage_is_noticed() {
        let one = event();
        let both = [one.clone(), one.clone()].concat();
        assert!(is_event_file(&one));
        for cut in one.len()..both.len() {
            let (consumed, damaged, readings) = read(&both[..cut]);
            assert_eq!((consumed, damaged, readings.len()), (one.len(), false, 1), "{cut}");
        }
        assert_eq!(read(&both).2.len(), 2);
        for place in 0..one.len() {
            let mut damaged = both.clone();
            damaged[place] ^= 0x10;
            let (_, is_damaged, readings) = read(&damaged);
            // A damaged length ends the reading; a damaged record is left out.
            assert_eq!((is_damaged, readings.len()), if place < 12 { (true, 0) } else { (false, 1) }, "byte {place}");
        }
    }

    #[test]
    fn a_long_record_is_skipped_without_keeping_it() {
        let mut bytes = framed(&vec![0; MAX_RECORD as usize + 1]);
        bytes.extend(event());
        let (mut events, mut readings, mut pending) = (Events::default(), Vec::new(), Vec::new());
        let mut most = 0;
        for chunk in bytes.chunks(1000) {
            pending.extend_from_slice(chunk);
            let taken = events.take(&pending, &mut |reading| readings.push(reading));
            pending.drain(..taken.consumed);
            most = most.max(pending.len());
        }
        assert_eq!((readings.len(), most < 1000), (1, true));
    }
}
