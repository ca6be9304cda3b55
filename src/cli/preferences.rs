//! The user's customisation: themes and keymap from the configuration folder, preferences from the state
//! folder. Unreadable files are reported and ignored: they never keep the cockpit from opening.

use crate::cockpit::keymap::Keymap;
use crate::cockpit::preferences::Preferences;
use crate::store::user_folder::{self, user_folder};
use crate::theme::{Theme, ThemeError};
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// Themes and keys, and the errors in the user's files.
pub struct UserFiles {
    /// The shipped themes, then the user's; a user theme replaces a shipped one of the same name.
    pub themes: Vec<Theme>,
    /// The keymap.
    pub keys: Keymap,
    /// Errors in the user's files, one sentence each.
    pub wrong: Vec<String>,
}

impl UserFiles {
    /// Reads the configuration folder.
    ///
    /// # Errors
    /// Returns an error when the shipped themes cannot be read.
    pub fn read() -> Result<Self, ThemeError> {
        Self::read_in(user_folder("XDG_CONFIG_HOME", ".config").as_deref())
    }

    fn read_in(folder: Option<&Path>) -> Result<Self, ThemeError> {
        let mut own = Self { themes: Theme::shipped()?, keys: Keymap::default(), wrong: Vec::new() };
        let Some(folder) = folder else { return Ok(own) };
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder.join("themes")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
        files.sort();
        for path in files {
            let text = file::read_text(&path, Limit::Handwritten).map_err(|error| error.to_string());
            match text.and_then(|text| Theme::parse(&text).map_err(|error| error.to_string())) {
                Ok(theme) => own.add_theme(theme),
                Err(why) => own.wrong.push(format!("{}: {why}", text::path(&path))),
            }
        }
        let path = folder.join("keymap.yaml");
        match file::read_text(&path, Limit::Handwritten) {
            Ok(text) => match Keymap::parse(&text) {
                Ok(keys) => own.keys = keys,
                Err(why) => own.wrong.push(format!("{}: {}", text::path(&path), why.to_string().replace('\n', "; "))),
            },
            Err(error) if error.is_missing() => {}
            Err(error) => own.wrong.push(format!("{}: {error}", text::path(&path))),
        }
        Ok(own)
    }

    fn add_theme(&mut self, theme: Theme) {
        match self.themes.iter_mut().find(|known| known.name == theme.name) {
            Some(known) => *known = theme,
            None => self.themes.push(theme),
        }
    }
}

/// Reports which keys tmux intercepts, if running inside it.
pub fn tmux_clash(keys: &Keymap) -> Option<String> {
    env::var_os("TMUX")?;
    let mut command = Command::new("tmux");
    command.args(["show-options", "-gqv", "prefix"]).stdin(Stdio::null()).stderr(Stdio::null());
    let prefix = String::from_utf8(command.output().ok()?.stdout).ok()?;
    keys.prefix_hint(prefix.trim())
}

fn choices() -> Option<PathBuf> {
    Some(user_folder("XDG_STATE_HOME", ".local/state")?.join("cockpit.json"))
}

/// Returns the saved preferences.
pub fn remembered() -> Preferences {
    let text = choices().and_then(|path| file::read_text(&path, Limit::Handwritten).ok());
    text.map_or_else(Preferences::default, |text| Preferences::parse(&text))
}

/// Saves the preferences; if that fails, the next cockpit starts with the previous ones.
pub fn remember(preferences: &Preferences) {
    let Some(path) = choices() else { return };
    let made = path.parent().is_some_and(|folder| user_folder::create(folder).is_ok());
    if made {
        let _ = crate::store::run_dir::write_whole(&path, preferences.to_text().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::UserFiles;

    #[test]
    fn the_users_themes_and_keys_are_used_and_their_errors_reported() {
        let folder = tempfile::tempdir().unwrap();
        let themes = folder.path().join("themes");
        std::fs::create_dir(&themes).unwrap();
        let dark = include_str!("../../themes/dark.yaml");
        std::fs::write(themes.join("mine.yaml"), dark.replace("name: dark", "name: mine")).unwrap();
        std::fs::write(themes.join("bad.yaml"), dark.replacen("#8fcf8a", "greenish", 1)).unwrap();
        std::fs::write(folder.path().join("keymap.yaml"), "keys:\n  stop: [u]\n").unwrap();
        let own = UserFiles::read_in(Some(folder.path())).unwrap();
        assert_eq!(own.themes.last().map(|theme| theme.name.as_str()), Some("mine"));
        assert_eq!(own.wrong.len(), 2, "{:?}", own.wrong);
        assert!(own.wrong[0].contains("bad.yaml") && own.wrong[0].contains("line 9"), "{}", own.wrong[0]);
        assert!(own.wrong[1].contains("keymap.yaml: line 2: u is bound to both"), "{}", own.wrong[1]);
        assert_eq!(own.keys, crate::cockpit::keymap::Keymap::default());
    }
}
