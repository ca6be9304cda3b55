//! The copy of a settings file in a proposal.

use super::Draft;
use crate::config::command::template::escape;

/// A copy of a settings file with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedCopy {
    /// Its name in the attempt's directory.
    pub name: String,
    /// The settings file.
    pub from: String,
    /// The keys that are set.
    pub set: Vec<(String, String)>,
    /// Whether it lies beside the file.
    pub beside: bool,
}

impl Draft<'_> {
    /// Replaces the settings file in the command by a copy, if a knob sets one of its keys.
    pub(super) fn copy_settings(&mut self) -> Option<ProposedCopy> {
        let settings = self.facts.settings.as_ref().filter(|_| !self.command.settings.is_empty())?;
        let file = settings.path.file_name()?.to_string_lossy().into_owned();
        let fits = |letter: char| if letter.is_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
        let name: String = file.trim_start_matches('.').chars().map(fits).collect();
        let from = settings.path.display().to_string();
        self.command.replace_word(settings.word, &from, &format!("{{files.{name}}}"));
        let set = std::mem::take(&mut self.command.settings);
        Some(ProposedCopy { name, from: escape(&from), set, beside: settings.is_relative })
    }
}
