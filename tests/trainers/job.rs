//! A run inside a batch job: `run --job` continues its folder, ends with its process, and says by its exit code whether the
//! job is to start again. `scripts/slurm-stage` takes the same through a real Slurm.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::{Place, journal_says, kill, send_signal, wait_for, wait_status};
use downshift::protocol::control::RunState;
use downshift::store::owners;
use downshift::store::reader::{Reader, live_status};
use downshift::store::run_dir::RunDir;
use rustix::process::Signal;
use serde_yaml::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

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

/// Starts the job once more, and returns when it waits for its living start.
fn start_that_waits(place: &Place) -> (Child, BufReader<ChildStderr>) {
    let mut child = place.command(&JOB).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut said, mut line) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    while !line.contains("waiting for the earlier start of this job (process ") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it does not wait");
    }
    (child, said)
}

/// Holds a run where it is, however long the next starts take on a busy machine.
fn pause(place: &Place, run: &RunDir) {
    place.succeed(&["pause", "scripted-7"]);
    wait_status(run, "the pause", |status| status.state == RunState::Paused);
}

fn rest(mut said: BufReader<ChildStderr>) -> String {
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    text
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
    pause(&place, &run);
    let (mut second, said) = start_that_waits(&place);
    send_signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert_eq!(second.wait().unwrap().code(), Some(0), "it continues: {:?}", rest(said));
    let attempts = Reader::open(&run).unwrap().attempts().unwrap();
    assert_eq!(attempts.len(), 2);
    assert!(attempts[1].from_step > Some(60), "{attempts:?}");
}

/// Its process stands still while its run ends and another start continues it, as on a machine without time for it.
#[test]
fn a_start_that_looks_late_reports_its_own_end() {
    let place = place();
    let (mut child, run) = start(&place, &[], 60);
    pause(&place, &run);
    let (mut second, said) = start_that_waits(&place);
    send_signal(child.id(), Signal::STOP);
    send_signal(owners::parent_record(&run).unwrap().owner.pid, Signal::TERM);
    assert_eq!(second.wait().unwrap().code(), Some(0), "it continues: {:?}", rest(said));
    send_signal(child.id(), Signal::CONT);
    assert_eq!(child.wait().unwrap().code(), Some(75));
}

#[test]
fn a_signal_ends_the_wait_for_an_earlier_start() {
    let place = place();
    let (mut child, run) = start(&place, &[], 60);
    pause(&place, &run);
    for (signal, code) in [(Signal::TERM, 75), (Signal::USR1, 4), (Signal::INT, 3)] {
        let (mut second, said) = start_that_waits(&place);
        send_signal(second.id(), signal);
        assert_eq!(second.wait().unwrap().code(), Some(code), "{:?}", rest(said));
    }
    assert_eq!(Reader::open(&run).unwrap().attempts().unwrap().len(), 1);
    place.succeed(&["resume", "scripted-7"]);
    assert_eq!(child.wait().unwrap().code(), Some(0), "the first trains on to its end");
}

#[test]
fn of_two_starts_that_wait_one_trains_and_the_other_lets_it() {
    let place = place();
    let (mut child, run) = start(&place, &[], 60);
    pause(&place, &run);
    let waiting = [start_that_waits(&place), start_that_waits(&place)];
    send_signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(75));
    let mut codes = waiting.map(|(mut child, said)| {
        let said = rest(said);
        let code = child.wait().unwrap().code();
        // The slower one fails, or waits until the other has finished.
        assert!(code == Some(0) || said.contains("another start of this job trains scripted-7"), "{code:?}: {said}");
        code
    });
    codes.sort_unstable();
    assert!(matches!(codes, [Some(0), Some(0 | 1)]), "{codes:?}");
    assert_eq!(Reader::open(&run).unwrap().attempts().unwrap().len(), 2);
    assert_eq!(live_status(&run).unwrap().state, RunState::Finished);
}

#[test]
fn a_paused_job_is_interrupted_like_any_other() {
    let place = place();
    let (mut child, run) = start(&place, &[], 60);
    pause(&place, &run);
    send_signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert_eq!(place.output(&JOB).status.code(), Some(0), "its next start trains on");
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
fn several_nodes_need_a_command_that_can_be_spread() {
    let place = place();
    let out = place.command(&JOB).env("SLURM_JOB_NUM_NODES", "2").env("PATH", "").output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", shown(&out));
    assert!(shown(&out).contains("the job has 2 nodes") && !place.dir.path().join("runs").exists(), "{}", shown(&out));
    let out = place.output(&["sbatch", "run.yaml", "--nodes", "2"]);
    assert!(out.status.code() == Some(2) && shown(&out).contains("trains in one process"), "{}", shown(&out));
    let submit = |body: &str| {
        let text = format!("name: x\ntask: command\ncommand: [python3, train.py]\n{body}\n");
        fs::write(place.dir.path().join("x.yaml"), text).unwrap();
        place.output(&["sbatch", "x.yaml", "--nodes", "2", "--trust"])
    };
    let out = submit("");
    assert!(out.status.code() == Some(2) && shown(&out).contains("write `ranks: 2` or a multiple"), "{}", shown(&out));
    let out = submit("ranks: 3");
    assert!(out.status.code() == Some(2) && shown(&out).contains("write `ranks: 4`"), "{}", shown(&out));
    let out = submit("ranks: 4");
    let text = shown(&out);
    assert!(text.contains("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"), "{text}");
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

/// Plays `scontrol`: shows the job with a reason, and records a requeue.
const SCONTROL: &str = "#!/bin/sh\nif [ $1 = show ]; then cat shown; else echo \"$*\" > requeued; fi\n";

#[test]
fn a_job_goes_back_to_the_queue_after_the_notice_unless_it_was_cancelled() {
    let at_limit = "JobId=7 JobState=COMPLETING Reason=TimeLimit Dependency=(null)";
    let cancelled = "JobId=7 JobState=COMPLETING Reason=None Dependency=(null)";
    for (signals, shown, requeued) in [
        (&[Signal::USR1][..], "", true),
        (&[Signal::USR1, Signal::TERM], at_limit, true),
        (&[Signal::USR1, Signal::TERM], cancelled, false),
        (&[Signal::TERM], at_limit, false),
    ] {
        let place = Place::scripted();
        place.script("{ step_ms: 10, save_ms: 1500 }", "");
        let folder = place.dir.path();
        fs::write(folder.join("scontrol"), SCONTROL).unwrap();
        fs::set_permissions(folder.join("scontrol"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.join("shown"), shown).unwrap();
        place.succeed(&["sbatch", "run.yaml", "--out", "job.sh"]);
        let (program, mut script) = (place.command(&[]), Command::new("bash"));
        script.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        script.arg("job.sh").current_dir(folder).env("PATH", path).env("SLURM_JOB_ID", "7").stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let run = wait_for("the job's run", || RunDir::open(&folder.join("runs/scripted-7")).ok());
        wait_for("its status", || live_status(&run));
        wait_status(&run, "a durable step", |status| status.durable_step.is_some());
        for signal in signals {
            send_signal(child.id(), *signal);
            if *signal == Signal::USR1 {
                assert!(said.any(|line| line.contains("the job's time is almost over")), "the notice arrives");
            }
        }
        // The script writes on: its output is read to the end.
        let said: Vec<String> = said.collect();
        assert_eq!(child.wait().unwrap().code(), Some(75), "{signals:?} {shown}: {said:?}");
        assert_eq!(folder.join("requeued").exists(), requeued, "{signals:?} {shown}");
    }
}

const MANIFEST: &str = include_str!("../../examples/kubernetes/job.yaml");

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
    // The book explains each of them.
    let table = include_str!("../../docs/src/exit-codes.md");
    for code in codes("Ignore").into_iter().chain(codes("FailJob")) {
        assert!(table.contains(&format!("| {code} |")), "{code} is not in the table of exit codes");
    }
}
