//! A failure that a training recovered from, or that another start in the same log left behind, in the forms that trainers print.

use downshift::triage::catalogue::Catalogue;
use downshift::triage::scan::scan;
use std::fmt::Write as _;
use std::ops::Range;

/// A form of progress: `{s}`, `{t}` (ten times the step), `{f}` (a hundredth of it) and `{loss}` are filled in. Those that begin
/// with a carriage return draw over their line.
const FORMS: [(&str, &str); 12] = [
    ("Hugging Face", "{'loss': {loss}, 'grad_norm': 1.2, 'learning_rate': 3e-05, 'epoch': {f}}"),
    (
        "mmengine",
        "2026/03/01 12:00:00 - mmengine - INFO - Epoch(train)  [1][{t}/1000]  lr: 1.0e-04  eta: 0:10:20  loss: {loss}",
    ),
    ("mmcv", "2026-03-01 12:00:00,123 - mmdet - INFO - Epoch [1][{t}/1000]\tlr: 1.0e-04, eta: 0:10:20, loss: {loss}"),
    ("timm", "Train: 0 [{t}/1251 (  9%)]  Loss: {loss} ({loss})  Time: 0.3s,  200.1/s  LR: 1.0e-03"),
    ("MetricLogger", "Epoch: [0]  [{t}/1000]  eta: 0:12:30  lr: 0.0001  loss: {loss} ({loss})  time: 0.4"),
    (
        "ESPnet",
        "[node1] 2026-03-01 12:00:00,123 (trainer:740) INFO: 1epoch:train:1-{t}batch: iter_time=0.1, loss={loss}",
    ),
    ("Keras 2", "\r{s}/100 [====>.....] - ETA: 3s - loss: {loss} - accuracy: 0.5"),
    ("Keras 3", "\r\u{1b}[1m{s}/100\u{1b}[0m \u{1b}[32m━━━━\u{1b}[0m \u{1b}[1m3s\u{1b}[0m 12ms/step - loss: {loss}"),
    ("tqdm", "\r{s}%|████      | {s}/100 [00:10<01:00,  1.0it/s, loss={loss}]"),
    ("Lightning", "\rEpoch 0: {s}%|████      | {s}/100 [00:10<01:00,  1.0it/s, v_num=0, train_loss={loss}]"),
    ("nanoGPT", "iter {s}: loss {loss}, time 500.00ms, mfu 1.00%"),
    ("plain", "step {s} loss {loss}"),
];
const OUT_OF_MEMORY: &str = "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 20, in main\n    loss.backward()\n\
                             torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of \
                             23.65 GiB of which 1.10 GiB is free.\n";

const KEY_ERROR: &str = "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 9, in <module>\n    row = batch['x']\n\
                         KeyError: 'x'\n";

/// Prints steps; `is_nan`: their losses are none.
fn steps(form: &str, steps: Range<u32>, is_nan: bool) -> String {
    let mut log = String::new();
    for step in steps {
        let loss = if is_nan { "nan".to_owned() } else { format!("{:.4}", 2.5 - f64::from(step) / 100.0) };
        let line = form.replace("{s}", &step.to_string()).replace("{t}", &(10 * step).to_string());
        let line = line.replace("{f}", &format!("{:.2}", f64::from(step) / 100.0)).replace("{loss}", &loss);
        let end = if form.starts_with('\r') { "" } else { "\n" };
        let _ = write!(log, "{line}{end}");
    }
    if form.starts_with('\r') { log + "\n" } else { log }
}

#[test]
fn what_a_training_went_on_after_is_not_why_it_ended() {
    let catalogue = Catalogue::build(None).unwrap();
    let mut wrong = Vec::new();
    for (name, form) in FORMS {
        let to = |range: Range<u32>| steps(form, range, false);
        let nan = |range: Range<u32>| steps(form, range, true);
        // Ranks that print each tenth step print the same one.
        let prints_each = form.contains("{s}");
        let banner = |batch: u32| format!("Namespace(batch={batch})\nreading 33 files\n");
        for (story, log, class) in [
            ("one loss was NaN", to(1..30) + &nan(30..31) + &to(31..60), None),
            ("the losses stay NaN", to(1..30) + &nan(30..60), Some("non_finite")),
            ("a batch was skipped", to(1..30) + "OOM during training step, skipping batch 1/3\n" + &to(31..90), None),
            ("out of memory, and started again", to(1..30) + OUT_OF_MEMORY + "Resuming\n" + &to(21..90), None),
            (
                "the other ranks end their step",
                to(1..42) + OUT_OF_MEMORY + &to(if prints_each { 40 } else { 41 }..42),
                Some("device_out_of_memory"),
            ),
            ("out of memory for good", to(1..30) + OUT_OF_MEMORY, Some("device_out_of_memory")),
            (
                "the second start was killed",
                to(1..30) + OUT_OF_MEMORY + "Resuming\n" + &to(21..90) + "Killed\n",
                Some("killed"),
            ),
            (
                "the second start found a bug before it trained for long",
                banner(4) + &to(1..30) + OUT_OF_MEMORY + &banner(2) + &to(1..5) + KEY_ERROR,
                Some("exception"),
            ),
        ] {
            let scan = scan(&mut log.as_bytes(), &catalogue).unwrap();
            let found = scan.root_cause().map(|root| root.class.word());
            if found != class {
                wrong.push(format!("{name}: {story}: {class:?}, not {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
