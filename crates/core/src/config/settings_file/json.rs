//! JSON: a part that is read as it stands borrows the text, which tells its place.

use super::{DEPTH, Format, Node, Scalar, SyntaxError};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let wrong = |error: &serde_json::Error| SyntaxError {
        format: Format::Json,
        place: (error.line().max(1), error.column().max(1)),
        message: error.to_string().split(" at line").next().unwrap_or_default().to_owned(),
    };
    let whole: &RawValue = serde_json::from_str(text).map_err(|error| wrong(&error))?;
    read(text, whole, 0).map_err(|error| wrong(&error))
}

fn read(text: &str, part: &RawValue, depth: usize) -> Result<Node, serde_json::Error> {
    let start = part.get().as_ptr().addr() - text.as_ptr().addr();
    let span = start..start + part.get().len();
    match part.get().as_bytes().first() {
        Some(b'{' | b'[') if depth > DEPTH => Ok(Node::Fixed("nested too deeply", span)),
        Some(b'{') => {
            let Entries(entries) = serde_json::from_str(part.get())?;
            let read = |(key, part): (String, &RawValue)| Ok((key, read(text, part, depth + 1)?));
            entries.into_iter().map(read).collect::<Result<_, _>>().map(Node::Map)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(part.get())?;
            let items: Result<_, _> = items.into_iter().map(|part| read(text, part, depth + 1)).collect();
            Ok(Node::List(items?, Some(span)))
        }
        _ => Ok(Node::Scalar(Scalar { span, value: serde_json::from_str::<Value>(part.get())? })),
    }
}

/// The entries of an object, in order.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}
