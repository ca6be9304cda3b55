//! Reads a shell script for the line that starts Python, and no further: nothing is expanded, nothing is run.

use crate::config::command::invocation::{Invocation, Target, find_script};
use crate::untrusted::words::{self, LetterPlace};

/// Maximum lines examined.
const LINES: usize = 2_000;

/// The line of a shell script that starts Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonLine {
    /// Its words, with variables as written.
    pub words: Vec<String>,
    /// Where the Python script is in them.
    pub invocation: Invocation,
    /// Whether it passes the shell script's arguments on: `"$@"`.
    pub passes_arguments: bool,
}

/// Finds the first line that starts a Python script.
pub fn find_python_line(text: &str) -> Option<PythonLine> {
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    joined.lines().take(LINES).find_map(|line| {
        let mut words = split_words(line);
        let settings = words.iter().take_while(|word| is_setting(word)).count();
        words.drain(..settings);
        if words.first().is_some_and(|word| word == "exec") {
            words.remove(0);
        }
        let invocation = find_script(&words).filter(|found| !matches!(found.target, Target::Program(_)))?;
        let passes_arguments =
            words.iter().skip(invocation.arguments).any(|word| ["$@", "$*", "${@}"].contains(&word.as_str()));
        Some(PythonLine { words, invocation, passes_arguments })
    })
}

/// Reports whether a word sets a variable for the command after it.
fn is_setting(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// Returns the words of a line up to a pipe, a redirection, `;`, `&` or a comment.
fn split_words(line: &str) -> Vec<String> {
    let ends = |letter, place| match letter {
        '#' => place == LetterPlace::Begin,
        _ => place != LetterPlace::Quoted && matches!(letter, '|' | ';' | '&' | '>' | '<'),
    };
    words::split_words(line, ends).words
}

#[cfg(test)]
mod tests {
    use super::find_python_line;
    use crate::config::command::invocation::Target;
    use proptest::prelude::*;

    #[test]
    fn the_python_line_is_found_among_the_rest() {
        let text = "#!/bin/bash\nset -e\nexport A=1\necho \"python is used\" # python no.py\n\
                    CUDA_VISIBLE_DEVICES=0 python -u train.py \\\n  --name 'a b' --lr $LR \"$@\" 2>&1 | tee log\npython other.py\n";
        let found = find_python_line(text).unwrap();
        assert_eq!(found.invocation.target, Target::Script("train.py".to_owned()));
        assert_eq!(found.words[found.invocation.arguments..], ["--name", "a b", "--lr", "$LR", "$@", "2"]);
        assert!(found.passes_arguments);
        assert!(!find_python_line("exec python train.py --lr 1").unwrap().passes_arguments);
        assert_eq!(find_python_line("#!/bin/sh\nmake train\n"), None);
    }

    proptest! {
        #[test]
        fn no_text_brings_it_down(text in "(?s).{0,200}") {
            find_python_line(&text);
        }
    }
}
