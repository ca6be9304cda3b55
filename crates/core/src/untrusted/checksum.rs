//! Checksums of file formats that others define: CRC-32 (zlib) and CRC-32C (Castagnoli), one byte at a time.

/// A reflected CRC of 32 bits.
#[derive(Debug)]
pub struct Crc {
    table: [u32; 256],
}

/// CRC-32 as zlib computes it.
pub static CRC32: Crc = Crc::new(0xedb8_8320);

/// CRC-32C, the checksum of TFRecords and iSCSI.
pub static CRC32C: Crc = Crc::new(0x82f6_3b78);

impl Crc {
    const fn new(polynomial: u32) -> Self {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut crc = index as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ polynomial } else { crc >> 1 };
                bit += 1;
            }
            table[index] = crc;
            index += 1;
        }
        Self { table }
    }

    /// Computes the checksum of bytes that come in several parts.
    #[must_use]
    pub fn of(&self, parts: &[&[u8]]) -> u32 {
        let step = |crc: u32, byte: &u8| (crc >> 8) ^ self.table[((crc ^ u32::from(*byte)) & 0xff) as usize];
        !parts.iter().fold(!0, |crc, part| part.iter().fold(crc, step))
    }
}

/// Computes the masked CRC-32C of a TFRecord: rotated and offset by a constant, so that checksums over data that
/// contains checksums remain reliable.
#[must_use]
pub fn tfrecord(bytes: &[u8]) -> u32 {
    CRC32C.of(&[bytes]).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::{CRC32, CRC32C};

    #[test]
    fn checksums_are_those_of_the_standards() {
        // RFC 3720, B.4.
        assert_eq!(CRC32C.of(&[b"123456789"]), 0xe306_9283);
        assert_eq!(CRC32C.of(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(CRC32C.of(&[&[0xff; 16], &[0xff; 16]]), 0x62a8_ab43);
        // The check value that every catalogue of CRCs gives for CRC-32.
        assert_eq!(CRC32.of(&[b"1234", b"56789"]), 0xcbf4_3926);
    }
}
