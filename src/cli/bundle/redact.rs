//! Takes out what is nobody else's business: secrets, the home folder, names of user and machine.
//!
//! Three layers, from certain to likely: values that are known (the environment, the secrets of a
//! notification), shapes of well-known tokens, and whatever is assigned to a name that holds a secret.

mod assigned;
mod known;
mod shapes;

use crate::config::around::Notify;
use assigned::Assigned;
use known::Known;
use regex::Regex;

/// What stands in the place of a secret.
const GONE: &str = "[removed]";

/// Knows what to take out.
pub struct Redactor {
    /// Exact texts and what takes their place, longest first.
    words: Vec<(String, String)>,
    shapes: Vec<(Regex, &'static str)>,
    assigned: Assigned,
}

impl Redactor {
    /// Of this process's environment, and of the secrets in notification settings. `texts` are the files
    /// that those were read from: one with a mistake in it names secrets too.
    pub fn new(settings: &[Notify], texts: &[String]) -> Self {
        let variables = std::env::vars_os();
        let variables =
            variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut known = Known::default();
        known.variables(&variables.collect::<Vec<_>>());
        known.host(&host);
        for notify in settings {
            known.settings(notify);
        }
        for text in texts {
            known.text(text);
        }
        Self::of(known)
    }

    fn of(known: Known) -> Self {
        let assigned = Assigned::new(known.names());
        Self { words: known.into_words(), shapes: shapes::all(), assigned }
    }

    /// The text without what is nobody else's business.
    pub fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (word, instead) in &self.words {
            text = text.replace(word, instead);
        }
        for (shape, instead) in &self.shapes {
            text = shape.replace_all(&text, *instead).into_owned();
        }
        self.assigned.clean(&text)
    }
}

#[cfg(test)]
mod tests;
