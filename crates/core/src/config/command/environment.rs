//! The environment of a command: names, and texts with placeholders.

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// Reads `NAME: text`. A number counts as its text; a removed variable (null) is left out.
///
/// # Errors
/// Returns an error when a value is neither text nor a number.
pub fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Variables;
    impl<'de> Visitor<'de> for Variables {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("struct of variables")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut variables = BTreeMap::new();
            while let Some((name, value)) = entries.next_entry::<String, Option<Text>>()? {
                variables.extend(value.map(|Text(value)| (name, value)));
            }
            Ok(variables)
        }
    }
    deserializer.deserialize_map(Variables)
}

/// A text, or a number as text. `true` is refused, because a script may expect `True` or `1`.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar;
        impl Visitor<'_> for Scalar {
            type Value = Text;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}
