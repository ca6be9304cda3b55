//! How shells, launchers and schedulers tell that a signal ended a process: `assets/ends.yaml` as patterns of the catalogue.
//!
//! ```text
//! forms × signals of one entry ─▶ patterns ─▶ segmentation-fault, bus-error, aborted, killed, ended-from-outside
//! ```

use crate::config::document::{self, DocumentError};
use serde::Deserialize;
use std::collections::BTreeMap;

const SHIPPED: &str = include_str!("../../assets/ends.yaml");
/// Status of a shell for a program that a signal ended, less the signal's number.
const OF_SHELL: i32 = 128;
/// The smallest signal whose negative number is a status: -1 and -2 are those of any failure.
const SMALLEST: i32 = 4;

/// Forms, filled with what tells of a signal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Forms {
    /// The words alone on a line.
    alone: String,
    /// All others.
    told: Vec<String>,
}

/// A signal, and what tells of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signal {
    name: String,
    number: i32,
    /// The entry of the catalogue that its patterns belong to.
    entry: String,
    /// Statuses of Windows, in hexadecimal digits.
    #[serde(default)]
    windows: Vec<String>,
    /// Whether the words tell of it alone on a line.
    #[serde(default = "yes")]
    alone: bool,
    /// The words of glibc and bash.
    words: Vec<String>,
    /// The words of zsh.
    zsh: String,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndsFile {
    forms: Forms,
    signals: Vec<Signal>,
}

impl Signal {
    /// Returns the status of the process in every number system.
    fn statuses(&self) -> Vec<String> {
        let python = Some(-self.number).filter(|_| self.number >= SMALLEST);
        let unix = python.into_iter().chain([OF_SHELL + self.number]).map(|status| status.to_string());
        let windows = self.windows.iter().flat_map(|digits| {
            let status = u32::from_str_radix(digits, 16).ok();
            let decimal = status.into_iter().flat_map(|status| [status.to_string(), status.cast_signed().to_string()]);
            decimal.chain([format!("0x{digits}")])
        });
        unix.chain(windows).collect()
    }
}

impl Forms {
    /// Returns the patterns of an entry.
    fn fill(&self, signals: &[&Signal]) -> Vec<String> {
        let any = |texts: Vec<String>| {
            let escaped: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
            format!("(?:{})", escaped.join("|"))
        };
        let each =
            |part: &dyn Fn(&Signal) -> Vec<String>| any(signals.iter().flat_map(|signal| part(signal)).collect());
        let (names, words) = (each(&|signal| vec![signal.name.clone()]), each(&|signal| signal.words.clone()));
        let zsh = each(&|signal| vec![signal.zsh.clone()]);
        let (statuses, numbers) = (each(&Signal::statuses), each(&|signal| vec![signal.number.to_string()]));
        let alone = Some(&self.alone).filter(|_| signals.iter().all(|signal| signal.alone));
        let filled = |form: &String| {
            let form = form.replace("{names}", &names).replace("{words}", &words).replace("{zsh}", &zsh);
            form.replace("{statuses}", &statuses).replace("{numbers}", &numbers)
        };
        alone.into_iter().chain(&self.told).map(filled).collect()
    }
}

/// Returns the patterns for each entry of the catalogue.
///
/// # Errors
/// Returns an error when the shipped file is broken.
pub fn patterns() -> Result<BTreeMap<String, Vec<String>>, DocumentError> {
    let file: EndsFile = document::read("assets/ends.yaml", SHIPPED, |_| Vec::new())?;
    let mut of_entry: BTreeMap<String, Vec<&Signal>> = BTreeMap::new();
    for signal in &file.signals {
        of_entry.entry(signal.entry.clone()).or_default().push(signal);
    }
    Ok(of_entry.into_iter().map(|(entry, signals)| (entry, file.forms.fill(&signals))).collect())
}

#[cfg(test)]
mod tests {
    use super::{EndsFile, SHIPPED};
    use crate::config::document;
    use crate::protocol::exit::{Exit, signal_name};
    use crate::triage::catalogue::Catalogue;
    use crate::triage::scan::scan_line;

    fn told(catalogue: &Catalogue, line: &str) -> Option<String> {
        scan_line(line.as_bytes(), 1, catalogue).map(|finding| finding.name)
    }

    #[test]
    fn every_word_and_status_of_every_signal_leads_to_its_entry() {
        let (catalogue, file) =
            (Catalogue::build(None).unwrap(), document::read::<EndsFile>("ends", SHIPPED, |_| Vec::new()).unwrap());
        let mut wrong = Vec::new();
        for signal in &file.signals {
            let mut check = |line: String| {
                let found = told(&catalogue, &line);
                if found.as_deref() != Some(&signal.entry) {
                    wrong.push(format!("{}, not {found:?}: {line}", signal.entry));
                }
            };
            for word in &signal.words {
                check(format!("./t.sh: line 3:   999 {word}                 python train.py"));
                check(format!("./t.sh：第 3 行：   999 {word}               （核心已转储） python train.py"));
                check(format!("./t.sh: 3. sor: 999 {word} (core készült) python train.py"));
                check(format!("[1]+  {word}                 python train.py"));
                if signal.alone {
                    check(word.clone());
                    check(format!("{word} (core dumped)"));
                    check(format!("{word}（核心已转储）"));
                    check(format!("{word}: {}", signal.number));
                }
            }
            check(format!("[1]  + 12345 {}     python train.py", signal.zsh));
            check(format!("zsh: {} (core dumped)  python train.py", signal.zsh));
            for status in signal.statuses() {
                check(format!("[launch.py:321:sigkill_handler] ['python', 't.py'] exits with return code = {status}"));
                check(format!("  exitcode  : {status} (pid: 71233)"));
                check(format!(
                    "subprocess.CalledProcessError: Command '['t.py']' returned non-zero exit status {status}."
                ));
                check(format!("trainer-1 exited with code {status}"));
                check(format!("Process finished with exit code {status}"));
            }
            check(format!("fish: Job 1, 'python train.py' terminated by signal {} (reason)", signal.name));
            check(format!("process rank 0 with PID 7 on node a exited on signal {}.", signal.number));
            assert_eq!(signal.name, signal_name(signal.number), "the number of {}", signal.name);
            let exit = Exit::of_command(Some(super::OF_SHELL + signal.number), None);
            assert_eq!(
                exit.is_crash(),
                ["segmentation-fault", "bus-error", "aborted"].contains(&signal.entry.as_str())
            );
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
