//! TFRecord framing: `u64 length, u32 masked CRC of it, bytes, u32 masked CRC of them`, all
//! little-endian. The checksum is CRC-32C (Castagnoli), rotated and offset by a constant, so that
//! checksums over data that contains checksums remain reliable.

/// Frames a record for writing.
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend(length);
    record.extend(masked(&length).to_le_bytes());
    record.extend(bytes);
    record.extend(masked(bytes).to_le_bytes());
    record
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Computes CRC-32C, reflected, one byte at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| (crc >> 8) ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

static TABLE: [u32; 256] = crc_table();

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
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
        let right = masked(length) == u32::from_le_bytes(*crc) && masked(record) == u32::from_le_bytes(*of_record);
        records.push(right.then(|| record.to_vec())?);
        bytes = rest;
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::{crc32c, framed, unframed};

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

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
