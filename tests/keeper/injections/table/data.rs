//! Faults of numbers, samples, checkpoints and disks.

use super::SLOW;
use crate::helper::{kill, wait_status};
use crate::injections::scene::{Case, PLAIN, Scene};
use downshift::store::checkpoint;
use std::fs;
use std::path::Path;

pub fn cases() -> Vec<Case> {
    numbers().into_iter().chain(disks()).collect()
}

fn numbers() -> Vec<Case> {
    vec![
        Case {
            number: 26,
            fault: "one NaN loss",
            inject: "nan@100",
            cause: "step 100 skipped",
            never: "shift down",
            ..PLAIN
        },
        Case {
            number: 27,
            fault: "two NaN losses in a row",
            inject: "nan@100-101",
            cause: "step 100 skipped",
            never: "shift down",
            ..PLAIN
        },
        Case {
            number: 27,
            fault: "five NaN losses in a row",
            inject: "nan@100-104",
            cause: "5 steps in a row were not finite",
            response: "shift down: full → safe, by the keeper",
            ..PLAIN
        },
        Case {
            number: 27,
            fault: "a loss that spikes and stays high",
            model: "step_ms: 2, trouble: [{ step: 320, last: 330, attempts: 1, spike: 50.0 }]",
            watch: "spike: { skip: 5 }",
            cause: "the loss jumped",
            response: "back to the checkpoint of step 200",
            whole: false,
            holds: Some(|scene| {
                let rows = scene.place.rows();
                let samples = |step: u64| {
                    let row = rows.iter().find(|row| row["attempt"] == 2 && row["step"] == step).unwrap();
                    row["samples"].as_u64().unwrap()
                };
                // The data around step 320 is left out, and not that behind the checkpoint.
                assert_eq!([201, 317, 318].map(samples), [201, 317, 318 + 5].map(|step| step * 8));
            }),
            ..PLAIN
        },
        Case {
            number: 28,
            fault: "a sample that makes the worker panic",
            model: "step_ms: 2, trouble: [{ samples: 1400, class: panic }]",
            cause: "failed twice in the same way",
            response: "skipping the samples from 1 400 to 1 408",
            whole: false,
            ..PLAIN
        },
    ]
}

fn disks() -> Vec<Case> {
    fn strike(scene: &Scene, damage: fn(&Path)) {
        let status = wait_status(&scene.run, "two checkpoints", |status| status.durable_step >= Some(100));
        damage(scene.run.path());
        kill(status.pid_worker.unwrap());
    }
    fn spoil(folder: &Path) {
        let model = folder.join("model.safetensors");
        let mut bytes = fs::read(&model).unwrap();
        bytes[0] ^= 1;
        fs::write(model, bytes).unwrap();
    }
    vec![
        Case {
            number: 29,
            fault: "disk full for two saves",
            model: "step_ms: 2, disk_full_from: 50, disk_full_to: 150",
            cause: "not saved: No space left on device",
            response: "checkpoints are saved again",
            ..PLAIN
        },
        Case {
            number: 33,
            fault: "one bit of the newest checkpoint flipped",
            model: SLOW,
            act: Some(|scene| strike(scene, |run| spoil(&checkpoint::list(run)[0].path))),
            cause: "set aside: it is unusable",
            response: "resumed at step",
            ..PLAIN
        },
        Case {
            number: 34,
            fault: "foreign files, a link and a half-written folder among the checkpoints",
            model: SLOW,
            act: Some(|scene| {
                strike(scene, |run| {
                    let folder = run.join(checkpoint::FOLDER);
                    fs::write(folder.join("notes.txt"), "mine").unwrap();
                    fs::create_dir(folder.join("step-000000999")).unwrap();
                    std::os::unix::fs::symlink("/nowhere", folder.join("step-000000998")).unwrap();
                });
            }),
            cause: "killed by SIGKILL",
            response: "resumed at step",
            holds: Some(|scene| {
                let kept = fs::read_to_string(scene.run.path().join(checkpoint::FOLDER).join("notes.txt"));
                assert_eq!(kept.unwrap(), "mine", "what is not ours is never deleted");
            }),
            ..PLAIN
        },
        Case {
            number: 35,
            fault: "every checkpoint damaged",
            model: SLOW,
            act: Some(|scene| strike(scene, |run| checkpoint::list(run).iter().for_each(|entry| spoil(&entry.path)))),
            cause: "no checkpoint can be used",
            response: "failed: checkpoint",
            code: 14,
            ..PLAIN
        },
    ]
}
