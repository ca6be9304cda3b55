//! Trainings of a small linear model that leave out one part of their state when they resume.

use super::{Judgement, Starts, Verdict, judge};
use crate::cli::trial::missing::Missing;
use crate::cli::trial::trace::Trace;

const SIZE: usize = 6;
const BATCH: u64 = 8;
const CHECKPOINT: u64 = 12;

/// The steps of a start, as they are shown.
#[derive(Clone, Copy)]
struct Shows {
    rate: bool,
    digests: bool,
    /// Decimals that losses are rounded to.
    decimals: Option<i32>,
    /// Steps between two reports.
    every: u64,
}

const ALL: Shows = Shows { rate: true, digests: true, decimals: None, every: 1 };
const LOSS: Shows = Shows { rate: false, digests: false, ..ALL };
const LOG: Shows = Shows { rate: true, digests: false, decimals: Some(4), every: 1 };

#[derive(Clone)]
struct Training {
    weights: [f64; SIZE],
    moments: [f64; SIZE],
    step: u64,
    /// The step of the scheduler.
    scheduled: u64,
    /// The next batch.
    batch: u64,
    random: u64,
    scale: f64,
}

/// Returns a number in -1 to 1 for a key.
fn number(key: u64) -> f64 {
    let mut hash = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((hash ^ (hash >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

impl Training {
    fn new(seed: u64) -> Self {
        Self {
            weights: [0.0; SIZE],
            moments: [0.0; SIZE],
            step: 0,
            scheduled: 0,
            batch: 0,
            random: seed,
            scale: 1024.0,
        }
    }

    fn take_step(&mut self, shows: Shows, trace: &mut Trace) {
        let (mut gradient, mut loss) = ([0.0; SIZE], 0.0);
        for sample in 0..BATCH {
            let id = self.batch * BATCH + sample;
            let x: [f64; SIZE] = std::array::from_fn(|index| number(id * 31 + index as u64));
            self.random = self.random.wrapping_add(1);
            // Augmentation: a little noise on the first feature.
            let noise = 0.02 * number(self.random ^ 0xABCD);
            let target: f64 = x.iter().enumerate().map(|(index, x)| x * (index as f64 + 1.0)).sum::<f64>() + noise;
            let error = x.iter().zip(&self.weights).map(|(x, weight)| x * weight).sum::<f64>() - target;
            loss += error * error / BATCH as f64;
            for (slot, x) in gradient.iter_mut().zip(x) {
                *slot += 2.0 * error * x / BATCH as f64;
            }
        }
        let rate = 0.1 * 0.93_f64.powi(self.scheduled as i32);
        (self.step, self.scheduled, self.batch) = (self.step + 1, self.scheduled + 1, self.batch + 1);
        for ((weight, moment), gradient) in self.weights.iter_mut().zip(&mut self.moments).zip(gradient) {
            *moment = 0.6 * *moment + gradient;
            *weight -= rate * *moment;
        }
        if self.step.is_multiple_of(shows.every) {
            let seen = trace.at(self.step);
            let rounded = shows.decimals.map(|decimals| (loss * 10_f64.powi(decimals)).round() / 10_f64.powi(decimals));
            seen.loss = Some(rounded.unwrap_or(loss));
            seen.rate = shows.rate.then_some(rate);
            seen.scale = shows.digests.then_some(self.scale);
            seen.ids = shows.digests.then(|| format!("{:08}", self.batch));
            seen.random = shows.digests.then(|| format!("{:08}", self.random));
        }
    }

    fn run_to(&mut self, step: u64, shows: Shows) -> Trace {
        let mut trace = Trace::default();
        while self.step < step {
            self.take_step(shows, &mut trace);
        }
        trace
    }
}

/// Judges a training that is killed two steps after its checkpoint, and forgets a part when it resumes.
fn judged(shows: Shows, forget: impl Fn(&mut Training)) -> Judgement {
    judged_from(Training::new(7), Training::new(7), shows, forget)
}

fn judged_from(
    mut straight: Training,
    mut killed: Training,
    shows: Shows,
    forget: impl Fn(&mut Training),
) -> Judgement {
    let straight = straight.run_to(CHECKPOINT + 10, shows);
    let mut seen = killed.run_to(CHECKPOINT, shows);
    let mut resumed = killed.clone();
    for _ in 0..2 {
        killed.take_step(shows, &mut seen);
    }
    forget(&mut resumed);
    // A script that counts its steps anew, or starts over, runs until its own count is as high.
    let resumed = resumed.run_to(CHECKPOINT + 10, shows);
    judge(&Starts { straight: &straight, killed: &seen, resumed: &resumed, checkpoint: CHECKPOINT })
}

fn differs(missing: &[Missing]) -> Verdict {
    differs_at(13, missing)
}

fn differs_at(step: u64, missing: &[Missing]) -> Verdict {
    Verdict::Differs { step, missing: missing.to_vec() }
}

#[test]
fn a_resume_that_restores_everything_is_exact_at_the_precision_of_its_losses() {
    let all = judged(ALL, |_| {});
    assert_eq!((&all.verdict, all.decimals, all.after.loss.compared), (&Verdict::Exact, None, 10));
    assert_eq!((all.before.compared, all.counts_anew, all.noise), (14, false, 0.0));
    let log = judged(LOG, |_| {});
    assert_eq!((log.verdict, log.decimals), (Verdict::Exact, Some(4)));
}

#[test]
fn each_part_that_is_left_out_is_named() {
    use Missing::{DataOrder, Moments, RandomState, Scheduler, Weights};
    type Forget = fn(&mut Training);
    let order: Forget = |training| training.batch = 0;
    let random: Forget = |training| training.random = 99_999;
    let scheduler: Forget = |training| training.scheduled = 0;
    let moments: Forget = |training| training.moments = [0.0; SIZE];
    let weights: Forget = |training| training.weights = [0.0; SIZE];
    for (what, forget, missing) in
        [("order", order, DataOrder), ("scheduler", scheduler, Scheduler), ("weights", weights, Weights)]
    {
        assert_eq!(judged(ALL, forget).verdict, differs(&[missing]), "{what}, all seen");
        assert_eq!(judged(LOG, forget).verdict, differs(&[missing]), "{what}, losses and rates");
    }
    assert_eq!(judged(LOSS, order).verdict, differs(&[DataOrder]));
    assert_eq!(judged(LOSS, weights).verdict, differs(&[Weights]));
    assert_eq!(judged(LOSS, scheduler).verdict, differs_at(14, &[Scheduler, Moments]), "either, without rates");
    for shows in [ALL, LOG] {
        assert_eq!(judged(shows, moments).verdict, differs_at(14, &[Moments]));
    }
    assert_eq!(judged(ALL, random).verdict, Verdict::SameData, "the sample ids agree");
    assert_eq!(judged(LOG, random).verdict, differs(&[RandomState]));
    assert_eq!(judged(LOSS, random).verdict, differs(&[RandomState]));
    let scaler = judged(ALL, |training| training.scale = 65536.0);
    assert_eq!(scaler.verdict, differs(&[Missing::Scaler]));
    let several = judged(ALL, |training| (training.batch, training.scheduled) = (0, 0));
    assert_eq!(several.verdict, differs(&[DataOrder, Scheduler]));
}

#[test]
fn a_start_over_is_told_from_a_count_that_begins_anew() {
    let over = judged(LOG, |training| *training = Training::new(7));
    assert_eq!(over.verdict, Verdict::StartsOver);
    let over = judged(LOG, |training| *training = Training::new(8));
    assert_eq!(over.verdict, Verdict::StartsOver, "with another seed");
    let counted_on = judged(LOG, |training| *training = Training { step: CHECKPOINT, ..Training::new(7) });
    assert_eq!(counted_on.verdict, Verdict::StartsOver, "its companion counts on");
    let anew = judged(LOG, |training| training.step = 0);
    assert_eq!((anew.verdict, anew.counts_anew), (Verdict::Exact, true));
    let both = judged(LOG, |training| (training.step, training.scheduled) = (0, 0));
    assert_eq!((both.verdict, both.counts_anew), (differs(&[Missing::Scheduler]), true));
}

#[test]
fn an_unseeded_script_is_not_blamed_for_its_resume() {
    let verdict = |forget: fn(&mut Training)| {
        let mut other = Training::new(8);
        other.batch = 1000;
        judged_from(Training::new(7), other, LOG, forget).verdict
    };
    let judged = |missing: &[Missing]| Verdict::Unreproducible { step: 1, missing: missing.to_vec() };
    assert_eq!(verdict(|_| {}), judged(&[]));
    assert_eq!(verdict(|training| training.scheduled = 0), judged(&[Missing::Scheduler]));
    assert_eq!(verdict(|training| training.weights = [0.0; SIZE]), judged(&[Missing::Weights]));
}

#[test]
fn rounding_that_differs_between_two_starts_is_tolerated_after_the_resume() {
    let mut other = Training::new(7);
    other.weights[0] += 1e-7;
    let near = judged_from(Training::new(7), other.clone(), LOSS, |_| {});
    assert_eq!(near.verdict, Verdict::WithinNoise);
    let broken = judged_from(Training::new(7), other, LOSS, |training| training.batch = 0);
    assert_eq!(broken.verdict, differs(&[Missing::DataOrder]));
}

#[test]
fn too_few_losses_prove_nothing_and_averages_across_the_kill_do_not_count() {
    let rare = judged(Shows { every: 10, ..LOG }, |_| {});
    assert_eq!(rare.verdict, Verdict::TooFew { losses: 0 }, "the only loss averages steps from before the kill");
    let rare = judged(Shows { every: 4, ..LOG }, |_| {});
    assert_eq!(rare.verdict, Verdict::TooFew { losses: 2 });
    let enough = judged(Shows { every: 3, ..LOG }, |_| {});
    assert_eq!(enough.verdict, Verdict::Exact);
}
