//! Key bindings: the table of actions, overridden by your keymap file if there is one.
//!
//! ```yaml
//! name: mine
//! keys:
//!   shift-down: [J]        # replaces the default keys; unlisted actions keep theirs
//!   quit: [q, Ctrl-c]
//! ```
//! A file is rejected as a whole if it names an unknown action or key, binds one key to two actions, or
//! leaves `close`, `back` or `help` without a key.

use super::action::{Action, ActionEntry, Key, TABLE, entry_of};
use crate::config::problem::{Part, max_listed};
use crate::config::yaml;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;

/// A mistake in a keymap file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeymapMistake {
    /// Not valid YAML; holds the parser's message.
    #[error("{0}")]
    Yaml(String),
    /// Not a mapping.
    #[error("a keymap has `name:` and `keys:`")]
    NotAKeymap,
    /// A field that keymaps do not have.
    #[error("unknown field `{0}`; a keymap has `name` and `keys`")]
    UnknownField(String),
    /// An action that does not exist.
    #[error("unknown action `{name}`; did you mean `{near}`?")]
    UnknownAction {
        /// The name in the file.
        name: String,
        /// The most similar action.
        near: &'static str,
    },
    /// A key name that does not exist.
    #[error("unknown key `{0}`; write d, Space, Ctrl-l, PgUp, Tab, F5")]
    UnknownKey(String),
    /// A value that is not the name of a key.
    #[error("`{0}` is not a key; quote a letter that YAML reads as something else")]
    NotAKey(String),
    /// A key bound to two actions.
    #[error("{key} is bound to both {first} and {second}; give one of them another key")]
    SharedKey {
        /// The key.
        key: String,
        /// The action that had it first.
        first: &'static str,
        /// The other action.
        second: &'static str,
    },
    /// An action that closes or explains the cockpit has no key.
    #[error("{0} needs a key, so that you can always leave and see the other keys")]
    NoWayOut(&'static str),
}

/// Every mistake in a keymap file, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeymapError(pub Vec<(usize, KeymapMistake)>);

impl fmt::Display for KeymapError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (line, mistake)) in self.0.iter().enumerate() {
            write!(formatter, "{}line {line}: {mistake}", if place > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for KeymapError {}

/// Keys and the actions they are bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keymap {
    /// Name of the keymap.
    pub name: String,
    keys: HashMap<Action, Vec<Key>>,
    actions: HashMap<Key, Action>,
}

impl Default for Keymap {
    fn default() -> Self {
        let keys: HashMap<_, _> = TABLE.iter().map(|entry| (entry.action, entry.keys.to_vec())).collect();
        let actions = TABLE.iter().flat_map(|entry| entry.keys.iter().map(|key| (*key, entry.action))).collect();
        Self { name: "default".to_owned(), keys, actions }
    }
}

impl Keymap {
    /// Parses a keymap from YAML.
    ///
    /// # Errors
    /// Returns an error that lists every mistake with its line.
    pub fn parse(text: &str) -> Result<Self, KeymapError> {
        let (tree, problems) = yaml::parse(text)
            .map_err(|error| KeymapError(vec![(error.place.0, KeymapMistake::Yaml(error.message))]))?;
        let line = |path: &str| yaml::locate(text, path, Part::Key(0)).0;
        let mut wrong: Vec<(usize, KeymapMistake)> = problems
            .iter()
            .take(max_listed(text))
            .map(|problem| {
                (yaml::locate(text, &problem.path, problem.part).0, KeymapMistake::Yaml(problem.to_string()))
            })
            .collect();
        let Some(fields) = tree.as_object() else { return Err(KeymapError(vec![(1, KeymapMistake::NotAKeymap)])) };
        for field in fields.keys().filter(|field| !matches!(field.as_str(), "name" | "keys")).take(max_listed(text)) {
            wrong.push((line(field), KeymapMistake::UnknownField(field.clone())));
        }
        let name = fields.get("name").and_then(Value::as_str).unwrap_or("own").to_owned();
        let mut map = Self { name, ..Self::default() };
        let empty = serde_json::Map::new();
        let listed = fields.get("keys").and_then(Value::as_object).unwrap_or(&empty);
        let mut lines: HashMap<Action, usize> = HashMap::new();
        for (action, keys) in listed {
            if wrong.len() > max_listed(text) {
                break;
            }
            let path = format!("keys.{action}");
            match (find_entry(action), parse_keys(keys)) {
                (Err(mistake), _) | (_, Err(mistake)) => wrong.push((line(&path), mistake)),
                (Ok(entry), Ok(keys)) => {
                    lines.insert(entry.action, line(&path));
                    map.keys.insert(entry.action, keys);
                }
            }
        }
        wrong.extend(map.index_keys(&lines));
        if wrong.is_empty() { Ok(map) } else { Err(KeymapError(wrong)) }
    }

    /// Builds the index from key to action; returns a mistake for every key bound to two actions.
    fn index_keys(&mut self, lines: &HashMap<Action, usize>) -> Vec<(usize, KeymapMistake)> {
        let mut wrong = Vec::new();
        self.actions.clear();
        for entry in TABLE {
            for key in self.keys.get(&entry.action).into_iter().flatten() {
                let Some(other) = self.actions.insert(*key, entry.action) else { continue };
                let at = lines.get(&entry.action).or_else(|| lines.get(&other)).copied().unwrap_or(1);
                let (key, first) = (key.plain_name(), action_name(other));
                wrong.push((at, KeymapMistake::SharedKey { key, first, second: entry.name }));
            }
        }
        for needed in [Action::Quit, Action::Back, Action::Help, Action::Confirm] {
            if self.keys.get(&needed).is_none_or(Vec::is_empty) {
                let at = lines.get(&needed).copied().unwrap_or(1);
                wrong.push((at, KeymapMistake::NoWayOut(action_name(needed))));
            }
        }
        wrong
    }

    /// Returns the action a key is bound to.
    #[must_use]
    pub fn action_of(&self, key: Key) -> Option<Action> {
        self.actions.get(&key).copied()
    }

    /// Returns the keys of an action.
    #[must_use]
    pub fn keys_of(&self, action: Action) -> &[Key] {
        self.keys.get(&action).map_or(&[], Vec::as_slice)
    }

    /// Returns the name of the key displayed for an action.
    #[must_use]
    pub fn key_of(&self, action: Action) -> String {
        self.keys_of(action).first().map_or_else(String::new, |key| key.name())
    }

    /// Returns a hint for use inside tmux if its prefix key, which tmux intercepts, is bound to an action.
    #[must_use]
    pub fn prefix_hint(&self, prefix: &str) -> Option<String> {
        // tmux writes C-b for Ctrl-b.
        let name = prefix.strip_prefix("C-").map_or_else(|| prefix.to_owned(), |rest| format!("Ctrl-{rest}"));
        let action = self.action_of(Key::parse(&name)?)?;
        Some(format!("{name} is tmux's prefix: press it twice for {}, or bind another key", action_name(action)))
    }
}

fn action_name(action: Action) -> &'static str {
    entry_of(action).map_or("", |entry| entry.name)
}

fn find_entry(name: &str) -> Result<&'static ActionEntry, KeymapMistake> {
    TABLE.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let near = TABLE
            .iter()
            .max_by(|a, b| strsim::jaro_winkler(a.name, name).total_cmp(&strsim::jaro_winkler(b.name, name)));
        KeymapMistake::UnknownAction { name: name.to_owned(), near: near.map_or("", |entry| entry.name) }
    })
}

fn parse_keys(value: &Value) -> Result<Vec<Key>, KeymapMistake> {
    match value {
        Value::Array(keys) => keys.iter().map(parse_key).collect(),
        other => parse_key(other).map(|key| vec![key]),
    }
}

fn parse_key(value: &Value) -> Result<Key, KeymapMistake> {
    let name = match value {
        Value::String(name) => name.clone(),
        // YAML reads unquoted digits as numbers.
        Value::Number(digit) => digit.to_string(),
        other => return Err(KeymapMistake::NotAKey(other.to_string())),
    };
    Key::parse(&name).ok_or(KeymapMistake::UnknownKey(name))
}

#[cfg(test)]
mod tests {
    use super::{Keymap, KeymapError, KeymapMistake};
    use crate::cockpit::action::{Action, ChartAction, Key, TABLE};
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    #[test]
    fn the_shipped_keymap_is_the_table() {
        let text = include_str!("../../keymaps/default.yaml");
        assert_eq!(Keymap::parse(text), Ok(Keymap::default()));
        assert!(TABLE.iter().all(|entry| text.contains(&format!("\n  {}: ", entry.name))), "every action is named");
        let hjkl = Keymap::parse(include_str!("../../keymaps/hjkl.yaml")).unwrap();
        assert_eq!(hjkl.action_of(Key::parse("h").unwrap()), Some(Action::Chart(ChartAction::Left)));
    }

    #[test]
    fn keys_have_names_and_lead_back() {
        let keys = Keymap::default();
        assert_eq!(keys.key_of(Action::ShiftDown), "d");
        assert_eq!(keys.key_of(Action::Chart(ChartAction::Left)), "←");
        assert_eq!(keys.key_of(Action::Repaint), "Ctrl-l");
        for entry in TABLE {
            for key in entry.keys {
                assert_eq!(Key::parse(&key.plain_name()), Some(*key), "{}", key.plain_name());
            }
        }
        let event = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(keys.action_of(Key::from_event(event)), Some(Action::Quit));
        // Most terminals fold Shift into the character; some also report it as a modifier.
        let event = KeyEvent::new(KeyCode::Char('?'), KeyModifiers::SHIFT);
        assert_eq!(keys.action_of(Key::from_event(event)), Some(Action::Help));
    }

    #[test]
    fn own_keys_replace_those_of_the_table() {
        let keys = Keymap::parse("name: mine\nkeys:\n  shift-down: [J, F5]\n  axis: 9\n  ranks: F9\n").unwrap();
        assert_eq!((keys.name.as_str(), keys.key_of(Action::ShiftDown).as_str()), ("mine", "J"));
        assert_eq!(keys.action_of(Key::parse("d").unwrap()), None);
        assert_eq!(keys.action_of(Key::parse("9").unwrap()), Some(Action::Chart(ChartAction::Axis)));
        assert_eq!(keys.key_of(Action::ShiftUp), "u");
    }

    #[test]
    fn mistakes_are_named_with_their_lines() {
        use KeymapMistake::{NoWayOut, SharedKey, UnknownAction, UnknownField, UnknownKey};
        let shared = SharedKey { key: "u".to_owned(), first: "shift-up", second: "stop" };
        let table = [
            ("keys:\n  shift-donw: [J]\n", 2, UnknownAction { name: "shift-donw".to_owned(), near: "shift-down" }),
            ("keys:\n  stop: [u]\n", 2, shared),
            ("keys:\n  stop: [Hyper-q]\n", 2, UnknownKey("Hyper-q".to_owned())),
            ("keys:\n  close: []\n", 2, NoWayOut("close")),
            ("name: x\nkesy: {}\n", 2, UnknownField("kesy".to_owned())),
        ];
        for (text, line, mistake) in table {
            assert_eq!(Keymap::parse(text), Err(KeymapError(vec![(line, mistake)])), "{text}");
        }
        let both = Keymap::parse("keys:\n  shift-donw: [J]\n  close: []\n").unwrap_err();
        assert_eq!(
            both.to_string(),
            "line 2: unknown action `shift-donw`; did you mean `shift-down`?\n\
             line 3: close needs a key, so that you can always leave and see the other keys"
        );
    }

    #[test]
    fn the_prefix_of_tmux_is_pointed_out() {
        assert_eq!(Keymap::default().prefix_hint("C-b"), None);
        let said = Keymap::default().prefix_hint("C-l").unwrap();
        assert_eq!(said, "Ctrl-l is tmux's prefix: press it twice for repaint, or bind another key");
    }
}
