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
    /// Replaces the settings files in the command by copies, where a knob sets one of their keys.
    pub(super) fn copy_settings(&mut self) -> Vec<ProposedCopy> {
        (0..self.facts.settings.len()).filter_map(|file| self.copy(file)).collect()
    }

    fn copy(&mut self, index: usize) -> Option<ProposedCopy> {
        let settings = &self.facts.settings[index];
        let own = self.command.settings.iter().filter(|(file, ..)| *file == index);
        let set: Vec<(String, String)> = own.map(|(_, key, text)| (key.clone(), text.clone())).collect();
        if set.is_empty() {
            return None;
        }
        let file = settings.path.file_name()?.to_string_lossy().into_owned();
        let fits = |letter: char| if letter.is_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
        let name: String = file.trim_start_matches('.').chars().map(fits).collect();
        let from = settings.path.display().to_string();
        self.command.replace_word(settings.word, &from, &format!("{{files.{name}}}"));
        Some(ProposedCopy { name, from: escape(&from), set, beside: settings.is_relative })
    }
}
