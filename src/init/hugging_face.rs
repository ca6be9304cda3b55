//! The arguments of Hugging Face's own dataclasses, which scripts import: `assets/hugging_face_flags.yaml`.

use super::flag::ValueKind;
use super::python::Literal;
use crate::config::yaml;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const LIST: &str = include_str!("../../assets/hugging_face_flags.yaml");
/// Bases that are followed.
const DEPTH: usize = 8;

/// The listed dataclasses.
#[derive(Debug, Deserialize)]
pub struct Classes {
    classes: BTreeMap<String, Class>,
}

#[derive(Debug, Deserialize)]
struct Class {
    package: String,
    #[serde(default)]
    inherits: Option<String>,
    fields: Vec<ListedField>,
}

/// One field: its name, its kind, and its default where one is known.
#[derive(Debug, Deserialize)]
#[serde(from = "(String, Kind, Value)")]
pub struct ListedField {
    /// Its name.
    pub name: String,
    /// The kind of its value.
    pub kind: ValueKind,
    /// Its default.
    pub default: Option<Literal>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Integer,
    Number,
    Boolean,
    Text,
}

impl From<(String, Kind, Value)> for ListedField {
    fn from((name, kind, default): (String, Kind, Value)) -> Self {
        let kind = match kind {
            Kind::Integer => ValueKind::Integer,
            Kind::Number => ValueKind::Number,
            Kind::Boolean => ValueKind::Boolean,
            Kind::Text => ValueKind::Text,
        };
        Self { name, kind, default: literal(&default) }
    }
}

pub fn literal(value: &Value) -> Option<Literal> {
    match value {
        Value::Null => Some(Literal::None),
        Value::Bool(value) => Some(Literal::Bool(*value)),
        Value::Number(number) => number.as_i64().map(Literal::Int).or_else(|| number.as_f64().map(Literal::Float)),
        Value::String(text) => Some(Literal::Text(text.clone())),
        Value::Array(_) | Value::Object(_) => None,
    }
}

impl Classes {
    /// Reads the list.
    ///
    /// # Errors
    /// Returns an error when the list inside the program is damaged.
    pub fn load() -> Result<Self, yaml::ReadError> {
        yaml::read(LIST)
    }

    /// Returns the fields of a class with the package each comes from, those of its bases first; empty if the class is
    /// not listed.
    pub fn fields(&self, class: &str) -> Vec<(&str, &ListedField)> {
        let mut chain: Vec<&Class> = Vec::new();
        let mut next = self.classes.get(class);
        while let Some(class) = next.filter(|_| chain.len() < DEPTH) {
            chain.push(class);
            next = class.inherits.as_deref().and_then(|base| self.classes.get(base));
        }
        chain.iter().rev().flat_map(|class| class.fields.iter().map(|field| (class.package.as_str(), field))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Classes;
    use crate::init::python::Literal;

    #[test]
    fn the_list_is_sound_and_classes_inherit() {
        let classes = Classes::load().unwrap();
        let fields = classes.fields("SFTConfig");
        let of = |name: &str| {
            fields
                .iter()
                .filter(|(_, field)| field.name == name)
                .map(|(package, field)| (*package, &field.default))
                .collect::<Vec<_>>()
        };
        assert_eq!(of("per_device_train_batch_size"), [("transformers 5.23.0", &Some(Literal::Int(8)))]);
        assert_eq!(of("gradient_checkpointing").last().unwrap().1, &Some(Literal::Bool(true)), "TRL overrides it");
        assert!(classes.fields("NotListed").is_empty());
    }
}
