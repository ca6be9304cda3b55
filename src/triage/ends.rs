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
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    number: Option<i32>,
    /// The entry of the catalogue that its patterns belong to.
    entry: String,
    /// Statuses of Windows, in hexadecimal digits.
    #[serde(default)]
    windows: Vec<String>,
    /// Whether the words tell of it alone on a line.
    #[serde(default = "yes")]
    alone: bool,
    /// The words of glibc and bash, the English one first.
    #[serde(default)]
    words: Vec<String>,
    /// The words of zsh.
    #[serde(default)]
    zsh: Option<String>,
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
        let python = self.number.filter(|number| *number >= SMALLEST).map(|number| -number);
        let of_shell = self.number.map(|number| OF_SHELL + number);
        let unix = python.into_iter().chain(of_shell).map(|status| status.to_string());
        let windows = self.windows.iter().flat_map(|digits| {
            let status = u32::from_str_radix(digits, 16).ok();
            let decimal = status.into_iter().flat_map(|status| [status.to_string(), status.cast_signed().to_string()]);
            decimal.chain([format!("0x{digits}")])
        });
        unix.chain(windows).collect()
    }
}

impl Forms {
    /// Returns the patterns of an entry. A form with a part that its signals lack is none.
    fn fill(&self, signals: &[&Signal]) -> Vec<String> {
        let of_each = |part: &dyn Fn(&Signal) -> Vec<String>| -> Option<String> {
            let texts: Vec<String> = signals.iter().flat_map(|signal| part(signal)).collect();
            let escaped: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
            (!escaped.is_empty()).then(|| format!("(?:{})", escaped.join("|")))
        };
        let parts = [
            ("{names}", of_each(&|signal| signal.name.clone().into_iter().collect())),
            ("{words}", of_each(&|signal| signal.words.clone())),
            ("{english}", of_each(&|signal| signal.words.first().cloned().into_iter().collect())),
            ("{zsh}", of_each(&|signal| signal.zsh.clone().into_iter().collect())),
            ("{statuses}", of_each(&Signal::statuses)),
            ("{numbers}", of_each(&|signal| signal.number.iter().map(ToString::to_string).collect())),
        ];
        let filled = |form: &String| {
            parts.iter().try_fold(form.clone(), |form, (name, texts)| match texts {
                _ if !form.contains(name) => Some(form),
                Some(texts) => Some(form.replace(name, texts)),
                None => None,
            })
        };
        let alone = Some(&self.alone).filter(|_| signals.iter().all(|signal| signal.alone));
        alone.into_iter().chain(&self.told).filter_map(filled).collect()
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

    /// How launchers tell of a status.
    const BY_STATUS: [&str; 15] = [
        "[launch.py:321:sigkill_handler] ['python', 't.py'] exits with return code = {}",
        "  exitcode  : {} (pid: 71233)",
        "E1127 12:00:01.000000 99 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {}) local_rank: 0 (pid: 9)",
        "subprocess.CalledProcessError: Command '['t.py']' returned non-zero exit status {}.",
        "trainer-1 exited with code {}",
        "Process finished with exit code {}",
        "srun: error: node1: task 0: Exited with exit code {}",
        "make: *** [Makefile:3: train] Error {}",
        "make: *** [Makefile:3: train] Fehler {}",
        "    Exit Code:    {}",
        "{\"Status\":\"exited\",\"ExitCode\":{},\"Error\":\"\"}",
        "a1b2c3d4   train   \"python t.py\"   Exited ({}) 2 minutes ago",
        "The replica workerpool0-0 exited with a non-zero status of {}.",
        "User process 'python' exited with status code {}.",
        "Process 1 exit with status code {}.",
    ];

    fn told(catalogue: &Catalogue, line: &str) -> Option<String> {
        scan_line(line.as_bytes(), 1, catalogue).map(|finding| finding.name)
    }

    #[test]
    fn every_word_and_status_of_every_signal_leads_to_its_entry() {
        let catalogue = Catalogue::build(None).unwrap();
        let file = document::read::<EndsFile>("ends", SHIPPED, |_| Vec::new()).unwrap();
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
                check(format!("train.ksh[3]: 999 {word}"));
                check(format!("[1]+  {word}                 python train.py"));
                check(format!("srun: error: node1: task 3: {word}"));
                if signal.alone {
                    check(word.clone());
                    check(format!("{word} (core dumped)"));
                    check(format!("{word}（核心已转储）"));
                    check(format!("{word}: {}", signal.number.unwrap()));
                }
            }
            for status in signal.statuses() {
                for told in BY_STATUS {
                    check(told.replace("{}", &status));
                }
            }
            let (Some(name), Some(number), Some(zsh)) = (&signal.name, signal.number, &signal.zsh) else { continue };
            check(format!("[1]  + 12345 {zsh}     python train.py"));
            check(format!("zsh: {zsh} (core dumped)  python train.py"));
            check(format!("train.sh:3: {zsh}  python train.py"));
            check(format!("fish: Job 1, 'python train.py' terminated by signal {name} (reason)"));
            check(format!("fish: “python train.py” wurde durch das Signal {name} beendet"));
            check(format!("exited: train (terminated by {name}; not expected)"));
            check(format!("App [train:0] exited with code [0] via signal [{name}]"));
            check(format!("systemd[1]: train.service: Main process exited, code=killed, status={number}/X"));
            check(format!("process rank 0 with PID 7 on node a exited on signal {number}."));
            check(format!("Exited with signal termination: {number}."));
            check(format!("\t(0) Abnormal termination (signal {number})"));
            check(format!("The replica workerpool0-0 exited with a non-zero status of {number}({name})."));
            check(format!("  traceback : Signal {number} ({name}) received by PID 9"));
            check(format!(
                "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal {name}"
            ));
            check(format!("Command '['t.py']' died with <Signals.{name}: {number}>."));
            assert_eq!(*name, signal_name(number), "the number of {name}");
            let exit = Exit::of_command(Some(super::OF_SHELL + number), None);
            let crashes = ["segmentation-fault", "bus-error", "aborted"].contains(&signal.entry.as_str());
            assert_eq!(exit.is_crash(), crashes, "{name}");
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
