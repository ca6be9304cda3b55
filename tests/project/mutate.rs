//! Damaged files: whatever a file contains, the program exits within 5 s and 500 MB, without a panic, and
//! prints nothing that controls a terminal.
//!
//! `DOWNSHIFT_MUTATIONS=2000 DOWNSHIFT_SEED=1` runs the campaign; `DOWNSHIFT_MUTATION=17` repeats one mutation.

#![expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail by panicking, as the test does")]

mod child;
#[cfg(feature = "train")]
mod data;
mod kinds;
mod mutator;

use child::{Limits, run_watched};
use kinds::{program_command, read_source};
use mutator::{Draw, mutate};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Parallel readers; more would only wait for each other.
const LANES: usize = 2;

fn env_number<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.parse().ok()
}

#[test]
fn damaged_files_do_no_harm() {
    let (count, seed) = (env_number("DOWNSHIFT_MUTATIONS").unwrap_or(200), env_number("DOWNSHIFT_SEED").unwrap_or(1));
    let only: Option<u64> = env_number("DOWNSHIFT_MUTATION");
    let (next, failures) = (AtomicU64::new(only.unwrap_or(0)), Mutex::new(Vec::new()));
    let end = only.map_or(count, |only| only + 1);
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= end {
                        break;
                    }
                    if let Err(why) = test_mutation(seed, index) {
                        failures.lock().unwrap().push(why);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {count} did harm:\n{}", failures.len(), failures.join("\n"));
}

/// Tests one damaged file; keeps it if it does harm.
fn test_mutation(seed: u64, index: u64) -> Result<(), String> {
    let kinds = kinds::all_kinds();
    let (name, prepare) = kinds[index as usize % kinds.len()];
    let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9) ^ (index << 20));
    let folder = tempfile::tempdir().unwrap();
    let reading = prepare(folder.path(), &mut draw);
    let bytes = mutate(&reading.sample, &mut draw);
    fs::write(&reading.file, &bytes).unwrap();
    let shown = format!("{:?}", reading.command);
    let outcome = run_watched(reading.command, folder.path(), Limits::INPUT);
    outcome.map(drop).map_err(|why| {
        let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mutation-{seed}-{index}-{name}"));
        fs::write(&kept, &bytes).unwrap();
        let again = format!("DOWNSHIFT_SEED={seed} DOWNSHIFT_MUTATION={index}");
        format!("{again} ({name}, kept as {}): {shown}: {why}", kept.display())
    })
}

/// The process that reads one file on behalf of a test above.
#[test]
fn reader() {
    if let Some((kind, file)) = env::var("DOWNSHIFT_READ").ok().as_deref().and_then(|named| named.split_once(':')) {
        kinds::read_file(kind, Path::new(file));
    }
}

/// The test can fail: it detects each kind of harm.
#[test]
fn harm_is_noticed() {
    let limits = Limits { computing: Duration::from_millis(200), clock: Duration::from_secs(10), memory: 400_000_000 };
    for (script, wanted) in [
        ("exit 101", "panicked"),
        ("kill -ABRT $$", "died of signal 6"),
        ("echo \"thread 'main' panicked at src\"", "printed a panic"),
        ("while :; do :; done", "of CPU time"),
        ("exec sleep 60", "did not end"),
        ("head -c 700000000 /dev/zero | tail -c 700000000 > /dev/null", "MB of memory"),
        ("printf '\\033[2J'", "printed \\u{1b}"),
        ("printf '\\342\\200\\256'", "printed \\u{202e}"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let why = run_watched(command, folder.path(), limits).expect_err(script);
        assert!(why.contains(wanted), "{script}: {why}");
    }
    let mut command = Command::new("sh");
    command.args(["-c", "echo fine; exit 13"]);
    assert_eq!(run_watched(command, tempfile::tempdir().unwrap().path(), limits), Ok("fine\n".to_owned()));
}

/// Returns the digits run file with `line` instead of the line that starts with `key`.
fn digits_with(key: &str, line: &str) -> String {
    let text = String::from_utf8(read_source("configs/digits.yaml")).unwrap();
    text.lines().map(|old| if old.starts_with(key) { line } else { old }).collect::<Vec<_>>().join("\n")
}

/// Runs the program on input that once hung, crashed or exhausted memory; returns its output.
fn run_safely(folder: &Path, words: &[&str]) -> String {
    run_watched(program_command(folder, words), folder, Limits::INPUT).unwrap_or_else(|why| panic!("{words:?}: {why}"))
}

#[test]
fn endless_and_enormous_run_files_are_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let pipe = at.join("pipe.yaml");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    fs::File::create(at.join("sparse.yaml")).unwrap().set_len(1 << 40).unwrap();
    let ladder = (0..3_000).map(|rung| format!("  - {{ name: r{rung} }}\n")).collect::<Vec<_>>().concat();
    let unknown = (0..60_000).map(|key| format!("k{key}: 1\n")).collect::<Vec<_>>().concat();
    for (name, text, wanted) in [
        ("pipe.yaml", None, "this is a pipe"),
        ("/dev/zero", None, "this is a device"),
        ("sparse.yaml", None, "1.0 TiB"),
        ("nested.yaml", Some(format!("name: {}", "[".repeat(200_000))), "brackets"),
        ("rungs.yaml", Some(format!("{}\n", digits_with("ladder:", &format!("ladder:\n{ladder}")))), "at most 64"),
        ("unknown.yaml", Some(format!("{unknown}{}", digits_with("#", ""))), "more errors"),
        (
            "dotted.yaml",
            Some(digits_with(
                "model:",
                &format!("variant: a\nvariants: {{ a: {{ {}b: 1 }} }}\nmodel:", "a.".repeat(400)),
            )),
            "parts",
        ),
        (
            "escape.yaml",
            Some(digits_with("name:", "\"\\e]52;c;aGk=\\a\\n\\u202e\": 1\nname: x")),
            "\\u001b]52;c;aGk=\\u0007\\n\\u202e",
        ),
    ] {
        if let Some(text) = text {
            fs::write(at.join(name), text).unwrap();
        }
        let said = run_safely(at, &["check", name]);
        assert!(said.contains(wanted), "{name}: {said}");
    }
}

#[test]
fn pipes_are_refused_wherever_a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    assert!(run_safely(at, &["triage", "/dev/zero"]).contains("/dev/zero is not text"));
    let run = at.join("runs/evil\u{1b}]52;c;aGk=\u{7}\nrun\u{202e}");
    fs::create_dir_all(run.join("checkpoints/step-000000001")).unwrap();
    fs::write(run.join("run.yaml"), read_source("configs/digits.yaml")).unwrap();
    let listed = run_safely(at, &["runs"]);
    assert!(listed.contains("evil\\u001b]52;c;aGk=\\u0007\\nrun\\u202e") && listed.lines().count() == 1, "{listed}");
    for name in ["run.db", "keeper.lock", "keeper.log", "worker.log", "checkpoints/step-000000001/manifest.json"] {
        let path = run.join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
    }
    for words in [["runs"].as_slice(), &["status"], &["export"], &["checkpoints", "list"], &["checkpoints", "verify"]] {
        run_safely(at, words);
    }
    fs::remove_file(run.join("run.yaml")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, run.join("run.yaml"), rustix::fs::Mode::RWXU).unwrap();
    for words in [["runs"].as_slice(), &["status"], &["checkpoints", "list"], &["resume"]] {
        run_safely(at, words);
    }
}

#[cfg(feature = "train")]
mod trained {
    use super::kinds::program_command;
    use super::{Limits, read_source, run_safely, run_watched};
    use std::fs;
    use std::path::Path;

    #[test]
    fn models_that_no_machine_holds_are_refused_before_they_are_built() {
        let folder = tempfile::tempdir().unwrap();
        for (run, set, wanted) in [
            ("digits", "model.layers=18446744073709551615", "4096"),
            ("digits", "model.layers=4000000000", "4096"),
            ("digits", "model.channels=4000000000", "65536"),
            ("text", "model.layers=18446744073709551615", "4096"),
            ("text", "model.layers=4000000000", "4096"),
            ("text", "model.width=18446744073709551557", "16777216"),
            ("text", "model.width=4194304", "at most 1000000000000"),
            ("text", "model.heads=18446744073709551615", "16777216"),
        ] {
            let said = run_safely(folder.path(), &["check", run, "--device", "cpu", "--set", set]);
            assert!(said.contains(wanted), "{run} {set}: {said}");
        }
    }

    fn pretrained(folder: &Path) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf/gpt2");
        fs::create_dir_all(folder.join("model")).unwrap();
        for entry in fs::read_dir(from).unwrap().flatten() {
            fs::copy(entry.path(), folder.join("model").join(entry.file_name())).unwrap();
        }
        fs::write(folder.join("words.txt"), "to be or not to be\n".repeat(40)).unwrap();
        let run = "name: t\ntask: lm\ndata: { source: words.txt, validation: 0.3 }\nmodel: { init_from: model, sequence: 8 }\n\
                   training: { steps: 1, micro_batch: 1 }\noptimizer: { lr: 0.001 }\n";
        fs::write(folder.join("run.yaml"), run).unwrap();
    }

    #[test]
    fn a_config_json_of_terabytes_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        pretrained(folder.path());
        let config = String::from_utf8(read_source("tests/fixtures/hf/gpt2/config.json")).unwrap();
        let config: String = config
            .lines()
            .map(|line| if line.contains("\"n_layer\"") { "\"n_layer\": 2147483648," } else { line })
            .collect();
        fs::write(folder.path().join("model/config.json"), config).unwrap();
        let said = run_safely(folder.path(), &["check", "run.yaml", "--device", "cpu"]);
        assert!(said.contains("2147483648 blocks; at most 4096"), "{said}");
    }

    #[test]
    fn a_tokenizer_cut_anywhere_and_pipes_for_models_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        pretrained(folder.path());
        let whole = read_source("tests/fixtures/hf/gpt2/tokenizer.json");
        let path = folder.path().join("model/tokenizer.json");
        for part in 0..16 {
            fs::write(&path, &whole[..whole.len() * part / 16]).unwrap();
            let command = program_command(folder.path(), &["check", "run.yaml", "--device", "cpu"]);
            run_watched(command, folder.path(), Limits::INPUT).unwrap_or_else(|why| panic!("{part} of 16: {why}"));
        }
        for name in ["tokenizer.json", "model.safetensors", "config.json"] {
            let path = folder.path().join("model").join(name);
            let good = read_source(&format!("tests/fixtures/hf/gpt2/{name}"));
            fs::remove_file(&path).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
            let said = run_safely(folder.path(), &["check", "run.yaml", "--device", "cpu"]);
            assert!(said.contains("this is a pipe") || said.contains("contains neither"), "{name}: {said}");
            fs::remove_file(&path).unwrap();
            fs::write(&path, good).unwrap();
        }
    }
}
