//! The wire format of protocol buffers: fields of one message, without a schema.

/// The content of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Content<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// The fields of a message, in order; ends at the first that is malformed.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Content<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.read();
        if field.is_none() {
            self.0 = &[];
        }
        field
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Option<(u64, Content<'a>)> {
        let key = self.varint()?;
        let content = match key & 7 {
            0 => Content::Varint(self.varint()?),
            1 => Content::Fixed64(self.fixed()?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Content::Bytes(bytes)
            }
            5 => Content::Fixed32(self.fixed()?),
            _ => return None,
        };
        Some((key >> 3, content))
    }

    fn fixed<const SIZE: usize>(&mut self) -> Option<[u8; SIZE]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (index, byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = &self.0[index + 1..];
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Content, Fields};

    #[test]
    fn fields_are_read_until_one_is_malformed() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 0, 0, 0x80, 0x3f, 0x0b];
        let fields: Vec<_> = Fields(&bytes).collect();
        let wanted = [(1, Content::Varint(150)), (2, Content::Bytes(b"hi")), (3, Content::Fixed32([0, 0, 0x80, 0x3f]))];
        assert_eq!(fields, wanted);
        // A length beyond the end, and a number that never ends.
        assert_eq!(Fields(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]).count(), 0);
        assert_eq!(Fields(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).count(), 0);
    }
}
