//! The run file of a command that was typed: `downshift run -- python train.py`.

use super::TASK;
use super::template::escape;
use crate::config::yaml;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Endings of files that an interpreter runs.
const SCRIPTS: [&str; 8] = ["py", "sh", "bash", "ipynb", "jl", "R", "lua", "pl"];
/// Programs that get a line of words with `-c`.
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "zsh"];
/// Maximum length of a name.
const MAX_NAME: usize = 48;

/// Returns the run file for a program and its arguments, which hold no placeholders, with further sections.
#[must_use]
pub fn run_file(words: &[String], sections: Map<String, Value>) -> String {
    let command: Vec<String> = words.iter().map(|word| escape(word)).collect();
    let mut tree = json!({ "name": run_name(words), "task": TASK, "command": command });
    if let Value::Object(tree) = &mut tree {
        tree.extend(sections);
    }
    yaml::write(&tree)
}

/// Returns the words of the line that a shell gets: `sh -c "cd a && python train.py"`.
fn shell_words(words: &[String]) -> Option<Vec<String>> {
    let (shell, rest) = words.split_first()?;
    let shell = Path::new(shell).file_name()?.to_str()?;
    let mut options = rest.iter().take_while(|word| word.starts_with('-'));
    let option = options.position(|option| !option.starts_with("--") && option.ends_with('c'));
    let line = rest.get(option.filter(|_| SHELLS.contains(&shell))? + 1)?;
    let is_border = |letter: char| letter.is_whitespace() || "'\"();&|".contains(letter);
    Some(line.split(is_border).filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

/// Returns the first script of words; in the line of a shell, a Python script before one that the line reads settings from.
fn first_script<'a>(words: &'a [String], of_shell: bool) -> Option<&'a String> {
    let ending = |word: &'a String| Path::new(word).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let is_read = |at: usize| at > 0 && ["source", "."].contains(&words[at - 1].as_str());
    let mut scripts =
        words.iter().enumerate().filter(|(_, word)| !word.starts_with('-') && SCRIPTS.contains(&ending(word)));
    if of_shell {
        let python = scripts.clone().find(|(_, word)| ending(word) == "py");
        return python.or_else(|| scripts.find(|(at, _)| !is_read(*at))).map(|(_, word)| word);
    }
    scripts.next().map(|(_, word)| word)
}

/// Returns the name of a run: that of the script, the module or the program.
fn run_name(words: &[String]) -> String {
    let of_shell = shell_words(words);
    let inner = of_shell.as_deref().unwrap_or(words);
    let stem = |word: &String| Path::new(word).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let module = inner.iter().position(|word| word == "-m").and_then(|at| inner.get(at + 1));
    let module = module.and_then(|module| module.rsplit('.').next()).map(str::to_owned);
    let script = first_script(inner, of_shell.is_some()).and_then(stem);
    let name = script.or(module).or_else(|| words.first().and_then(stem)).unwrap_or_default();
    let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let name: String = name.chars().map(|letter| if fits(letter) { letter } else { '-' }).collect();
    let name: String = name.trim_start_matches(['.', '-']).chars().take(MAX_NAME).collect();
    if name.is_empty() { TASK.to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::{run_file, run_name};
    use crate::config::run::{AsWritten, Run, Source};
    use proptest::prelude::*;
    use serde_json::Map;
    use std::path::Path;

    #[test]
    fn a_typed_command_is_named_after_its_script() {
        for (line, name) in [
            ("python train.py --lr 1e-3", "train"),
            ("torchrun --nproc_per_node 2 examples/sft.py", "sft"),
            ("python -m trl.scripts.sft --x 1", "sft"),
            ("./train_single_gpu.sh lora_r16.yaml", "train_single_gpu"),
            ("/opt/bin/trainer.bin --config a.json", "trainer"),
            ("nanotron", "nanotron"),
            ("./my run.py", "my-run"),
            ("...", "command"),
        ] {
            let words: Vec<String> = if line == "./my run.py" {
                vec![line.to_owned()]
            } else {
                line.split(' ').map(str::to_owned).collect()
            };
            assert_eq!(run_name(&words), name, "{line}");
        }
    }

    #[test]
    fn a_line_of_a_shell_is_named_after_the_script_in_it() {
        for (line, name) in [
            ("cd runs && python train.py --lr 1e-3", "train"),
            ("source env/bin/activate; exec python -m trl.scripts.sft", "sft"),
            ("source ./env.sh && python train.py", "train"),
            (". ./env.sh; python -m trl.scripts.sft", "sft"),
            ("sh run_all.sh", "run_all"),
            ("make", "bash"),
        ] {
            assert_eq!(run_name(&["/bin/bash", "-lc", line].map(str::to_owned)), name, "{line}");
            assert_eq!(run_name(&["bash", "-l", "-c", line].map(str::to_owned)), name, "{line}");
        }
    }

    proptest! {
        #[test]
        fn every_argument_arrives_as_it_was_typed(words in prop::collection::vec("[^\0]{1,20}", 1..5)) {
            prop_assume!(!words[0].trim().is_empty());
            let text = run_file(&words, Map::new());
            let source = Source { file: "x", text: &text, base: Path::new("/here"), overrides: &[] };
            let run = Run::read(&source, &AsWritten).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let spec = run.command.unwrap();
            let attempt = crate::config::command::AttemptContext {
                run_dir: "/run".into(), attempt_dir: "/run/1".into(), rung_name: "full".into(),
                attempt: 1, ..crate::config::command::AttemptContext::default()
            };
            let launch = crate::config::command::resolve_launch(&spec, &run.rungs[0].preset, &attempt);
            prop_assert_eq!(launch.argv, words);
            prop_assert_eq!(launch.directory, Path::new("/here"));
        }
    }
}
