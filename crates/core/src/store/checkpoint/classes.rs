//! The meaning of a picture classifier's input and outputs, which its weights alone do not show.

use serde::{Deserialize, Serialize};
use serde_json::json;

/// The classes and the pictures that a classifier was trained on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PictureClasses {
    /// The class of each output, in their order.
    pub names: Vec<String>,
    /// `[channels, height, width]` of a picture.
    pub shape: [usize; 3],
    /// The mean of each channel, in bytes from 0 to 255.
    pub mean: Vec<f32>,
    /// The standard deviation of each channel, in the same unit.
    pub std: Vec<f32>,
}

impl PictureClasses {
    /// Returns the difference of the classes `now` to these; none if each output keeps its meaning.
    #[must_use]
    pub fn difference(&self, now: &Self) -> Option<String> {
        if self.names == now.names {
            return None;
        }
        let missing = |from: &[String], to: &[String]| -> Vec<String> {
            from.iter().filter(|name| !to.contains(name)).map(|name| format!("`{name}`")).collect()
        };
        let parts = [("gone", missing(&self.names, &now.names)), ("new", missing(&now.names, &self.names))];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(word, names)| format!("{} {} {word}", names.join(", "), if names.len() == 1 { "is" } else { "are" }))
            .collect();
        Some(if parts.is_empty() { "their order differs".to_owned() } else { parts.join(", ") })
    }

    /// Returns the entries of a safetensors header: JSON as text, since a header holds only text.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, String); 4] {
        [
            ("classes", json!(self.names).to_string()),
            ("picture_shape", json!(self.shape).to_string()),
            ("pixel_mean", json!(self.mean).to_string()),
            ("pixel_std", json!(self.std).to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::PictureClasses;

    #[test]
    fn a_renamed_class_and_a_new_one_are_named() {
        let of = |names: &[&str]| PictureClasses {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..PictureClasses::default()
        };
        let before = of(&["cats", "dogs"]);
        assert_eq!(before.difference(&of(&["cats", "dogs"])), None);
        for (now, wanted) in [
            (of(&["dogs", "xcats"]), "`cats` is gone, `xcats` is new"),
            (of(&["cats", "dogs", "emus", "owls"]), "`emus`, `owls` are new"),
            (of(&["dogs", "cats"]), "their order differs"),
        ] {
            assert_eq!(before.difference(&now).unwrap(), wanted);
        }
    }
}
