//! TensorBoard's `Event` and `Summary` messages (event.proto, summary.proto, tensor.proto of TensorFlow):
//! the few fields needed for scalars and texts, in the wire format of protocol buffers.
//!
//! ```text
//! Event    1 double wall_time   2 int64 step   3 string file_version   5 Summary
//! Summary  1 repeated Value
//! Value    1 string tag   2 float simple_value   8 Tensor   9 Metadata
//! Tensor   1 type (7 = string)   2 Shape   8 repeated bytes string_val
//! Metadata 1 { 1 string plugin_name }
//! ```

/// One event: the values of a step at a time.
pub struct Event {
    /// The time, Unix milliseconds.
    pub time_ms: i64,
    /// The step.
    pub step: u64,
    /// The file version; only in the first event of a file.
    pub version: Option<&'static str>,
    /// The values.
    pub values: Vec<Value>,
}

/// A tag and its value.
pub enum Value {
    /// A number.
    Scalar(String, f32),
    /// Markdown.
    Text(String, String),
}

impl Event {
    /// Creates the event that every file begins with.
    pub fn version(time_ms: i64) -> Self {
        Self { time_ms, step: 0, version: Some("brain.Event:2"), values: Vec::new() }
    }

    /// Encodes the event.
    pub fn encode(&self) -> Vec<u8> {
        let mut event = Vec::new();
        fixed64(&mut event, 1, (self.time_ms as f64 / 1e3).to_le_bytes());
        if self.step > 0 {
            number(&mut event, 2, self.step);
        }
        if let Some(version) = self.version {
            bytes(&mut event, 3, version.as_bytes());
        }
        if !self.values.is_empty() {
            let mut summary = Vec::new();
            for value in &self.values {
                bytes(&mut summary, 1, &value.encode());
            }
            bytes(&mut event, 5, &summary);
        }
        event
    }
}

impl Value {
    fn encode(&self) -> Vec<u8> {
        let mut value = Vec::new();
        match self {
            Self::Scalar(tag, number) => {
                bytes(&mut value, 1, tag.as_bytes());
                key(&mut value, 2, 5);
                value.extend(number.to_le_bytes());
            }
            Self::Text(tag, text) => {
                const STRING: u64 = 7;
                bytes(&mut value, 1, tag.as_bytes());
                let (mut size, mut shape, mut tensor) = (Vec::new(), Vec::new(), Vec::new());
                number(&mut size, 1, 1);
                bytes(&mut shape, 2, &size);
                number(&mut tensor, 1, STRING);
                bytes(&mut tensor, 2, &shape);
                bytes(&mut tensor, 8, text.as_bytes());
                bytes(&mut value, 8, &tensor);
                let (mut plugin, mut metadata) = (Vec::new(), Vec::new());
                bytes(&mut plugin, 1, b"text");
                bytes(&mut metadata, 1, &plugin);
                bytes(&mut value, 9, &metadata);
            }
        }
        value
    }
}

fn key(out: &mut Vec<u8>, field: u64, kind: u64) {
    varint(out, field << 3 | kind);
}

fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    key(out, field, 0);
    varint(out, value);
}

fn fixed64(out: &mut Vec<u8>, field: u64, value: [u8; 8]) {
    key(out, field, 1);
    out.extend(value);
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(out, field, 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::{Event, Value, varint};

    #[test]
    fn numbers_are_those_of_the_wire_format() {
        for (value, expected) in [(0, vec![0]), (1, vec![1]), (150, vec![0x96, 1]), (300, vec![0xac, 2])] {
            let mut out = Vec::new();
            varint(&mut out, value);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn a_scalar_is_these_bytes() {
        let values = vec![Value::Scalar("a".to_owned(), 1.0)];
        let event = Event { time_ms: 1000, step: 3, version: None, values }.encode();
        let one =
            [0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 3, 0x2a, 10, 0x0a, 8, 0x0a, 1, b'a', 0x15, 0, 0, 0x80, 0x3f];
        assert_eq!(event, one);
    }
}
