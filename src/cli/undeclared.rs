//! Arguments of a command that its script would reject, as far as the source of the script shows.

use super::init::script;
use crate::config::command::CommandSpec;
use crate::config::typed::nearest;
use crate::init::flag::Flag;
use crate::init::given::undeclared_options;
use crate::untrusted::text;
use std::path::Path;

/// Returns a sentence for each option of a command and of its resume that the source of the script does not declare.
pub fn undeclared_arguments(command: &CommandSpec) -> Vec<String> {
    let resume = command.resume.iter().flat_map(|resume| &resume.arguments);
    let more: Vec<String> = command.defaults.keys().chain(resume).cloned().collect();
    find_undeclared(&command.command, &command.directory, &more)
}

/// The same for the words of one start, without those of its resume.
pub fn undeclared_words(words: &[String], directory: &Path) -> Vec<String> {
    find_undeclared(words, directory, &[])
}

fn find_undeclared(command: &[String], directory: &Path, more: &[String]) -> Vec<String> {
    let Ok(found) = script::find(command, directory) else { return Vec::new() };
    let declared = found.program.as_ref().zip(found.declared().ok());
    let Some((_, declared)) = declared.filter(|(program, declared)| program.declares_all(declared)) else {
        return Vec::new();
    };
    // A shell script may keep its own arguments to itself.
    let passed = found.words.arguments.iter().chain(more).filter(|_| found.words.open);
    let arguments: Vec<String> = found.words.fixed.iter().chain(passed).cloned().collect();
    let known: Vec<&str> = declared.flags.iter().map(Flag::spelling).collect();
    let sentence = |option: &str| {
        let script = text::path(&found.script);
        let meant = nearest(option, &known).map_or_else(String::new, |word| format!("; did you mean `{word}`?"));
        let option = text::escape_line(option);
        format!("{script} declares no argument {option}, as far as its source shows{meant}")
    };
    undeclared_options(&arguments, &declared.flags).into_iter().map(sentence).collect()
}
