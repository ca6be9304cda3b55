//! A run on the nodes of a job, with programs that play Slurm's on this machine. `scripts/slurm-stage nodes` takes the same
//! through a real Slurm.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::{Place, journal_says};
use downshift::store::adopted;
use downshift::store::run_dir::RunDir;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

/// Plays `srun`: leaves out its options, and runs the program here.
const SRUN: &str = "#!/bin/sh\nwhile [ \"${1#--}\" != \"$1\" ]; do shift; done\nexec \"$@\"\n";
/// Plays a `srun` that notices late that its step has ended.
const SLOW_SRUN: &str =
    "#!/bin/sh\nwhile [ \"${1#--}\" != \"$1\" ]; do shift; done\n\"$@\"\ncode=$?\nsleep 0.8\nexit $code\n";
/// Plays a `srun` that gets no step.
const NO_SRUN: &str = "#!/bin/sh\necho 'srun: error: Unable to create step' >&2\nexit 1\n";
/// Plays `scontrol show hostnames`.
const SCONTROL: &str = "#!/bin/sh\nprintf 'n1\\nn2\\n'\n";

/// Runs a shell script as the job of two nodes; it gets the number of its node, and a folder that both share.
fn run_on_two_nodes(place: &Place, script: &str) -> Output {
    run_with(place, SRUN, script, "")
}

/// The same, with another `srun` and more lines in the run file.
fn run_with(place: &Place, srun: &str, script: &str, more: &str) -> Output {
    let folder = place.dir.path();
    fs::create_dir_all(folder.join("bin")).unwrap();
    for (name, text) in [("srun", srun), ("scontrol", SCONTROL)] {
        fs::write(folder.join("bin").join(name), text).unwrap();
        fs::set_permissions(folder.join("bin").join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(folder.join("train.sh"), script).unwrap();
    let text = "name: x\ntask: command\ncommand: [sh, train.sh, '{node}', '{run_dir}', '{nodes}-{head}']\n\
                watch: { restarts_without_progress: 0 }\n";
    fs::write(folder.join("x.yaml"), text.to_owned() + more).unwrap();
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let mut command = place.command(&["run", "x.yaml", "--job", "x-7", "--trust", "--device", "cpu"]);
    let job = [("SLURM_JOB_NUM_NODES", "2"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURMD_NODENAME", "n1")];
    command.envs(job).env("PATH", path).output().unwrap()
}

fn shown(place: &Place, output: &Output) -> String {
    let log = fs::read_to_string(place.dir.path().join("runs/x-7/worker.log")).unwrap_or_default();
    format!("{}{}{log}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Each node waits until the other one has started.
const MEET: &str = "echo \"$3\" > \"$2/node-$1\"\nuntil [ -e \"$2/node-$((1 - $1))\" ]; do sleep 0.01; done\n";

#[test]
fn both_nodes_start_their_part_and_the_run_finishes_with_both() {
    let place = Place::scripted();
    let out = run_on_two_nodes(&place, &format!("{MEET}[ $1 = 1 ] || echo 'step 1 loss 0.5'\necho \"end of $1\"\n"));
    assert_eq!(out.status.code(), Some(0), "{}", shown(&place, &out));
    let run = place.dir.path().join("runs/x-7");
    for node in ["node-0", "node-1"] {
        assert_eq!(fs::read_to_string(run.join(node)).unwrap(), "2-n1\n", "{node}");
    }
    let log = fs::read_to_string(run.join("worker.log")).unwrap();
    assert!(log.contains("end of 0") && log.contains("end of 1"), "{log}");
    assert_eq!(place.processes(), Vec::<u32>::new(), "nothing is left");
}

#[test]
fn a_node_that_fails_ends_all_nodes_and_is_named() {
    let place = Place::scripted();
    let out = run_on_two_nodes(&place, &format!("{MEET}[ $1 = 0 ] || exit 7\necho 'step 1 loss 0.5'\nsleep 600\n"));
    assert_eq!(out.status.code(), Some(4), "{}", shown(&place, &out));
    let run = RunDir::open(&place.dir.path().join("runs/x-7")).unwrap();
    assert!(journal_says(&run, "the command ended on node n2: exit code 7"), "{}", shown(&place, &out));
    assert_eq!(place.processes(), Vec::<u32>::new(), "nothing is left");
}

#[test]
fn a_lost_node_is_the_cause_and_not_the_node_that_missed_it_first() {
    let place = Place::scripted();
    let script = "if [ $1 = 1 ]; then\n  echo $$ > \"$2/part\"; mv \"$2/part\" \"$2/pid\"\n  \
                  until [ -e \"$2/seen\" ]; do sleep 0.01; done\n  kill -9 $PPID\n  sleep 600\nfi\n\
                  until [ -e \"$2/pid\" ]; do sleep 0.01; done\ntouch \"$2/seen\"\necho 'step 1 loss 0.5'\n\
                  while kill -0 $(cat \"$2/pid\"); do sleep 0.01; done\nexit 1\n";
    let out = run_with(&place, SLOW_SRUN, script, "");
    assert_eq!(out.status.code(), Some(4), "{}", shown(&place, &out));
    let run = RunDir::open(&place.dir.path().join("runs/x-7")).unwrap();
    assert!(
        journal_says(&run, "worker ended at step 1: collective: node n2 is lost: its job step has ended"),
        "{}",
        shown(&place, &out)
    );
    assert_eq!(place.processes(), Vec::<u32>::new(), "nothing is left");
}

#[test]
fn a_step_that_slurm_refuses_ends_the_run_before_anything_starts() {
    let place = Place::scripted();
    let out = run_with(&place, NO_SRUN, "touch \"$2/started-$1\"\n", "");
    let run = RunDir::open(&place.dir.path().join("runs/x-7")).unwrap();
    let text = "the job step on node n2 did not start; worker.log says why";
    assert!(journal_says(&run, text), "{}", shown(&place, &out));
    assert!(!place.dir.path().join("runs/x-7/started-0").exists(), "no other node starts");
    assert_eq!(place.processes(), Vec::<u32>::new(), "nothing is left");
}

#[test]
fn the_last_checkpoint_is_adopted_when_no_node_writes_to_it_any_more() {
    let place = Place::scripted();
    let script = format!(
        "mkdir -p \"$2/checkpoint-1\"\n{MEET}if [ $1 = 0 ]; then\n  echo a > \"$2/checkpoint-1/a\"\n  \
         echo 'step 1 loss 0.5'\n  exit 0\nfi\nfor part in $(seq 50); do\n  echo $part >> \"$2/checkpoint-1/b\"\n  \
         sleep 0.03\ndone\n"
    );
    let out = run_with(&place, SRUN, &script, "checkpoints: { match: '{run_dir}/checkpoint-*' }\n");
    assert_eq!(out.status.code(), Some(0), "{}", shown(&place, &out));
    let listed = adopted::list(&place.dir.path().join("runs/x-7"));
    let [last] = &listed[..] else { panic!("one checkpoint: {}", shown(&place, &out)) };
    assert_eq!(last.files.len(), 2);
    last.verify().unwrap();
}
