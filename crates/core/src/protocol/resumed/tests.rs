use super::{ActualStart, Evidence, Load, Loads, LossesBefore, Printed, Resumed, judge};
use std::path::PathBuf;

/// Returns the evidence of a run that was asked to resume from step 200, and has checkpoints of steps 100, 300 and 600. Its
/// loss fell from 4 to 1.
fn asked() -> Evidence {
    let before = LossesBefore { first: Some(4.0), last: vec![1.1, 0.9, 1.0], interval: 1 };
    Evidence { asked: 200, others: vec![100, 300, 600], before, ..Evidence::default() }
}

fn load(file: &str, checkpoint: Option<u64>, holds: Option<u64>) -> Load {
    Load { file: PathBuf::from(file), checkpoint, holds }
}

fn loads(files: &[Load], optimizer_steps: Option<u64>) -> Loads {
    Loads { files: files.to_vec(), optimizer_steps, restored: !files.is_empty() }
}

fn verified(file: Option<&str>) -> Resumed {
    Resumed::Verified { step: 200, file: file.map(PathBuf::from) }
}

fn from(step: u64, file: Option<&str>) -> Resumed {
    let found = match step {
        0 => ActualStart::Beginning,
        step => ActualStart::Checkpoint { step, file: file.map(PathBuf::from) },
    };
    Resumed::Contradicted { asked: 200, found }
}

fn unverified(counts_from: Option<u64>) -> Resumed {
    Resumed::Unverified { asked: 200, counts_from }
}

#[test]
fn the_files_that_were_loaded_decide() {
    let right = load("out/200.pt", Some(200), Some(200));
    let other = load("out/600.pt", Some(600), None);
    let base = load("base.safetensors", None, None);
    for (files, steps, wanted) in [
        (vec![right.clone()], Some(200), verified(Some("out/200.pt"))),
        (vec![base.clone(), right.clone()], Some(0), verified(Some("out/200.pt"))),
        (vec![other.clone()], Some(600), from(600, Some("out/600.pt"))),
        (vec![other.clone()], None, from(600, Some("out/600.pt"))),
        // A script that looks into all of them.
        (vec![right.clone(), other.clone()], Some(600), from(600, Some("out/600.pt"))),
        (vec![right, other], Some(200), verified(Some("out/200.pt"))),
        // A copy elsewhere, and a script that counts from 0.
        (vec![load("copy.pt", None, Some(199))], None, verified(Some("copy.pt"))),
        // The step of another file counts only with a second sign.
        (vec![load("teacher.pt", None, Some(5000))], Some(200), verified(Some("teacher.pt"))),
        (vec![load("old.pt", None, Some(150))], Some(150), from(150, Some("old.pt"))),
        // Nothing but a pretrained model.
        (vec![base], Some(0), from(0, None)),
        (Vec::new(), Some(0), from(0, None)),
        (Vec::new(), None, from(0, None)),
        // Loaded by a way that nobody sees.
        (Vec::new(), Some(200), verified(None)),
        (Vec::new(), Some(198), verified(None)),
        (Vec::new(), Some(600), from(600, None)),
        (Vec::new(), Some(50), unverified(None)),
    ] {
        let evidence = Evidence { loads: Some(loads(&files, steps)), ..asked() };
        assert_eq!(judge(&evidence), wanted, "{files:?} {steps:?}");
    }
}

#[test]
fn a_script_whose_count_begins_again_is_no_start_from_scratch() {
    let evidence = Evidence {
        asked: 600,
        others: vec![200],
        loads: Some(loads(&[], Some(600))),
        printed: Some(Printed::Step(1)),
        loss: Some(1.0),
        ..asked()
    };
    assert_eq!(judge(&evidence), Resumed::Verified { step: 600, file: None });
}

#[test]
fn a_new_optimizer_is_doubted_where_the_output_goes_on() {
    let evidence = |first, loss| Evidence {
        loads: Some(loads(&[], Some(0))),
        printed: Some(Printed::Step(first)),
        loss,
        ..asked()
    };
    assert_eq!(judge(&evidence(201, Some(1.0))), unverified(None));
    assert_eq!(judge(&evidence(1, Some(1.0))), unverified(Some(1)), "the weights are trained");
    assert_eq!(judge(&evidence(1, Some(4.0))), from(0, None));
    assert_eq!(judge(&evidence(1, None)), from(0, None));
}

#[test]
fn without_a_companion_the_first_step_and_the_first_loss_decide() {
    let shown =
        |first: Option<u64>, loss: Option<f64>| judge(&Evidence { printed: first.map(Printed::Step), loss, ..asked() });
    assert_eq!(shown(None, None), unverified(None));
    assert_eq!(shown(Some(201), None), verified(None));
    assert_eq!(shown(Some(201), Some(1.2)), verified(None));
    assert_eq!(shown(Some(220), Some(2.5)), verified(None), "a line for every twentieth step");
    let untrained = ActualStart::UntrainedLoss { loss: 3.9, before: 1.0 };
    assert_eq!(shown(Some(201), Some(3.9)), Resumed::Contradicted { asked: 200, found: untrained });
    assert_eq!(shown(Some(1), Some(3.9)), from(0, None));
    assert_eq!(shown(Some(1), Some(1.1)), unverified(None), "it counts anew, from one of the checkpoints");
    assert_eq!(shown(Some(1), Some(2.5)), unverified(Some(1)));
    assert_eq!(shown(Some(1), None), unverified(Some(1)));
    assert_eq!(shown(Some(601), Some(0.9)), from(600, None));
    assert_eq!(shown(Some(101), Some(1.5)), from(100, None));
    assert_eq!(shown(Some(151), Some(1.5)), unverified(Some(151)), "no checkpoint is known there");
    assert_eq!(shown(Some(901), Some(0.9)), unverified(None));
}

#[test]
fn a_count_of_an_epoch_says_nothing_without_the_loss() {
    let shown = |loss: f64| judge(&Evidence { printed: Some(Printed::Uncertain(5)), loss: Some(loss), ..asked() });
    assert_eq!(shown(4.2), from(0, None));
    assert_eq!(shown(1.0), unverified(Some(5)));
}

#[test]
fn the_first_line_may_follow_an_early_checkpoint_as_well_as_the_beginning() {
    let before = LossesBefore { interval: 10, ..asked().before };
    let shown = |loss| {
        let printed = Some(Printed::Step(10));
        judge(&Evidence { asked: 5, others: Vec::new(), printed, loss, before: before.clone(), ..asked() })
    };
    assert_eq!(shown(Some(1.0)), Resumed::Verified { step: 5, file: None });
    assert_eq!(shown(Some(4.0)), Resumed::Contradicted { asked: 5, found: ActualStart::Beginning });
    assert_eq!(shown(None), Resumed::Unverified { asked: 5, counts_from: None });
}

#[test]
fn losses_that_never_fell_decide_nothing() {
    let flat = LossesBefore { first: Some(0.52), last: vec![0.4, 0.6, 0.5], interval: 1 };
    let shown = |first| {
        judge(&Evidence { printed: Some(Printed::Step(first)), loss: Some(0.52), before: flat.clone(), ..asked() })
    };
    assert_eq!((shown(1), shown(201)), (unverified(Some(1)), verified(None)));
}

#[test]
fn a_companion_that_resumes_the_training_knows() {
    let told = |step| judge(&Evidence { told: Some(step), ..asked() });
    assert_eq!((told(200), told(0), told(100)), (verified(None), from(0, None), from(100, None)));
}

#[test]
fn each_judgement_has_words_and_a_step_to_count_from() {
    for (resumed, words, step) in [
        (verified(Some("out/200.pt")), "resumed at step 200 (out/200.pt was loaded)", 200),
        (unverified(None), "asked to resume from step 200; not verified", 200),
        (
            unverified(Some(1)),
            "asked to resume from step 200; not verified: its output begins at step 1, so it starts from scratch or \
             counts anew",
            200,
        ),
        (
            from(600, Some("600.pt")),
            "asked to resume from step 200, but the script trains on from step 600 (600.pt was loaded)",
            600,
        ),
        (from(0, None), "asked to resume from step 200, but the script starts from scratch", 0),
    ] {
        assert_eq!((resumed.to_string().as_str(), resumed.step(), resumed.asked()), (words, step, 200));
        let json = serde_json::to_string(&resumed).unwrap();
        assert_eq!(serde_json::from_str::<Resumed>(&json).unwrap(), resumed, "{json}");
    }
    let json = serde_json::to_string(&from(0, None)).unwrap();
    assert_eq!(json, r#"{"state":"contradicted","asked":200,"found":{"from":"beginning"}}"#);
}
