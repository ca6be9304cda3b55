//! Output in parts, and how its readings are joined.

use super::{Mark, OutputReader};
use crate::log_metrics::{Counting, Pattern, Reading, Skip, Span, skip_counts};
use proptest::prelude::*;
use std::time::Duration;

fn read_with(patterns: &[&str], chunks: &[&[u8]]) -> Vec<Reading> {
    let patterns: Vec<Pattern> = patterns.iter().map(|text| Pattern::new(text).unwrap()).collect();
    let (mut reader, mut readings) = (OutputReader::new(&patterns), Vec::new());
    for chunk in chunks {
        reader.push(chunk, &mut readings);
    }
    reader.finish(&mut readings);
    readings
}

/// Returns steps and the value of one metric.
fn metric(readings: &[Reading], name: &str) -> Vec<(Option<u64>, f64)> {
    readings.iter().filter_map(|reading| Some((reading.step, reading.value(name)?))).collect()
}

#[test]
fn a_line_that_a_bar_frames_has_the_step_of_the_redraw() {
    let output = "\r  0%|     | 0/8 [00:00<?, ?it/s]\r 25%|#    | 2/8 [00:01<00:03,  2.0it/s]\r         \r\
                  {'loss': '3.214', 'epoch': '0.5'}\n\r 50%|##   | 4/8 [00:02<00:02,  2.0it/s]\r 62%|##   | 5/8 [00:02<00:02,  2.0it/s]";
    let readings = read_with(&[], &[output.as_bytes()]);
    let values = vec![("loss".to_owned(), 3.214)];
    let first = Reading { step: Some(4), total_steps: Some(8), epoch: Some(0.5), values, ..Reading::default() };
    let second = Reading { step: Some(5), total_steps: Some(8), ..Reading::default() };
    assert_eq!(readings, [first, second]);
}

#[test]
fn sentences_about_skipped_updates_are_readings_of_their_own() {
    let output = "step 1 loss 2.5\nstep 2 loss nan\nWARNING: NaN loss, skipping batch\nstep 3 loss 2.25\n\
                  [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n\
                  [2026-11-28 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=4, lr=[0.001], mom=[(0.9, 0.999)]\n";
    let readings = read_with(&[], &[output.as_bytes()]);
    let skips: Vec<Skip> = readings.iter().filter_map(|reading| reading.skip).collect();
    assert_eq!(skips, [Skip::NotFinite, Skip::ByScaler]);
    assert!(readings.iter().all(|reading| reading.skip.is_none() || reading.values.is_empty()), "{readings:?}");
    let counts: Vec<_> = readings.iter().flat_map(skip_counts).collect();
    assert_eq!(counts, [("skipped", Span::Start, 4)], "{readings:?}");
}

#[test]
fn a_line_that_no_bar_frames_has_no_step() {
    let output = "\r 25%|#    | 2/8 [00:01<00:03,  2.0it/s]{'loss': 3.0}\n{'loss': 2.0}\n\r 50%|##   | 4/8 [00:02<00:02, 2.0it/s]\n";
    assert_eq!(metric(&read_with(&[], &[output.as_bytes()]), "loss"), [(None, 3.0), (None, 2.0)]);
}

#[test]
fn an_accuracy_beside_a_bar_of_the_training_is_that_of_the_training() {
    let output = b"\rtrain:  50%|#  | 1/2 [00:01<00:01,  1.0it/s, acc=0.5]\rtrain: 100%|##| 2/2 [00:02<00:00,  1.0it/s, acc=0.75]\n";
    assert_eq!(metric(&read_with(&[], &[output]), "accuracy"), [(Some(2), 0.75)]);
}

#[test]
fn a_step_on_a_line_of_its_own_counts_for_the_values_below() {
    let output = b"        Learning iteration 0/101\n   Value function loss: 0.5\n   Mean total reward: 2.5\n####\n\
                  \x20       Learning iteration 1/101\n   Value function loss: 0.25\n   Mean total reward: 3.5\n";
    let readings = read_with(&[], &[output]);
    assert_eq!(metric(&readings, "reward"), [(Some(0), 2.5), (Some(1), 3.5)]);
    assert_eq!(metric(&readings, "value_function_loss"), [(Some(0), 0.5), (Some(1), 0.25)]);
    let output = b"Loading batch 3/4\nBatch 4/4\nloss: 0.5\n";
    assert_eq!(metric(&read_with(&[], &[output]), "loss"), [(None, 0.5)]);
}

#[test]
fn bars_that_do_not_count_training_declare_nothing() {
    for bar in [
        "Map: 100%|###| 1000/1000 [00:00<00:00, 5000.0 examples/s]",
        "Loading checkpoint shards:  50%|#  | 1/2 [00:01<00:01,  1.0s/it]",
        " 50%|#  | 500/1000 [00:01<00:01,  500.0it/s]",
        "Validation:  50%|#  | 5/10 [00:01<00:01,  5.0it/s, loss=2.5]",
        "validation steps:  50%|#  | 5/10 [00:01<00:01,  5.0it/s, val_avg_loss=2.5]",
        "Sanity Checking DataLoader 0:  50%|#  | 1/2 [00:01<00:01,  5.0it/s]",
    ] {
        assert_eq!(read_with(&[], &[bar.as_bytes(), b"\n"]), [], "{bar}");
    }
}

/// Not recorded: made from the format strings of kohya-ss/sd-scripts, `train_network.py` (48d368f): the bar
/// `tqdm(range(…), smoothing=0, desc="steps")` with the postfix `{"avr_loss": avr_loss}`, and the line
/// `epoch {epoch+1}/{num_train_epochs}`.
#[test]
fn kohya() {
    let output = "epoch 1/2\n\rsteps:   0%|   | 0/4 [00:00<?, ?it/s]\rsteps:  25%|#  | 1/4 [00:01<00:03,  1.0s/it]\
                  \rsteps:  25%|#  | 1/4 [00:01<00:03,  1.0s/it, avr_loss=0.123]\rsteps:  50%|#  | 2/4 [00:02<00:02,  1.0s/it, avr_loss=0.119]\
                  \n\nepoch 2/2\n\rsteps:  75%|#  | 3/4 [00:03<00:01,  1.0s/it, avr_loss=nan]\r";
    let readings = read_with(&[], &[output.as_bytes()]);
    let found = metric(&readings, "loss");
    assert_eq!(found[..2], [(Some(1), 0.123), (Some(2), 0.119)]);
    assert!(found[2].0 == Some(3) && found[2].1.is_nan());
    assert!(readings.iter().all(|reading| reading.total_steps == Some(4)));
}

#[test]
fn own_patterns_come_first_and_hold_the_step() {
    let output = b"iteration #3 of 9\ncost is 2.5 units\n{'loss': 1.0}\nstep 99 loss 7\n";
    let readings =
        read_with(&[r"iteration #(?P<step>\d+) of (?P<total_steps>\d+)", r"cost is (?P<loss>\S+)"], &[output]);
    assert_eq!(metric(&readings, "loss"), [(None, 1.0), (None, 7.0), (Some(3), 2.5)]);
    assert_eq!(readings[2].total_steps, Some(9));
}

#[test]
fn steps_that_start_over_with_each_epoch_go_on() {
    let output =
        b"Epoch [1/2], Step [1/2], Loss: 4\nEpoch [1/2], Step [2/2], Loss: 3\nEpoch [2/2], Step [1/2], Loss: 2\n";
    assert_eq!(metric(&read_with(&[], &[output]), "loss"), [(Some(1), 4.0), (Some(2), 3.0), (Some(3), 2.0)]);
}

#[test]
fn the_forms_of_pytorchs_tutorials() {
    // cifar10_tutorial.py: `print(f'[{epoch + 1}, {i + 1:5d}] loss: {running_loss / 2000:.3f}')`
    let output = b"[1,  2000] loss: 2.173\n[1,  4000] loss: 1.858\n[2,  2000] loss: 1.460\nFinished Training\n";
    let readings = read_with(&[], &[output]);
    assert_eq!(metric(&readings, "loss"), [(Some(2000), 2.173), (Some(4000), 1.858), (None, 1.46)]);
    let started_over: Vec<_> = readings.iter().map(|reading| reading.count_started_over).collect();
    assert_eq!(started_over, [None, None, Some(2000)], "an epoch has 4000 to 5999 steps");
    // mnist/main.py counts samples: a line alone has no certain step.
    let output =
        b"Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3\n\nTest set: Average loss: 0.05, Accuracy: 9850/10000 (98%)\n";
    let readings = read_with(&[], &[output]);
    assert_eq!((metric(&readings, "loss"), metric(&readings, "eval_loss")), (vec![(None, 2.3)], vec![(None, 0.05)]));
    // The next one shows how many samples a step has.
    let output = b"Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.5\nTrain Epoch: 1 [640/60000 (1%)]\tLoss: 2.25\n\
                   Train Epoch: 1 [59520/60000 (99%)]\tLoss: 2\nTest set: Average loss: 0.05, Accuracy: 9850/10000 (98%)\n\
                   Train Epoch: 2 [0/60000 (0%)]\tLoss: 1.5\n";
    let readings = read_with(&[], &[output]);
    assert_eq!(metric(&readings, "loss"), [(Some(0), 2.5), (Some(1), 2.25), (Some(93), 2.0), (Some(94), 1.5)]);
    assert_eq!(metric(&readings, "eval_loss"), [(Some(93), 0.05)]);
    assert!(readings.iter().filter_map(|reading| reading.epoch_size).all(|size| size == 94));
    // A line for each epoch: its epoch is all that is known.
    let output = b"Train Epoch: 1 [0/60000 (0%)]\tLoss: 2\nTest set: Average loss: 0.5\nTrain Epoch: 2 [0/60000 (0%)]\tLoss: 1\n";
    let readings = read_with(&[], &[output]);
    let epochs: Vec<_> = readings.iter().map(|reading| (reading.step, reading.epoch)).collect();
    assert_eq!(epochs, [(None, Some(1.0)), (None, Some(1.0)), (None, Some(2.0))], "{readings:?}");
    // Neither a shape nor a line without a training loss names an epoch and a step.
    for text in ["[32, 128] shape", "[1, 2, 3] loss: 1", "[a, 2] loss: 1", "[1, 2] val loss: 1"] {
        assert!(read_with(&[], &[text.as_bytes(), b"\n"]).iter().all(|reading| reading.step.is_none()), "{text}");
    }
}

#[test]
fn counted_samples_go_on_after_a_resume_or_fall_back_to_epochs() {
    let epochs = |from: u64, to: u64| -> String {
        let lines = (from..=to).flat_map(|epoch| (0..10).map(move |part| (epoch, part)));
        lines
            .map(|(epoch, part)| format!("Train Epoch: {epoch} [{}/6000 ({part}0%)]\tLoss: 0.5\n", part * 640))
            .collect::<Vec<_>>()
            .concat()
    };
    for first in [0, 1] {
        let mut before = OutputReader::new(&[]);
        before.push(epochs(first, first + 1).as_bytes(), &mut Vec::new());
        let learnt = before.counting_news();
        assert_eq!(learnt, Some(Counting::Within { first_epoch: first, size: Some(10) }));
        let mut reader = OutputReader::new(&[]).resumed(20).recalling(learnt);
        let mut readings = Vec::new();
        reader.push(epochs(first + 2, first + 3).as_bytes(), &mut readings);
        reader.finish(&mut readings);
        let steps: Vec<_> = readings.iter().filter_map(|reading| reading.step).collect();
        assert_eq!(steps, (20..40).collect::<Vec<_>>(), "from epoch {first}");
    }
    // Nothing shows the epochs before: a start in epoch 3, without a checkpoint and with one within an epoch.
    for reader in [OutputReader::new(&[]), OutputReader::new(&[]).resumed(15)] {
        let (mut reader, mut readings) = (reader, Vec::new());
        reader.push(epochs(3, 4).as_bytes(), &mut readings);
        reader.finish(&mut readings);
        assert_eq!(readings.len(), 20);
        assert!(readings.iter().all(|reading| reading.step.or(reading.count_started_over).is_none()), "{readings:?}");
        assert_eq!((readings[0].epoch, readings[19].epoch), (Some(3.0), Some(4.0)));
    }
}

#[test]
fn the_time_left_comes_with_the_step_that_tells_it() {
    let output = b"step 5 loss 2 eta: 0:01:00\nstep 6 loss 1\nVal loss 3, remaining: 5s\n";
    let left: Vec<_> = read_with(&[], &[output]).iter().map(|reading| (reading.step, reading.time_left)).collect();
    assert_eq!(left, [(Some(5), Some(Duration::from_mins(1))), (Some(6), None), (Some(6), None)]);
}

#[test]
fn evaluations_between_counts_that_start_over_belong_to_the_newest_step() {
    let output = b"Epoch 1/2, Step 5/10, Loss: 4\nEpoch 1/2, Step 10/10, Loss: 3\nValidation: step 4/4, loss: 9\n\
                   val loss 8, accuracy 0.5\nEpoch 2/2, Step 5/10, Loss: 2\n";
    let readings = read_with(&[], &[output]);
    assert_eq!(metric(&readings, "loss"), [(Some(5), 4.0), (Some(10), 3.0), (Some(15), 2.0)]);
    assert_eq!(metric(&readings, "eval_loss"), [(Some(10), 8.0)], "the newer one of step 10");
    let header = b"Epoch 1/2\nstep 5/10 loss 4\nstep 10/10 loss 3\nEpoch 2/2\nstep 5/10 loss 2\n";
    assert_eq!(metric(&read_with(&[], &[header]), "loss"), [(Some(5), 4.0), (Some(10), 3.0), (Some(15), 2.0)]);
    // Here an epoch is named behind its steps.
    let behind = b"step 5/20 loss 4\nstep 10/20 loss 3\nEpoch 1/2\nstep 5/20 loss 2\n";
    assert_eq!(metric(&read_with(&[], &[behind]), "loss"), [(Some(5), 4.0), (Some(10), 3.0), (None, 2.0)]);
}

#[test]
fn a_summary_of_an_epoch_leaves_the_last_step_as_it_is() {
    for summary in [
        "Epoch {e} train_loss 0.3 val_loss 0.{e}",
        "Epoch {e} | train loss 0.3 | valid loss 0.{e} | acc 50%",
        "val_loss 0.{e} accuracy 0.5",
        "step {n} val_loss 0.{e} accuracy 0.5",
        "epoch {e} val_loss=0.{e}, val_acc=0.5",
        "Validation: loss 0.{e} accuracy 0.5",
        "loss: 0.3 - val_loss: 0.{e}",
    ] {
        for line in ["Epoch {e}/3, Step {i}/20, Loss: {i}.5", "step {n} loss {i}.5"] {
            let mut output = String::new();
            for epoch in 1..=3 {
                let fill = |form: &str, count: u64| {
                    let numbers = [("{e}", epoch), ("{i}", count), ("{n}", 20 * (epoch - 1) + count)];
                    numbers.iter().fold(form.to_owned(), |text, (key, number)| text.replace(key, &number.to_string()))
                };
                for count in [10, 20] {
                    output.extend([&fill(line, count), "\n"]);
                }
                output.extend([&fill(summary, 20), "\n"]);
            }
            let readings = read_with(&[], &[output.as_bytes()]);
            let losses: Vec<_> =
                [10, 20, 30, 40, 50, 60].map(|n| (Some(n), if n % 20 == 0 { 20.5 } else { 10.5 })).into();
            assert_eq!(metric(&readings, "loss"), losses, "{line}: {summary}");
            let evals = [(Some(20), 0.1), (Some(40), 0.2), (Some(60), 0.3)];
            assert_eq!(metric(&readings, "eval_loss"), evals, "{line}: {summary}");
            if line.starts_with("Epoch") {
                let steps = readings.iter().filter(|reading| reading.value("loss").is_some());
                let epochs: Vec<_> = steps.filter_map(|reading| reading.epoch).collect();
                assert_eq!(epochs, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0], "{summary}");
            }
        }
    }
}

#[test]
fn a_pause_shows_the_bar_that_is_drawn_and_nothing_twice() {
    let (mut reader, mut readings) = (OutputReader::new(&[]), Vec::new());
    reader.push(b"\rsteps:   0%|   | 0/4 [00:00<?, ?it/s]", &mut readings);
    reader.push(b"\rsteps:  25%|#  | 1/4 [00:01<00:03,  1.0s/it, loss=0.5]", &mut readings);
    assert_eq!(readings, []);
    for _ in 0..3 {
        reader.flush(&mut readings);
    }
    assert_eq!(metric(&readings, "loss"), [(Some(1), 0.5)]);
    // An unfinished line may be cut within a number.
    reader.push(b"\nstep 2 loss 0.4", &mut readings);
    reader.flush(&mut readings);
    reader.push(b"44\n", &mut readings);
    reader.finish(&mut readings);
    assert_eq!(metric(&readings, "loss"), [(Some(1), 0.5), (Some(2), 0.444)]);
}

#[test]
fn a_nan_that_stays_on_the_bar_is_that_of_each_step_if_each_step_has_set_the_values() {
    let draw = |step: u64, loss: &str| format!("\rsteps:  25%|#  | {step}/90 [00:01<00:03,  1.0s/it, loss={loss}]");
    let nans = |set_every: u64| {
        let finite = (1..=30).map(|step| draw(step, &format!("0.{}", 100 + step / set_every)));
        let output: String = finite.chain((31..=40).map(|step| draw(step, "nan"))).collect();
        metric(&read_with(&[], &[output.as_bytes(), b"\n"]), "loss").iter().filter(|(_, loss)| loss.is_nan()).count()
    };
    assert_eq!(nans(1), 10);
    assert_eq!(nans(10), 1, "the value may be an old one");
}

#[test]
fn names_are_limited_and_so_are_lines() {
    use std::fmt::Write as _;
    let mut output = String::new();
    for index in 0..200 {
        let _ = writeln!(output, "step {index} loss 1 m{index}: 2");
    }
    let _ = writeln!(output, "step 500 loss 1 {}", "x".repeat(1 << 20));
    let readings = read_with(&[], &[output.as_bytes()]);
    let names: std::collections::BTreeSet<&str> =
        readings.iter().flat_map(|reading| reading.values.iter().map(|(name, _)| name.as_str())).collect();
    assert_eq!((names.len(), readings.len()), (64, 200));
}

/// Pieces of real output, which random bytes would never form.
const PIECES: [&str; 18] = [
    "\r",
    "\n",
    "\x1b[A",
    "      ",
    "step 3 loss 2.5",
    "{'loss': 'nan', 'epoch': 1.0}",
    "  0%|   | 0/8 [00:00<?, ?it/s]",
    " 25%|#  | 2/8 [00:00<00:01, 2.0it/s]",
    " 25%|#  | 2/8 [00:00<00:01, 2.0it/s, loss=2.5]",
    "Epoch 1/3: 50%|#  | 4/8 [00:00<00:01, 2.0it/s, loss=1.5]",
    "Epoch 2/3",
    " 4/12 ━━━━ 0s 4ms/step - loss: 0.5",
    "\x1b[2K",
    "loss: 3",
    "Epoch 0/2 ━━━╸━━ 5/16 0:00:01 loss: 2",
    "iteration 5/ 9 | lm loss: 1E+1 |",
    "\n[2,  2000] loss: 2\n",
    "\nstep 1 loss 2\n",
];

#[test]
fn a_line_with_a_count_that_no_training_reaches_does_not_end_the_curve() {
    for wild in ["step 18446744073709551615 loss 9.0\n", "step 5000000000000/18446744073709551615 loss 9.0\n"] {
        let output = format!("step 1 loss 3.0\nstep 2 loss 2.5\n{wild}step 3 loss 2.0\nstep 4 loss 1.5\n");
        let read = metric(&read_with(&[], &[output.as_bytes()]), "loss");
        let steps: Vec<u64> = read.iter().filter_map(|(step, _)| *step).collect();
        assert_eq!(steps, [1, 2, 3, 4], "{wild}: {read:?}");
    }
}

#[test]
fn a_line_of_another_counter_does_not_end_the_curve() {
    let output = |lines: &[&str]| lines.join("\n") + "\n";
    let losses = |lines: &[&str]| metric(&read_with(&[], &[output(lines).as_bytes()]), "loss");
    let read = losses(&[
        "step 100 loss 3",
        "step 101 loss 2",
        "step 123456789 loss 9",
        "step 102 loss 1",
        "step 103 loss 1.5",
        "step 900000000 val_loss 9",
        "step 104 loss 0.5",
    ]);
    assert_eq!(read, [(100, 3.0), (101, 2.0), (102, 1.0), (103, 1.5), (104, 0.5)].map(|(at, loss)| (Some(at), loss)));
    // The resume is shown with its first lines.
    let read =
        losses(&["step 1 loss 3", "step 2 loss 2", "step 900000 loss 1", "step 900010 loss 1.5", "step 900020 loss 4"]);
    assert_eq!(
        read,
        [(1, 3.0), (2, 2.0), (900_000, 1.0), (900_010, 1.5), (900_020, 4.0)].map(|(at, loss)| (Some(at), loss))
    );
    let read = losses(&["step 1 loss 3", "step 2 loss 2", "step 123456789 loss nan", "step 3 loss 1"]);
    assert!(read.iter().any(|(step, loss)| step.is_none() && loss.is_nan()), "NaN is evidence: {read:?}");
}

proptest! {
    #[test]
    fn chunks_do_not_matter(pieces in prop::collection::vec(0..PIECES.len(), 0..60), cuts in prop::collection::vec(0..2000_usize, 0..20)) {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| PIECES[*piece].bytes()).collect();
        same_in_chunks(&bytes, cuts);
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..2000), cuts in prop::collection::vec(0..2000_usize, 0..20)) {
        same_in_chunks(&bytes, cuts);
    }
}

fn same_in_chunks(bytes: &[u8], mut cuts: Vec<usize>) {
    cuts.retain(|cut| *cut < bytes.len());
    cuts.sort_unstable();
    let mut chunks = Vec::new();
    let mut from = 0;
    for cut in cuts.into_iter().chain([bytes.len()]) {
        chunks.push(&bytes[from..cut]);
        from = cut;
    }
    // NaN differs from itself: the text of readings is compared.
    assert_eq!(format!("{:?}", read_with(&[], &chunks)), format!("{:?}", read_with(&[], &[bytes])));
}

#[test]
fn lines_that_were_held_back_keep_the_times_at_which_they_were_printed() {
    let second = Duration::from_secs;
    let (mut reader, mut readings, mut marks) = (OutputReader::new(&[]), Vec::new(), Vec::new());
    let printed = [(1, 1), (2, 2), (500_000, 10), (500_010, 20), (500_020, 30), (500_030, 40)];
    for (step, time) in printed {
        readings.extend(reader.read(format!("step {step} loss 2\n").as_bytes(), false, second(time)));
        marks.extend(reader.take_marks());
    }
    let times: Vec<_> = readings.iter().map(|reading| (reading.step.unwrap(), reading.printed)).collect();
    let held = [(500_000, Some(second(10))), (500_010, Some(second(20)))];
    assert_eq!(times, [&[(1, None), (2, None)], &held[..], &[(500_020, None)]].concat());
    assert_eq!(marks[2..4], held.map(|(step, time)| (Mark::Step(step), time)));
    assert_eq!(marks[4], (Mark::Step(500_020), None), "it comes at once");
}

#[test]
fn the_last_redraw_of_a_bar_has_the_values_of_its_last_step() {
    let bar =
        |step: u64, loss: f64| format!("\rfit: {:3}%|##  | {step}/4 [00:01<00:01,  2.0it/s, loss={loss}]", 25 * step);
    let output = [(0, 2.5), (1, 2.25), (2, 2.0), (4, 1.5)].map(|(step, loss)| bar(step, loss)).concat();
    assert_eq!(metric(&read_with(&[], &[output.as_bytes()]), "loss").last(), Some(&(Some(4), 1.5)));
    // A short epoch is drawn at its end alone.
    assert_eq!(metric(&read_with(&[], &[bar(4, 1.5).as_bytes()]), "loss"), [(Some(4), 1.5)]);
}
