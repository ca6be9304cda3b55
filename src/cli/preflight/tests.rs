use super::{Preflight, Start};
use crate::config::run::{AsWritten, Run, Source, TaskSections};
use crate::trainer::{Evals, Prospect, Refusal, Trainer, WorkerArgs};
use std::fs;
use std::path::PathBuf;

/// A trainer that finds this.
struct Finds {
    looked: Result<Prospect, Refusal>,
    examined: Result<(), Refusal>,
}

impl Trainer for Finds {
    fn sections(&self) -> &dyn TaskSections {
        &AsWritten
    }

    fn work(&self, _: &WorkerArgs) -> Result<u8, Refusal> {
        Err(Refusal::new(1, "a check starts no worker"))
    }

    fn look_ahead(&self, _: &Run, _: &str) -> Result<Prospect, Refusal> {
        self.looked.clone()
    }

    fn examine(&self, _: &Run) -> Result<(), Refusal> {
        self.examined.clone()
    }

    fn measure(&self, _: &Run, _: usize, _: &[PathBuf]) -> Result<Evals, Refusal> {
        Err(Refusal::new(1, "a check measures nothing"))
    }
}

fn found() -> Prospect {
    Prospect { device: "cpu".to_owned(), samples: Some((1_200, 30)), parameters: Some(1_000), ..Prospect::default() }
}

/// Returns the rows of the list without their fixes, and the exit code and message of a start.
fn list(tokenizer: &str, finds: &Finds) -> (Vec<String>, Option<(u8, String)>) {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("whole.json"), "{}").unwrap();
    fs::write(place.path().join("cut.json"), "{").unwrap();
    let file = place.path().join(tokenizer).display().to_string();
    let tokenizer = if tokenizer == "bytes" { "bytes" } else { &file };
    let text = format!(
        "name: a\ntask: text\ndata: {{ tokenizer: {tokenizer} }}\ntraining: {{ steps: 4, micro_batch: 1 }}\n\
         optimizer: {{ lr: 0.1 }}\n"
    );
    let run = Run::read(&Source { file: "a.yaml", text: &text, base: place.path(), overrides: &[] }, &AsWritten);
    let (shares, can_wait) = (true, true);
    let start =
        Start { device: "cpu", runs: place.path(), trainer: finds, approved: false, nodes: 1, shares, can_wait };
    let list = Preflight::of(Ok(run.unwrap()), start);
    let rows = list.checks.iter().map(|check| check.to_string().lines().next().unwrap_or_default().to_owned());
    let rows = rows.map(|row| row.replace(&place.path().display().to_string(), "PLACE")).collect();
    (rows, list.clear().err().map(|failure| (failure.code, failure.message)))
}

/// Returns the name and verdict of each row.
fn verdicts(rows: &[String]) -> Vec<String> {
    rows.iter().map(|row| row.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn all_that_a_start_needs_is_one_list() {
    let (rows, failure) = list("whole.json", &Finds { looked: Ok(found()), examined: Ok(()) });
    assert_eq!(failure, None);
    // Other runs of whoever tests may train on this machine.
    let verdicts: Vec<String> =
        verdicts(&rows).into_iter().map(|row| row.replace("warn others", "ok others")).collect();
    assert_eq!(verdicts, ["ok config", "ok device", "ok data", "ok tokenizer", "ok others", "ok disk"]);
    assert_eq!(rows[2], "ok    data            1 200 training and 30 validation samples");
    assert_eq!(rows[3], "ok    tokenizer       PLACE/whole.json");
}

#[test]
fn each_failure_has_its_row_and_the_rest_is_checked_all_the_same() {
    let no_data = || Err(Refusal::new(15, "not found"));
    let no_device = || Err(Refusal::new(13, "no such device"));
    let huge = Prospect { parameters: Some(1 << 60), ..found() };
    let cases: [(&str, Finds, &[&str], u8); 7] = [
        ("cut.json", Finds { looked: no_data(), examined: Ok(()) }, &["fail tokenizer", "ok disk"], 15),
        ("missing.json", Finds { looked: no_data(), examined: Ok(()) }, &["fail tokenizer", "ok disk"], 15),
        ("whole.json", Finds { looked: no_data(), examined: Ok(()) }, &["fail data", "ok disk"], 15),
        ("bytes", Finds { looked: no_data(), examined: Ok(()) }, &["fail data", "ok disk"], 15),
        ("bytes", Finds { looked: Ok(huge), examined: Ok(()) }, &["ok data", "fail disk"], 1),
        ("bytes", Finds { looked: no_device(), examined: Ok(()) }, &["fail device", "ok disk"], 13),
        (
            "bytes",
            Finds { looked: Ok(found()), examined: Err(Refusal::new(14, "cut")) },
            &["fail weights", "ok disk"],
            14,
        ),
    ];
    for (tokenizer, finds, parts, code) in cases {
        let (rows, failure) = list(tokenizer, &finds);
        let verdicts = verdicts(&rows);
        assert!(parts.iter().all(|part| verdicts.iter().any(|row| row == part)), "{parts:?}: {rows:?}");
        assert_eq!(verdicts.iter().filter(|row| row.starts_with("fail")).count(), 1, "{rows:?}");
        assert_eq!(failure.map(|(code, _)| code), Some(code), "{rows:?}");
    }
}
