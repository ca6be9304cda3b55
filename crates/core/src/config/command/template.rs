//! Texts with placeholders: `--batch={training.micro_batch}`; `{{` and `}}` stand for single braces.

use std::fmt;

/// A parsed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Place(Placeholder),
}

/// A part of a text that is filled in for each start.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placeholder {
    /// The run directory.
    RunDir,
    /// The attempt's directory, which holds the files of the rung.
    AttemptDir,
    /// The name of the rung.
    Rung,
    /// The checkpoint to resume from.
    Checkpoint,
    /// The folder of that checkpoint, where the script wrote it.
    CheckpointParent,
    /// The name of that checkpoint, as the script wrote it.
    CheckpointName,
    /// The step of that checkpoint.
    Step,
    /// The steps from there to the last one.
    StepsLeft,
    /// The epochs that are not complete there.
    EpochsLeft,
    /// The number of this node among those of the job, from 0.
    Node,
    /// The number of nodes.
    Nodes,
    /// The name of the first node.
    Head,
    /// A port that was free on the first node.
    Port,
    /// A file of the section `files`, by its name.
    File(String),
    /// A knob or a section of knobs, by its dotted path.
    Knob(String),
}

/// The placeholders other than knobs, and their names.
const BUILT_IN: [(&str, Placeholder); 13] = [
    ("run_dir", Placeholder::RunDir),
    ("attempt_dir", Placeholder::AttemptDir),
    ("rung", Placeholder::Rung),
    ("checkpoint", Placeholder::Checkpoint),
    ("checkpoint.parent", Placeholder::CheckpointParent),
    ("checkpoint.name", Placeholder::CheckpointName),
    ("step", Placeholder::Step),
    ("steps_left", Placeholder::StepsLeft),
    ("epochs_left", Placeholder::EpochsLeft),
    ("node", Placeholder::Node),
    ("nodes", Placeholder::Nodes),
    ("head", Placeholder::Head),
    ("port", Placeholder::Port),
];

/// How the placeholder of a file begins.
const FILES: &str = "files.";

/// Returns the names of the placeholders other than knobs.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

impl Placeholder {
    fn parse(name: &str) -> Self {
        let built_in = BUILT_IN.into_iter().find(|(known, _)| *known == name);
        let file = || name.strip_prefix(FILES).map(|file| Self::File(file.to_owned()));
        let built_in = built_in.map(|(_, placeholder)| placeholder).or_else(file);
        built_in.unwrap_or_else(|| Self::Knob(name.to_owned()))
    }
}

impl fmt::Display for Placeholder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::File(name) => return write!(formatter, "{{{FILES}{name}}}"),
            Self::Knob(path) => path,
            other => BUILT_IN.iter().find(|(_, known)| known == other).map_or("", |(name, _)| name),
        };
        write!(formatter, "{{{name}}}")
    }
}

/// A text whose braces do not match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A placeholder that is never closed.
    #[error("`{{` opens a placeholder that is never closed")]
    Open,
    /// A closing brace without an opening one.
    #[error("`}}` has no matching `{{`")]
    Close,
    /// A placeholder without a name, or with one that no knob has.
    #[error("`{{{0}}}` is not a placeholder")]
    Name(String),
}

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// Returns an error when the braces do not match.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            plain.push_str(before);
            if let Some(after) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
                plain.push_str(&from[..1]);
                rest = after;
                continue;
            }
            let inside = from.strip_prefix('{').ok_or(TemplateError::Close)?;
            let end = inside.find(['{', '}']).filter(|end| inside[*end..].starts_with('}'));
            let name = &inside[..end.ok_or(TemplateError::Open)?];
            if !is_path(name) {
                return Err(TemplateError::Name(name.to_owned()));
            }
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Place(Placeholder::parse(name)));
            rest = &inside[name.len() + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { parts })
    }

    /// Returns the placeholders in order.
    pub fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.parts.iter().filter_map(|part| match part {
            Part::Place(place) => Some(place),
            Part::Text(_) => None,
        })
    }

    /// Returns the placeholder of a text that is nothing else.
    #[must_use]
    pub fn lone(&self) -> Option<&Placeholder> {
        match &self.parts[..] {
            [Part::Place(place)] => Some(place),
            _ => None,
        }
    }

    /// Returns the path of the knob that a text names, if it names one and nothing else that is filled in.
    #[must_use]
    pub fn only_knob(&self) -> Option<&str> {
        let mut places = self.placeholders();
        match (places.next(), places.next()) {
            (Some(Placeholder::Knob(path)), None) => Some(path),
            _ => None,
        }
    }

    /// Fills in every placeholder.
    #[must_use]
    pub fn render(&self, value: impl Fn(&Placeholder) -> String) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Place(place) => value(place),
        });
        parts.collect()
    }
}

/// Reports whether a text is the dotted path of a knob.
fn is_path(text: &str) -> bool {
    text.split('.').all(is_knob_name)
}

/// Reports whether a text can name a knob.
#[must_use]
pub fn is_knob_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-'))
}

/// Escapes a text, so that none of it is a placeholder.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('{', "{{").replace('}', "}}")
}

#[cfg(test)]
mod tests {
    use super::{Template, TemplateError, escape};
    use proptest::prelude::*;

    fn rendered(text: &str) -> Result<String, TemplateError> {
        Template::parse(text).map(|template| template.render(|place| format!("<{place}>")))
    }

    #[test]
    fn placeholders_are_filled_in_and_doubled_braces_are_single() {
        for (text, expected) in [
            ("--lr={optimizer.lr}", "--lr=<{optimizer.lr}>"),
            ("{run_dir}/{knobs.a-b}{rung}", "<{run_dir}>/<{knobs.a-b}><{rung}>"),
            ("{{\"lr\": {knobs}}}", "{\"lr\": <{knobs}>}"),
            ("{{{{}}}}", "{{}}"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(rendered(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn braces_that_do_not_match_are_refused() {
        for (text, error) in [
            ("{knobs", TemplateError::Open),
            ("{a{b}}", TemplateError::Open),
            ("a}", TemplateError::Close),
            ("{}", TemplateError::Name(String::new())),
            ("{a b}", TemplateError::Name("a b".to_owned())),
            ("{a..b}", TemplateError::Name("a..b".to_owned())),
            ("{\"lr\": 1}", TemplateError::Name("\"lr\": 1".to_owned())),
        ] {
            assert_eq!(rendered(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_text_is_itself(text in ".{0,60}") {
            prop_assert_eq!(rendered(&escape(&text)), Ok(text));
        }
    }
}
