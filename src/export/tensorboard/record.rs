//! TFRecord framing: `u64 length, u32 masked CRC of it, bytes, u32 masked CRC of them`, all
//! little-endian.

use crate::untrusted::checksum::tfrecord;

/// Frames a record for writing.
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend(length);
    record.extend(tfrecord(&length).to_le_bytes());
    record.extend(bytes);
    record.extend(tfrecord(bytes).to_le_bytes());
    record
}

/// Returns the records of a file, and whether each of their checksums is right; none if the file is truncated.
#[cfg(test)]
pub fn unframed(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let (crc, rest) = rest.split_first_chunk::<4>()?;
        let (record, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let (of_record, rest) = rest.split_first_chunk::<4>()?;
        let right = tfrecord(length) == u32::from_le_bytes(*crc) && tfrecord(record) == u32::from_le_bytes(*of_record);
        records.push(right.then(|| record.to_vec())?);
        bytes = rest;
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::{framed, unframed};

    #[test]
    fn records_round_trip_and_damage_is_detected() {
        let mut file = framed(b"first");
        file.extend(framed(b""));
        assert_eq!(unframed(&file), Some(vec![b"first".to_vec(), Vec::new()]));
        for place in 0..file.len() {
            let mut damaged = file.clone();
            damaged[place] ^= 0x10;
            assert_eq!(unframed(&damaged), None, "byte {place}");
        }
    }
}
