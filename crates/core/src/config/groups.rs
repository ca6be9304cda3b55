//! Selects the trained parameters, and defines parameter groups with rules of their own.
//!
//! ```yaml
//! training: { trained: last 2 blocks + head }
//! optimizer:
//!   groups:
//!     head: { match: [head, norm], lr_factor: 2.0, max_norm: 1.0 }
//!     rest: { match: "*", max_norm: 0.5 }
//! ```
//! The first group that matches a parameter's path applies. In a pattern `*` matches anything, and a
//! pattern also matches everything below it: `head` matches `head.weight`.

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Rules for the parameters that match some patterns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Patterns of parameter paths.
    #[serde(rename = "match")]
    pub matches: Patterns,
    /// True freezes the group. False trains it, even if `training.trained` leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
    /// Multiplier on the learning rate of the run.
    #[serde(default = "default_lr_factor")]
    pub lr_factor: f64,
    /// Overrides `optimizer.weight_decay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Clips the gradient norm of this group alone; overrides `optimizer.max_norm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_norm: Option<f64>,
}

/// One pattern or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a pattern, or a list of patterns")]
pub enum Patterns {
    /// A single pattern.
    One(String),
    /// Several patterns; a path must match at least one.
    Many(Vec<String>),
}

impl Patterns {
    /// Returns all patterns.
    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(pattern) => std::slice::from_ref(pattern),
            Self::Many(patterns) => patterns,
        }
    }

    /// Reports whether any pattern matches a path.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        self.as_slice().iter().any(|pattern| matches(pattern, path))
    }
}

/// Reports whether a pattern matches a path or one of its parents.
#[must_use]
pub fn matches(pattern: &str, path: &str) -> bool {
    let whole = |path: &str| matches_glob(pattern.as_bytes(), path.as_bytes());
    whole(path) || path.match_indices('.').any(|(dot, _)| whole(&path[..dot]))
}

fn matches_glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches_glob(rest, text) || text.split_first().is_some_and(|(_, text)| matches_glob(pattern, text))
        }
        (Some((p, pattern)), Some((t, text))) => p == t && matches_glob(pattern, text),
        _ => false,
    }
}

/// Groups by name, in file order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Groups(pub Vec<(String, Group)>);

impl Groups {
    /// Reports whether there are no groups.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Groups {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, group) in &self.0 {
            map.serialize_entry(name, group)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Groups {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Groups;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a section of groups, each with a name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Groups, A::Error> {
                let mut groups = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    groups.push(entry);
                }
                Ok(Groups(groups))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// A term of `training.trained` that selects no parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{term}` does not select parameters; write all, adapters, adapters of the last 2 blocks, head, or last 2 blocks, \
     joined by +"
)]
pub struct ParseTrainedError {
    /// The term.
    pub term: String,
}

/// The parsed value of `training.trained`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trained {
    /// Trains every parameter.
    pub all: bool,
    /// Trains the adapters.
    pub adapters: bool,
    /// Trains the head: the layers behind the blocks.
    pub head: bool,
    /// Number of last blocks to train.
    pub last_blocks: usize,
    /// Number of last blocks whose adapters are trained.
    pub last_adapters: usize,
}

impl fmt::Display for Trained {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = |what: &str, count: usize| match count {
            0 => String::new(),
            1 => format!("{what}last 1 block"),
            count => format!("{what}last {count} blocks"),
        };
        let words = [
            if self.all { "all" } else { "" },
            &last("", self.last_blocks),
            if self.head { "head" } else { "" },
            if self.adapters { "adapters" } else { "" },
            &last("adapters of the ", self.last_adapters),
        ];
        formatter.write_str(&words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" + "))
    }
}

impl std::str::FromStr for Trained {
    type Err = ParseTrainedError;

    fn from_str(text: &str) -> Result<Self, ParseTrainedError> {
        let mut trained = Self::default();
        for term in text.split('+').map(str::trim) {
            let words: Vec<&str> = term.split_whitespace().collect();
            match words[..] {
                ["all"] => trained.all = true,
                ["adapters"] => trained.adapters = true,
                ["head"] => trained.head = true,
                ["last", count, "blocks" | "block"] if count.parse::<usize>().is_ok_and(|count| count > 0) => {
                    trained.last_blocks = count.parse().unwrap_or_default();
                }
                ["adapters", "of", "the", "last", count, "blocks" | "block"]
                    if count.parse::<usize>().is_ok_and(|count| count > 0) =>
                {
                    trained.last_adapters = count.parse().unwrap_or_default();
                }
                _ => return Err(ParseTrainedError { term: term.to_owned() }),
            }
        }
        Ok(trained)
    }
}

impl Serialize for Trained {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Trained {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

fn default_lr_factor() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::{Groups, ParseTrainedError, Trained, matches};

    #[test]
    fn patterns_match_paths_and_what_lies_below() {
        for (pattern, path, hit) in [
            ("head", "head.weight", true),
            ("head", "heads.weight", false),
            ("blocks.*.attention", "blocks.11.attention.query.weight", true),
            ("blocks.1", "blocks.11.attention.query.weight", false),
            ("blocks.1", "blocks.1.norm.gamma", true),
            ("*.bias", "blocks.1.widen.bias", true),
            ("*.bias", "blocks.1.widen.weight", false),
            ("*", "anything", true),
            ("*lora*", "blocks.0.query.lora_a", true),
            ("", "head", false),
        ] {
            assert_eq!(matches(pattern, path), hit, "{pattern} on {path}");
        }
    }

    #[test]
    fn groups_keep_their_order_and_their_words() {
        let text = r#"{"z":{"match":"head","lr_factor":2.0,"max_norm":1.0},"a":{"match":["*"],"frozen":true,"lr_factor":1.0}}"#;
        let groups: Groups = serde_json::from_str(text).unwrap();
        assert_eq!(groups.0[0].0, "z");
        assert_eq!(serde_json::to_string(&groups).unwrap(), text);
        assert!(serde_json::from_str::<Groups>(r#"{"z":{"match":"head","lr":2.0}}"#).is_err());
    }

    #[test]
    fn trained_terms_are_read_and_written() {
        let trained: Trained = "last 8 blocks+ head +adapters".parse().unwrap();
        assert_eq!((trained.last_blocks, trained.head, trained.adapters, trained.all), (8, true, true, false));
        assert_eq!(trained.to_string(), "last 8 blocks + head + adapters");
        assert_eq!(trained.to_string().parse::<Trained>(), Ok(trained));
        let trained: Trained = "head + adapters of the last 8 blocks".parse().unwrap();
        assert_eq!((trained.last_blocks, trained.last_adapters, trained.adapters), (0, 8, false));
        assert_eq!(trained.to_string().parse::<Trained>(), Ok(trained));
        for wrong in ["", "last blocks", "adapters of the last 0 blocks", "last 0 blocks", "first 2 blocks", "all +"] {
            let term = wrong.trim_start_matches("all +").to_owned();
            assert_eq!(wrong.parse::<Trained>(), Err(ParseTrainedError { term }), "{wrong}");
        }
    }
}
