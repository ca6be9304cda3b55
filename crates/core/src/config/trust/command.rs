//! Everything that a command is given, shown before it starts. Numbers need no approval, so another
//! learning rate does not ask again; a text may be the name of a program.

use super::{Access, Grant, new_grant};
use crate::config::command::nodes::NodePlace;
use crate::config::command::{CommandSpec, started_words};
use crate::config::quality::Quality;
use crate::config::run::Run;
use crate::format::quoted;
use serde_json::Value;

/// Returns the grants of the command that measures quality. What its placeholders stand for is listed with the run's
/// own command.
pub fn quality_grants(quality: &Quality) -> Vec<Grant> {
    if quality.command.is_empty() {
        return Vec::new();
    }
    let command = new_grant(Access::Command(quote_words(&quality.command)), "quality.command".to_owned());
    let directory = quality.directory.iter();
    let directory = directory.map(|path| new_grant(Access::Directory(path.clone()), "quality.directory".to_owned()));
    [command].into_iter().chain(directory).collect()
}

/// Returns the grants of a command.
pub fn grants(spec: &CommandSpec, run: &Run) -> Vec<Grant> {
    let started = started_words(spec, run.rungs[0].preset.ranks, &NodePlace::default());
    let mut grants = vec![new_grant(Access::Command(quote_words(&started)), "command".to_owned())];
    let defaults: Vec<String> = spec.defaults.keys().cloned().collect();
    if !defaults.is_empty() {
        grants.push(new_grant(Access::Command(format!("… {}", quote_words(&defaults))), "defaults".to_owned()));
    }
    let resume = spec.resume.iter().filter(|resume| !resume.arguments.is_empty());
    grants.extend(resume.map(|resume| {
        new_grant(Access::Command(format!("… {}", quote_words(&resume.arguments))), "resume.arguments".to_owned())
    }));
    grants.push(new_grant(Access::Directory(spec.directory.clone()), "directory".to_owned()));
    let mut seen: Vec<Given> = Vec::new();
    for rung in 0..run.rungs.len() {
        let place = rung.checked_sub(1).map_or_else(String::new, |above| format!("ladder[{above}].set."));
        // A text that a rung above has is inherited, or known.
        let mut own = given_texts(&run.preset_tree(rung));
        own.retain(|given| !seen.contains(given));
        grants.extend(own.iter().map(|given| given.grant(&place)));
        seen.extend(own);
    }
    let variables = spec.resume.iter().flat_map(|resume| &resume.environment);
    grants.extend(variables.map(|(name, text)| {
        new_grant(Access::Variable(format!("{name}={text}")), format!("resume.environment.{name}"))
    }));
    let files = spec.files.iter();
    grants.extend(
        files.map(|(name, file)| new_grant(Access::Written(format!("{name}: {file}")), format!("files.{name}"))),
    );
    let touched = spec.save.iter().filter_map(|save| save.touch.as_ref());
    grants.extend(touched.map(|file| new_grant(Access::Written(file.clone()), "save.touch".to_owned())));
    // Of copies, only the copies are deleted.
    let deletes = spec.checkpoints.iter().filter(|checkpoints| checkpoints.keep_last.is_some() && !checkpoints.copy);
    grants.extend(deletes.map(|checkpoints| {
        new_grant(Access::Deletion(checkpoints.pattern.clone()), "checkpoints.keep_last".to_owned())
    }));
    grants
}

fn quote_words(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A variable or a knob whose value is a text.
#[derive(PartialEq)]
struct Given {
    path: String,
    text: String,
}

impl Given {
    fn grant(&self, place: &str) -> Grant {
        let key = format!("{place}{}", self.path);
        match self.path.strip_prefix("environment.") {
            Some(name) => new_grant(Access::Variable(format!("{name}={}", self.text)), key),
            None => new_grant(Access::Knob(format!("{}={}", self.path, self.text)), key),
        }
    }
}

/// Returns the variables and texts of a rung, variables first.
fn given_texts(knobs: &Value) -> Vec<Given> {
    let mut given = Vec::new();
    for section in ["environment", "training", "optimizer", "knobs"] {
        collect_texts(section, knobs.get(section).unwrap_or(&Value::Null), &mut given);
    }
    given
}

fn collect_texts(path: &str, value: &Value, given: &mut Vec<Given>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| collect_texts(&format!("{path}.{key}"), value, given));
        }
        Value::Array(items) => {
            let numbered = items.iter().enumerate();
            numbered.for_each(|(index, value)| collect_texts(&format!("{path}[{index}]"), value, given));
        }
        Value::String(text) => given.push(Given { path: path.to_owned(), text: text.clone() }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
