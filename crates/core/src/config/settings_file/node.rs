//! The values of a settings file, with their places in its text.

use serde_json::{Map, Value};
use std::ops::Range;

/// A value, a list or a section.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// A section: keys in the order of the file.
    Map(Vec<(String, Node)>),
    /// A list, with its place unless it is written in several parts.
    List(Vec<Node>, Option<Range<usize>>),
    /// One value.
    Scalar(Scalar),
    /// Something that is left as it is: its name in messages, and its place.
    Fixed(&'static str, Range<usize>),
}

/// One value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar {
    /// The bytes of the text.
    pub span: Range<usize>,
    /// The value.
    pub value: Value,
}

impl Node {
    /// Returns the node at a path such as `config.process[0].train.steps`. A key may contain dots itself.
    pub fn find(&self, path: &str) -> Option<&Self> {
        if path.is_empty() {
            return Some(self);
        }
        match self {
            Self::Map(entries) => entries.iter().rev().find_map(|(key, node)| {
                let rest = path.strip_prefix(key.as_str())?;
                match rest.strip_prefix('.') {
                    Some("") => None,
                    Some(below) => node.find(below),
                    None if rest.is_empty() || rest.starts_with('[') => node.find(rest),
                    None => None,
                }
            }),
            Self::List(items, _) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                let rest = rest.strip_prefix('.').unwrap_or(rest);
                items.get(index.parse::<usize>().ok()?)?.find(rest)
            }
            Self::Scalar(_) | Self::Fixed(..) => None,
        }
    }

    /// Returns every value with its path. A list of plain values is one value.
    pub fn leaves(&self) -> Vec<(String, &Self)> {
        let mut found = Vec::new();
        self.collect(String::new(), false, &mut found);
        found
    }

    /// Returns every value with its path, also those in lists.
    pub fn scalars(&self) -> Vec<(String, &Self)> {
        let mut found = Vec::new();
        self.collect(String::new(), true, &mut found);
        found
    }

    fn collect<'a>(&'a self, path: String, in_lists: bool, found: &mut Vec<(String, &'a Self)>) {
        match self {
            Self::Map(entries) => {
                for (key, node) in entries {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    node.collect(path, in_lists, found);
                }
            }
            Self::List(items, _)
                if in_lists || items.iter().any(|item| matches!(item, Self::Map(_) | Self::List(..))) =>
            {
                for (index, item) in items.iter().enumerate() {
                    item.collect(format!("{path}[{index}]"), in_lists, found);
                }
            }
            _ => found.push((path, self)),
        }
    }

    /// Returns the value, without places. What is left as it is counts as null.
    pub fn value(&self) -> Value {
        match self {
            Self::Map(entries) => {
                Value::Object(entries.iter().map(|(key, node)| (key.clone(), node.value())).collect::<Map<_, _>>())
            }
            Self::List(items, _) => items.iter().map(Self::value).collect(),
            Self::Scalar(scalar) => scalar.value.clone(),
            Self::Fixed(..) => Value::Null,
        }
    }

    /// Returns the first byte.
    pub fn start(&self) -> Option<usize> {
        match self {
            Self::Map(_) => None,
            Self::List(_, span) => span.as_ref().map(|span| span.start),
            Self::Scalar(Scalar { span, .. }) | Self::Fixed(_, span) => Some(span.start),
        }
    }
}
