//! Speed of the cockpit: the real program in a real pseudo-terminal, compared with W&B LEET on the same
//! steps and metrics in a pane of the same size. Prints the tables of BENCHMARKS.md.
//!
//! `cargo bench --bench cockpit -- [--steps 100000,1000000] [--leet 100000] [--times 10] [--seconds 20]`
//! `cargo bench --bench cockpit -- --samples` measures the samples view only.
//!
//! LEET is measured if `wandb` is in PATH or the variable WANDB names it
//! (`python3 -m venv venv && venv/bin/pip install wandb`, then `WANDB=venv/bin/wandb`). `--leet`
//! sets the run lengths it opens; writing a million steps through wandb takes several minutes.

#[path = "cockpit/frame.rs"]
mod frame;
mod help;
#[path = "cockpit/leet.rs"]
mod leet;
#[path = "cockpit/live.rs"]
mod live;
#[path = "../examples/long_run/make.rs"]
mod make;
#[path = "help/pty.rs"]
mod pty;
#[path = "cockpit/samples.rs"]
mod samples;

use downshift::format::count;
use downshift::store::run_dir::RunDir;
use help::{Outcome, PROGRAM, quantile};
use pty::{Pty, cpu_s, memory_mib};
use std::time::{Duration, Instant};

/// The pane size for both programs.
pub const PANE: (u16, u16) = (200, 50);

struct Options {
    steps: Vec<u64>,
    leet: Vec<u64>,
    times: usize,
    seconds: u64,
    samples: bool,
}

/// The cost of opening a finished run.
#[derive(Default)]
pub struct Opened {
    /// Seconds from process start to the last step on the screen, sorted.
    pub seconds: Vec<f64>,
    /// MiB resident afterwards, the maximum of all runs.
    pub mib: f64,
    /// Core seconds until then, the maximum of all runs.
    pub cpu_s: f64,
}

impl Opened {
    /// Adds a measurement.
    pub fn record(&mut self, seconds: f64, pid: u32) {
        self.seconds.push(seconds);
        self.seconds.sort_by(f64::total_cmp);
        self.mib = self.mib.max(memory_mib(pid).1);
        self.cpu_s = self.cpu_s.max(cpu_s(pid));
    }

    fn table_row(&self, who: &str, steps: u64, aim: &str) -> String {
        let (median, most) = (quantile(&self.seconds, 0.5), self.seconds.last().copied().unwrap_or(f64::NAN));
        let (mib, cpu) = (self.mib, self.cpu_s);
        format!("| {who} | {} | {median:.3} s | {most:.3} s | {cpu:.2} s | {mib:.1} MiB | {aim} |", count(steps))
    }
}

fn main() -> Outcome<()> {
    let options = parse_options()?;
    let place = tempfile::tempdir()?;
    let runs = place.path().join("runs");
    if options.samples {
        let run = make::long_run(&runs, "samples", 1000)?;
        println!("| what | figure | aim |\n|---|---:|---|");
        return samples::measure_samples(&run);
    }
    let mut last = None;
    println!("Opening a finished run of six or twelve metrics a step, {} × {} cells:\n", PANE.0, PANE.1);
    println!("| screen | steps | median | slowest | CPU | most memory | aim |\n|---|---:|---:|---:|---:|---:|---|");
    for (steps, named) in options.steps.iter().flat_map(|steps| [(*steps, 0), (*steps, 6)]) {
        let run = make::long_run_of(&runs, &format!("long-{steps}-{named}"), steps, named)?;
        let aim = match (steps > 100_000, named) {
            (false, _) => "0.2 s",
            (true, 0) => "0.3 s, 40 MB",
            (true, _) => "0.3 s, 60 MB",
        };
        let screen = format!("downshift, {} metrics", 6 + named);
        println!("{}", measure_opening(&run, steps, options.times)?.table_row(&screen, steps, aim));
        last = Some((run, steps));
    }
    for steps in &options.leet {
        match leet::measure_opening(place.path(), *steps, options.times.min(3))? {
            Some(opened) => println!("{}", opened.table_row("W&B LEET", *steps, "")),
            None => println!("\nW&B LEET is not installed (see benches/cockpit.rs); skipped"),
        }
    }
    let (run, steps) = last.ok_or("--steps needs at least one length")?;
    println!("\nA finished run of {} steps with twelve metrics, then a live one:\n", count(steps));
    println!("| what | figure | aim |\n|---|---:|---|");
    measure_keys(&run, steps)?;
    measure_idle(&run, steps, options.seconds)?;
    frame::measure_frames(&run)?;
    samples::measure_samples(&run)?;
    for (rate, aim) in [(1, "–"), (20, "2 %"), (1000, "5 %")] {
        live::measure_live_run(&runs, rate, options.seconds, aim)?;
    }
    Ok(())
}

fn parse_options() -> Outcome<Options> {
    let mut options =
        Options { steps: vec![100_000, 1_000_000], leet: vec![100_000], times: 10, seconds: 20, samples: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--samples" {
            options.samples = true;
            continue;
        }
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let numbers = |text: String| text.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>();
        match word.as_str() {
            "--steps" => options.steps = numbers(value()?)?,
            "--leet" => options.leet = numbers(value()?)?,
            "--times" => options.times = value()?.parse()?,
            "--seconds" => options.seconds = value()?.parse()?,
            "--bench" => {}
            _ => return Err(format!("unknown option {word}; see the head of benches/cockpit.rs").into()),
        }
    }
    Ok(options)
}

fn open_cockpit(run: &RunDir, size: (u16, u16)) -> Outcome<Pty> {
    let path = run.path().display().to_string();
    Pty::start(&[PROGRAM, "attach", &path], run.path(), size)
}

/// Opens a run `times` times, each time until the first frame with a curve and the last step on it.
fn measure_opening(run: &RunDir, steps: u64, times: usize) -> Outcome<Opened> {
    let mut opened = Opened::default();
    for _ in 0..times {
        let mut pty = open_cockpit(run, PANE)?;
        let last = count(steps);
        let whole = |screen: &vt100::Screen| {
            let text = screen.contents();
            text.contains(&last) && text.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count() > 40
        };
        if !pty.watch(Duration::from_mins(1), whole)? {
            return Err(format!("the last step was not shown within a minute:\n{}", pty.text()).into());
        }
        let seconds = pty.begun.elapsed().as_secs_f64();
        pty.settle(Duration::from_millis(300), Duration::from_secs(5))?;
        opened.record(seconds, pty.pid());
    }
    Ok(opened)
}

/// Measures the time from a key press to the changed screen, on the longest run.
fn measure_keys(run: &RunDir, steps: u64) -> Outcome<()> {
    let mut pty = open_cockpit(run, PANE)?;
    let last = count(steps);
    pty.watch(Duration::from_mins(1), |screen| screen.contents().contains(&last))?;
    pty.settle(Duration::from_millis(500), Duration::from_secs(10))?;
    let mut taken = Vec::new();
    for key in [b'+', b'+', b'-', b'-', b'2', b'+', b'-', b'1', b'?', b'?'].iter().cycle().take(200) {
        let pressed = Instant::now();
        pty.send(&[*key])?;
        if !pty.watch(Duration::from_secs(1), |_| true)? {
            return Err(format!("nothing changed within a second of {}", char::from(*key)).into());
        }
        taken.push(pressed.elapsed().as_secs_f64() * 1e3);
        pty.settle(Duration::from_millis(40), Duration::from_secs(2))?;
    }
    taken.sort_by(f64::total_cmp);
    let (median, most) = (quantile(&taken, 0.5), quantile(&taken, 0.99));
    println!("| key to changed screen, median and 99 % of 200 | {median:.1} ms, {most:.1} ms | 20 ms |");
    Ok(())
}

/// Measures the cost of leaving a finished run open.
fn measure_idle(run: &RunDir, steps: u64, seconds: u64) -> Outcome<()> {
    let mut pty = open_cockpit(run, PANE)?;
    let last = count(steps);
    pty.watch(Duration::from_mins(1), |screen| screen.contents().contains(&last))?;
    pty.settle(Duration::from_millis(500), Duration::from_secs(10))?;
    let (bytes, used, begun) = (pty.bytes, cpu_s(pty.pid()), Instant::now());
    pty.watch(Duration::from_secs(seconds), |_| false)?;
    let share = (cpu_s(pty.pid()) - used) / begun.elapsed().as_secs_f64();
    let (now, _) = memory_mib(pty.pid());
    let rate = (pty.bytes - bytes) as f64 / begun.elapsed().as_secs_f64();
    println!("| CPU while nothing changes, of a core | {:.2} % | 0.5 % |", share * 100.0);
    println!("| written to the terminal meanwhile | {rate:.0} B/s | 0 |");
    println!("| resident memory meanwhile | {now:.1} MiB | 60 MB |");
    Ok(())
}
