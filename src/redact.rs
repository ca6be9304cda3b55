//! Removes private information: secrets, the home folder, names of user and machine.
//!
//! Three layers, from certain to likely: known values (the environment, notification secrets), the shapes
//! of well-known tokens, and values assigned to a name that suggests a secret.

mod assigned;
mod known;
mod shapes;

use crate::config::integrations::Notify;
use crate::notify;
use crate::store::run_dir::RunDir;
use crate::untrusted::file::{self, Limit};
use assigned::{Assigned, holds_secret};
use known::Known;
use regex::Regex;

/// Placeholder for a secret.
const GONE: &str = "[removed]";
/// Bytes at the end of run.yaml in which secrets are looked up, if it cannot be parsed.
const TAIL: u64 = 1 << 20;

/// Removes secrets from text.
pub struct Redactor {
    /// Exact strings and their replacements, longest first.
    words: Vec<(String, String)>,
    /// Variables that the run's settings take secrets from.
    names: Vec<String>,
    shapes: Vec<(Regex, &'static str)>,
    assigned: Assigned,
}

impl Redactor {
    /// Builds a redactor for the secrets in the run's and the user's notification settings.
    #[must_use]
    pub fn of_run(run: &RunDir) -> Self {
        let run_file = run.run().ok();
        let mut known = Known::default();
        if let Some(run_file) = &run_file {
            known.add_run(run_file);
        }
        let own = run_file.and_then(|run| run.notify);
        let texts = [
            file::tail(&run.file("run.yaml"), TAIL).ok(),
            notify::user_file().and_then(|path| file::read_text(&path, Limit::Handwritten).ok()),
        ];
        let settings: Vec<Notify> = own.into_iter().chain(notify::read_settings(None)).collect();
        Self::new(known, &settings, &texts.into_iter().flatten().collect::<Vec<_>>())
    }

    /// Builds a redactor from known secrets, this process's environment and the secrets in notification settings.
    /// `texts` are the files those were read from: a file with an error in it names secrets too.
    fn new(mut known: Known, settings: &[Notify], texts: &[String]) -> Self {
        let variables = std::env::vars_os();
        let variables =
            variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        known.variables(&variables.collect::<Vec<_>>());
        known.host(&host);
        for notify in settings {
            known.settings(notify);
        }
        for text in texts {
            known.add_named_in(text);
        }
        Self::of(known)
    }

    fn of(known: Known) -> Self {
        let assigned = Assigned::new(known.names());
        let names = known.names().to_vec();
        Self { words: known.into_words(), names, shapes: shapes::token_patterns(), assigned }
    }

    /// Reports whether a variable holds a secret: by its name, or by what its value contains.
    #[must_use]
    pub fn is_secret(&self, name: &str, value: &str) -> bool {
        let removes = |instead: &str| instead.contains(GONE);
        !value.is_empty()
            && (holds_secret(name)
                || self.names.iter().any(|known| known == name)
                || self.words.iter().any(|(word, instead)| removes(instead) && value.contains(word))
                || self.shapes.iter().any(|(shape, instead)| removes(instead) && shape.is_match(value))
                || self.assigned.clean(value) != value)
    }

    /// Returns the text without private information.
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
