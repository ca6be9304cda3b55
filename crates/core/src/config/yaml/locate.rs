//! Finds the line and column of a path: the parser reads the text again and is stopped at the path.

use crate::config::problem::Part;
use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};
use std::fmt;

/// A line and a column, both counted from 1.
pub type Place = (usize, usize);

/// Returns the position of this part of the line at `path`, or of the nearest key above if the path is not in the text.
#[must_use]
pub fn locate(text: &str, path: &str, part: Part) -> Place {
    let (mut path, mut part) = (path, part);
    loop {
        let (on_key, occurrence) = match part {
            Part::Value => (false, 0),
            Part::Key(occurrence) => (true, occurrence),
        };
        let find = Find { rest: path, on_key, occurrence };
        let stopped = find.deserialize(serde_yaml::Deserializer::from_str(text)).err();
        if let Some(error) = stopped.filter(|error| error.to_string().contains(FOUND)) {
            return error.location().map_or((1, 1), |at| (at.line(), at.column()));
        }
        match path.rfind(['.', '[']) {
            Some(cut) => path = &path[..cut],
            None => return (1, 1),
        }
        // An item of a list has no key.
        part = if path.ends_with(']') { Part::Value } else { Part::Key(0) };
    }
}

const FOUND: &str = "downshift stops here";

/// Walks to a path and stops the parser there with an error, whose position is the answer.
struct Find<'a> {
    rest: &'a str,
    on_key: bool,
    occurrence: usize,
}

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Defines visitor methods for scalars that stop if the path ends here.
macro_rules! stop_at_scalar {
    ($($method:ident: $kind:ty),*) => {
        $(fn $method<E: de::Error>(self, _: $kind) -> Result<(), E> {
            self.here()
        })*
    };
}

impl Find<'_> {
    fn here<E: de::Error>(&self) -> Result<(), E> {
        if self.rest.is_empty() { Err(E::custom(FOUND)) } else { Ok(()) }
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("YAML")
    }

    stop_at_scalar!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.here()
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let (_, content) = tagged.variant::<String>()?;
        content.newtype_variant_seed(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.here()?;
        for index in 0.. {
            let found = self.rest.strip_prefix(&format!("[{index}]"));
            let more = match found {
                Some(rest) => items.next_element_seed(Find { rest: rest.trim_start_matches('.'), ..self })?.is_some(),
                None => items.next_element::<de::IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        self.here()?;
        loop {
            let stop = FindKey { rest: self.rest, last: self.on_key, occurrence: &mut self.occurrence };
            let Some(below) = entries.next_key_seed(stop)? else { return Ok(()) };
            match below {
                Some(rest) => {
                    let (on_key, occurrence) = (self.on_key, self.occurrence);
                    entries.next_value_seed(Find { rest: &rest, on_key, occurrence })?;
                }
                None => {
                    entries.next_value::<de::IgnoredAny>()?;
                }
            }
        }
    }
}

/// Reads a key: returns the rest of the path below it, or none if the path does not lead through it.
struct FindKey<'a> {
    rest: &'a str,
    last: bool,
    occurrence: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for FindKey<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<String>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FindKey<'_> {
    type Value = Option<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a word as key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Option<String>, E> {
        let Some(rest) = self.rest.strip_prefix(key) else { return Ok(None) };
        if rest.is_empty() && self.last {
            if *self.occurrence == 0 {
                return Err(E::custom(FOUND));
            }
            *self.occurrence -= 1;
            return Ok(None);
        }
        Ok(match rest.strip_prefix('.') {
            Some(rest) => Some(rest.to_owned()),
            None if rest.is_empty() || rest.starts_with('[') => Some(rest.to_owned()),
            None => None,
        })
    }
}
