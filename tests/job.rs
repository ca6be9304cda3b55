//! A run inside a batch job: `run --job` continues its folder, ends with its process, and says by its exit code whether the
//! job is to start again. `scripts/slurm-stage` takes the same through a real Slurm.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod helper;

use downshift::protocol::control::RunState;
use downshift::store::owners;
use downshift::store::reader::{Reader, live_status};
use downshift::store::run_dir::RunDir;
use helper::{Place, journal_says, kill, send_signal, wait_for, wait_status};
use rustix::process::Signal;
use serde_yaml::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Output, Stdio};

const JOB: [&str; 4] = ["run", "run.yaml", "--job", "scripted-7"];

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn start(place: &Place, words: &[&str], step: u64) -> (Child, RunDir) {
    let child = place.command(&JOB).args(words).stdout(Stdio::null()).spawn().unwrap();
    let find = || RunDir::open(&place.dir.path().join("runs/scripted-7")).ok().filter(|run| live_status(run).is_some());
    let run = wait_for("the job's run", find);
    wait_status(&run, "a durable step", |status| status.step > step && status.durable_step.is_some());
    (child, run)
}

fn place() -> Place {
    let place = Place::scripted();
    place.script("{ step_ms: 10 }", "");
    place
}

#[test]
fn a_signal_interrupts_the_job_and_its_next_start_continues_and_finishes() {
    let place = place();
    let (mut child, run) = start(&place, &[], 60);
    send_signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert_eq!(place.processes(), Vec::<u32>::new(), "when the job ends, nothing of it is left");
    let durable = live_status(&run).unwrap().durable_step.unwrap();
    assert!(durable > 60, "the last step was saved: {durable}");

    let out = place.output(&JOB);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    let starts = Reader::open(&run).unwrap().attempts().unwrap();
    let starts: Vec<_> = starts.iter().map(|attempt| attempt.from_step.unwrap_or(0)).collect();
    assert_eq!(starts, [0, durable]);
    place.curve(400, 8);

    let again = place.output(&JOB);
    assert_eq!(again.status.code(), Some(0), "{}", shown(&again));
    assert!(shown(&again).contains("scripted-7 has finished already"), "{}", shown(&again));
    assert_eq!(Reader::open(&run).unwrap().attempts().unwrap().len(), 2);
}

#[test]
fn a_stop_by_the_user_is_final() {
    let place = place();
    let (mut child, run) = start(&place, &[], 60);
    place.succeed(&["stop", "scripted-7"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert_eq!(live_status(&run).unwrap().state, RunState::Stopped);
}

#[test]
fn a_killed_job_takes_the_run_with_it() {
    let place = place();
    let (mut child, run) = start(&place, &[], 60);
    kill(child.id());
    child.wait().unwrap();
    wait_for("the last process", || place.processes().is_empty().then_some(()));
    assert!(journal_says(&run, "stop, requested by the end of the job's process"));
    assert_eq!(live_status(&run).unwrap().state, RunState::Stopped);
}

#[test]
fn a_job_that_dies_with_its_keeper_leaves_no_worker() {
    let place = place();
    let (mut child, run) = start(&place, &[], 60);
    let keeper = owners::keeper(&run).unwrap();
    kill(child.id());
    kill(keeper.pid);
    child.wait().unwrap();
    wait_for("the last process", || place.processes().is_empty().then_some(()));
}

#[test]
fn a_second_start_of_a_living_job_never_trains() {
    let place = place();
    let (mut child, run) = start(&place, &[], 60);
    let mut second = place.command(&JOB).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    send_signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(75));
    // It waited for the first, and continues.
    assert_eq!(second.wait().unwrap().code(), Some(0));
    let attempts = Reader::open(&run).unwrap().attempts().unwrap();
    assert_eq!(attempts.len(), 2);
    assert!(attempts[1].from_step > Some(60), "{attempts:?}");
}

#[test]
fn the_notice_of_a_scheduler_without_a_new_step_needs_attention() {
    let place = Place::scripted();
    let words = ["run", "--job", "sleep-7", "--device", "cpu", "--", "sleep", "100"];
    let child = place.command(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a worker", || owners::worker(&RunDir::open(&place.dir.path().join("runs/sleep-7")).ok()?));
    send_signal(child.id(), Signal::USR1);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(4), "{}", shown(&out));
    assert!(shown(&out).contains("saved no new step"), "{}", shown(&out));
}

#[test]
fn several_nodes_are_refused_before_anything_is_written() {
    let place = place();
    let out = place.command(&JOB).env("SLURM_JOB_NUM_NODES", "2").output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", shown(&out));
    assert!(shown(&out).contains("the job has 2 nodes") && !place.dir.path().join("runs").exists(), "{}", shown(&out));
    let out = place.output(&["sbatch", "run.yaml", "--nodes", "2"]);
    assert!(out.status.code() == Some(2) && shown(&out).contains("one keeper"), "{}", shown(&out));
}

/// Plays `sbatch`: runs the script at once, as Slurm would.
const SBATCH: &str =
    "#!/bin/sh\ncat > job.sh\nSLURM_JOB_ID=7 SLURM_JOB_NODELIST=n1 SLURM_RESTART_COUNT=1 exec bash job.sh\n";

#[test]
fn the_script_of_a_job_runs_under_bash_in_a_folder_with_blanks() {
    let place = place();
    let folder = place.dir.path().join("it's a \"folder\"");
    fs::create_dir_all(folder.join("bin")).unwrap();
    fs::rename(place.dir.path().join("run.yaml"), folder.join("run.yaml")).unwrap();
    fs::write(folder.join("bin/sbatch"), SBATCH).unwrap();
    fs::set_permissions(folder.join("bin/sbatch"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let words =
        ["sbatch", "run.yaml", "--submit", "--time", "1:00:00", "--set", "training.steps=20", "--runs-dir", "my runs"];
    let words = [&words[..], &["--", "--comment=a b", "-A", "vision"]].concat();
    let out = place.command(&words).current_dir(&folder).env("PATH", path).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    let run = RunDir::open(&folder.join("my runs/scripted-7")).unwrap();
    assert_eq!(live_status(&run).unwrap().state, RunState::Finished);
    assert!(journal_says(&run, "Slurm job 7, restart 1 on n1"));
    let script = fs::read_to_string(folder.join("job.sh")).unwrap();
    for line in
        ["#SBATCH --time=1:00:00\n", "#SBATCH \"--comment=a b\"\n", "#SBATCH -A vision\n", "it's a \\\"folder\\\""]
    {
        assert!(script.contains(line), "{line}: {script}");
    }
}

const MANIFEST: &str = include_str!("../examples/kubernetes/job.yaml");

fn strings(list: &Value) -> Vec<&str> {
    list.as_sequence().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn the_kubernetes_manifest_starts_this_program_and_knows_its_exit_codes() {
    let documents: Vec<Value> = MANIFEST.split("\n---\n").map(|text| serde_yaml::from_str(text).unwrap()).collect();
    assert_eq!(documents.len(), 3, "a volume, a run file, a job");
    let (config, job) = (&documents[1], &documents[2]);
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    let (command, probe) = (strings(&container["args"]), strings(&container["livenessProbe"]["exec"]["command"]));

    let place = Place::scripted();
    let file = place.dir.path().join("run.yaml");
    fs::write(&file, config["data"]["run.yaml"].as_str().unwrap()).unwrap();
    let checked = place.output(&["check", "run.yaml", "--device", "cpu"]);
    assert_eq!(checked.status.code(), Some(0), "{}", shown(&checked));
    place.script("{ step_ms: 1 }", "");
    let words: Vec<&str> =
        command.iter().map(|word| if *word == "/config/run.yaml" { "run.yaml" } else { word }).collect();
    assert_ne!(words, command);
    let out = place.output(&words);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    assert_eq!(probe[0], "downshift");
    let status: Value = serde_yaml::from_str(&place.succeed(&probe[1..])).unwrap();
    assert_eq!(status["run"].as_str(), Some("counting"));

    let codes = |action: &str| -> Vec<u64> {
        let rules = job["spec"]["podFailurePolicy"]["rules"].as_sequence().unwrap();
        let rules = rules.iter().filter(|rule| rule["action"].as_str() == Some(action));
        let values = rules.filter_map(|rule| rule["onExitCodes"]["values"].as_sequence());
        values.flatten().filter_map(Value::as_u64).collect()
    };
    assert_eq!(codes("Ignore"), [75]);
    assert_eq!(codes("FailJob"), [2, 3, 4, 13, 14, 15]);
    // README.md explains each of them.
    let table = include_str!("../README.md").split("### Exit codes").nth(1).unwrap().split("\n## ").next().unwrap();
    for code in codes("Ignore").into_iter().chain(codes("FailJob")) {
        assert!(table.contains(&format!("| {code} |")), "{code} is not in the table of exit codes");
    }
}
