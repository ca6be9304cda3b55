//! Key bindings: the table of actions, overridden by your keymap file if there is one.
//!
//! ```yaml
//! name: mine
//! keys:
//!   shift-down: [J]        # replaces the default keys; unlisted actions keep theirs
//!   quit: [q, Ctrl-c]
//! ```
//! A file is rejected as a whole if it names an unknown action or key, binds one key to two actions, or
//! leaves a way out (`close`, `back`, `help`) without a key.

use super::action::{Action, Entry, Key, TABLE};
use crate::config::problem::max_listed;
use crate::config::yaml;
use serde_json::Value;
use std::collections::HashMap;

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
    /// Returns an error that lists every problem with its line, one per row.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (tree, problems) =
            yaml::parse(text).map_err(|error| format!("line {}: {}", error.place.0, error.message))?;
        let line = |path: &str| yaml::locate(text, path, 0).0;
        let mut wrong: Vec<String> = problems
            .iter()
            .take(max_listed(text))
            .map(|problem| format!("line {}: {problem}", line(&problem.path)))
            .collect();
        let Some(fields) = tree.as_object() else { return Err("line 1: a keymap is `name:` and `keys:`".to_owned()) };
        for field in fields.keys().filter(|field| !matches!(field.as_str(), "name" | "keys")).take(max_listed(text)) {
            wrong.push(format!("line {}: `{field}` is no part of a keymap; it has `name` and `keys`", line(field)));
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
            match (entry(action), keys_of(keys)) {
                (Err(why), _) | (_, Err(why)) => wrong.push(format!("line {}: {why}", line(&path))),
                (Ok(entry), Ok(keys)) => {
                    lines.insert(entry.action, line(&path));
                    map.keys.insert(entry.action, keys);
                }
            }
        }
        wrong.extend(map.index(&lines));
        if wrong.is_empty() { Ok(map) } else { Err(wrong.join("\n")) }
    }

    /// Builds the index from key to action; returns a problem for every key bound to two actions.
    fn index(&mut self, lines: &HashMap<Action, usize>) -> Vec<String> {
        let mut wrong = Vec::new();
        self.actions.clear();
        for entry in TABLE {
            for key in self.keys.get(&entry.action).into_iter().flatten() {
                let Some(other) = self.actions.insert(*key, entry.action) else { continue };
                let at = lines.get(&entry.action).or_else(|| lines.get(&other)).copied().unwrap_or(1);
                let (key, other) = (key.plain_name(), name_of(other));
                wrong.push(format!(
                    "line {at}: {key} would ask for both {other} and {}; give one of them another key",
                    entry.name
                ));
            }
        }
        for needed in [Action::Quit, Action::Back, Action::Help, Action::Confirm] {
            if self.keys.get(&needed).is_none_or(Vec::is_empty) {
                let at = lines.get(&needed).copied().unwrap_or(1);
                wrong.push(format!("line {at}: {} needs a key: nobody would find the way out", name_of(needed)));
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
    pub fn clash(&self, prefix: &str) -> Option<String> {
        // tmux writes C-b for Ctrl-b.
        let name = prefix.strip_prefix("C-").map_or_else(|| prefix.to_owned(), |rest| format!("Ctrl-{rest}"));
        let action = self.action_of(Key::parse(&name)?)?;
        Some(format!("{name} is tmux's prefix: press it twice for {}, or give that another key", name_of(action)))
    }
}

fn name_of(action: Action) -> &'static str {
    super::action::entry_of(action).map_or("", |entry| entry.name)
}

fn entry(name: &str) -> Result<&'static Entry, String> {
    TABLE.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let near = TABLE
            .iter()
            .max_by(|a, b| strsim::jaro_winkler(a.name, name).total_cmp(&strsim::jaro_winkler(b.name, name)));
        let near = near.map_or("", |entry| entry.name);
        format!("`{name}` is no action; did you mean `{near}`?")
    })
}

fn keys_of(value: &Value) -> Result<Vec<Key>, String> {
    let one = |value: &Value| -> Result<Key, String> {
        let name = match value {
            Value::String(name) => name.clone(),
            // YAML reads unquoted digits as numbers.
            Value::Number(digit) => digit.to_string(),
            other => return Err(format!("`{other}` is no key; quote it if it is one letter of YAML's own")),
        };
        Key::parse(&name).ok_or_else(|| format!("`{name}` is no key; write d, Space, Ctrl-l, PgUp, Tab, F5"))
    };
    match value {
        Value::Array(keys) => keys.iter().map(one).collect(),
        other => one(other).map(|key| vec![key]),
    }
}

#[cfg(test)]
mod tests {
    use super::Keymap;
    use crate::cockpit::action::{Action, Key, TABLE};
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    #[test]
    fn the_shipped_keymap_is_the_table() {
        let text = include_str!("../../keymaps/default.yaml");
        assert_eq!(Keymap::parse(text), Ok(Keymap::default()));
        assert!(TABLE.iter().all(|entry| text.contains(&format!("\n  {}: ", entry.name))), "every action is named");
        let hjkl = Keymap::parse(include_str!("../../keymaps/hjkl.yaml")).unwrap();
        assert_eq!(hjkl.action_of(Key::parse("h").unwrap()), Some(Action::Left));
    }

    #[test]
    fn keys_have_names_and_lead_back() {
        let keys = Keymap::default();
        assert_eq!(keys.key_of(Action::ShiftDown), "d");
        assert_eq!(keys.key_of(Action::Left), "←");
        assert_eq!(keys.key_of(Action::Repaint), "Ctrl-l");
        for entry in TABLE {
            for key in entry.keys {
                assert_eq!(Key::parse(&key.plain_name()), Some(*key), "{}", key.plain_name());
            }
        }
        let event = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(keys.action_of(Key::of(event)), Some(Action::Quit));
        // Most terminals fold Shift into the character; some also report it as a modifier.
        let event = KeyEvent::new(KeyCode::Char('?'), KeyModifiers::SHIFT);
        assert_eq!(keys.action_of(Key::of(event)), Some(Action::Help));
    }

    #[test]
    fn own_keys_replace_those_of_the_table() {
        let keys = Keymap::parse("name: mine\nkeys:\n  shift-down: [J, F5]\n  axis: 9\n").unwrap();
        assert_eq!((keys.name.as_str(), keys.key_of(Action::ShiftDown).as_str()), ("mine", "J"));
        assert_eq!(keys.action_of(Key::parse("d").unwrap()), None);
        assert_eq!(keys.action_of(Key::parse("9").unwrap()), Some(Action::Axis));
        assert_eq!(keys.key_of(Action::ShiftUp), "u");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let wrong = |text: &str| Keymap::parse(text).unwrap_err();
        let table = [
            ("keys:\n  shift-donw: [J]\n", "line 2: `shift-donw` is no action; did you mean `shift-down`?"),
            ("keys:\n  stop: [u]\n", "line 2: u would ask for both shift-up and stop; give one of them another key"),
            ("keys:\n  stop: [Hyper-q]\n", "line 2: `Hyper-q` is no key; write d, Space, Ctrl-l, PgUp, Tab, F5"),
            ("keys:\n  close: []\n", "line 2: close needs a key: nobody would find the way out"),
            ("name: x\nkesy: {}\n", "line 2: `kesy` is no part of a keymap; it has `name` and `keys`"),
        ];
        for (text, message) in table {
            assert_eq!(wrong(text), message);
        }
    }

    #[test]
    fn the_prefix_of_tmux_is_pointed_out() {
        assert_eq!(Keymap::default().clash("C-b"), None);
        let said = Keymap::default().clash("C-l").unwrap();
        assert_eq!(said, "Ctrl-l is tmux's prefix: press it twice for repaint, or give that another key");
    }
}
