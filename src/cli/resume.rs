//! `resume`: continues from the newest checkpoint or an older one, or starts a new run from one.

mod new_run;

use super::bad_value::BadValue;
use super::client::Answer as Reply;
use super::devices::{Sharing, VISIBLE, devices_of_later_start, worker_device};
use super::elsewhere::{TakeOver, take_over_ended};
use super::environment::{NextStart, Precedence};
use super::interrupted::{self, Interrupted};
use super::job::count_nodes;
use super::line;
use super::occupied::{self, Answer};
use super::preflight::check_ranks;
use super::run::{has_room_to_go_on, has_terminal, look_on, start_keeper};
use super::trust::{self, Trust};
use super::{Failure, Outcome, Which, attach, checkpoints, client, find_run, say};
use crate::config::run::Run;
use crate::keeper::Launch;
use crate::keeper::offline::{ChoiceError, OfflineKeeper};
use crate::keeper::set_aside;
use crate::outlook::continuation::How;
use crate::protocol::claim::{ClaimRequest, Devices};
use crate::protocol::control::{Request, RunState, Target};
use crate::store::adopted;
use crate::store::checkpoint::{self, STATE};
use crate::store::command_line::record_command_line;
use crate::store::continuation::{command_from_checkpoint, commands, continuation};
use crate::store::owners;
use crate::store::permissions;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::trainer::Trainer;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use clap::Args;
use new_run::{Origin, begin_from};
use std::path::Path;

/// Arguments of `resume`.
#[derive(Debug, Default, Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    which: Which,
    /// No cockpit: one line per event on stdout; the exit code reports how it ended
    #[arg(long)]
    headless: bool,
    #[command(flatten)]
    sharing: Sharing,
    /// The device to train on from now on; defaults to the previous one
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    after_reboot: Interrupted,
    #[command(flatten)]
    elsewhere: TakeOver,
    /// Continue from the checkpoint of this step, also one that was set aside; newer ones are set aside
    #[arg(long, value_name = "STEP")]
    from: Option<u64>,
    /// Continue on another rung: down, up, or the name or number of a rung
    #[arg(long, value_name = "RUNG", conflicts_with_all = ["as_base", "branch", "interrupted"])]
    rung: Option<String>,
    /// Start a new run from the weights only: fresh optimizer, clock at 0
    #[arg(long)]
    as_base: bool,
    /// Start a new run from the checkpoint, with its optimizer and clock; this run stays as it is
    #[arg(long, conflicts_with = "as_base")]
    branch: bool,
    /// With --as-base: factor on every rung's learning rate
    #[arg(long, value_name = "F", requires = "as_base", conflicts_with = "branch", value_parser = parse_factor)]
    lr_factor: Option<f64>,
    /// With --as-base: number of epochs; to train on from the end, see `run --from`
    #[arg(long, value_name = "N", requires = "as_base", conflicts_with = "branch", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    #[command(flatten)]
    trust: Trust,
}

fn parse_factor(text: &str) -> Result<f64, BadValue> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or(BadValue::Factor)
}

pub fn resume(args: &ResumeArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    let since_ms = jiff::Timestamp::now().as_millisecond();
    if args.after_reboot.interrupted {
        return Ok(interrupted::resume_all(runs, args.after_reboot));
    }
    let dir = find_run(runs, args.which.run.as_deref())?;
    permissions::check(&dir)?;
    if args.as_base {
        return begin_from(&dir, Origin::Weights, args, runs, trainer);
    }
    if args.branch {
        return begin_from(&dir, Origin::Checkpoint, args, runs, trainer);
    }
    if owners::keeper_elsewhere(&dir).is_some() {
        take_over_ended(&dir, args.elsewhere.take_over)?;
    }
    match continue_living(&dir, args)? {
        // Whoever started the run follows it: without a terminal this was a request, like `pause`.
        Living::Asked if !args.headless && !has_terminal() => return Ok(0),
        Living::Asked | Living::Unheard => return look_on(&dir, args.headless, since_ms),
        Living::No => {}
    }
    refuse_finished(&dir, args, trainer)?;
    let next = NextStart::later(&dir, Precedence::Shell);
    let launch = match ready(&dir, args, trainer, (1, &next))? {
        Settled::Start(launch) => launch,
        Settled::Attach(other) => return attach::open(&other),
    };
    args.from.map_or(Ok(()), |step| verify_goal(&dir, step))?;
    let target = args.rung.as_deref().map(Target::parse);
    let refused = |error: ChoiceError| Failure::new(2, format!("{}: {error}", dir.name()));
    if let Some(target) = &target {
        refuse_other_rung(&dir)?;
        OfflineKeeper::step_in(&dir)?.choose_rung(target).map_err(refused)?;
    }
    args.from.map_or(Ok(()), |step| go_back(&dir, step))?;
    if let Some(target) = &target {
        OfflineKeeper::step_in(&dir)?.shift(target).map_err(refused)?;
    }
    record_command_line(&dir);
    start_keeper(&dir, Some(&launch), next)?;
    look_on(&dir, args.headless, since_ms)
}

/// Whether a keeper was asked to continue its run.
enum Living {
    /// None watches the run.
    No,
    /// It was, and agreed.
    Asked,
    /// It does not answer; its parent may be starting another.
    Unheard,
}

/// Continues a run that a keeper watches.
fn continue_living(dir: &RunDir, args: &ResumeArgs) -> Result<Living, Failure> {
    for last_try in [false, true] {
        if !client::is_watched(dir)? {
            return Ok(Living::No);
        }
        let change = if args.from.is_some() {
            Some("rolling it back")
        } else {
            args.sharing.another.then_some("sharing its device")
        };
        if let Some(change) = change {
            let (name, stop) = (dir.name(), dir.command("stop"));
            return Err(Failure::new(1, format!("{name} is running; end it with `{stop}` before {change}")));
        }
        let is_over = || live_status(dir).is_some_and(|status| status.state.is_over());
        if let Some(rung) = args.rung.as_ref().filter(|rung| !is_on(dir, rung) && !is_over()) {
            line!("{}: {}", dir.name(), client::send_request(dir, &Request::Shift { to: Target::parse(rung) })?);
        }
        // A paused run continues, a running one stays as it is. A run that is over refuses, and its keeper ends.
        match client::ask_keeper(dir, &Request::Resume) {
            Ok(Reply::Accepted(message)) => {
                line!("{}: {message}", dir.name());
                return Ok(Living::Asked);
            }
            // A keeper that was killed this moment still accepts a connection; without a parent none follows it.
            Err(failure) if owners::parent_record(dir).is_none() => {
                if last_try || owners::keeper_elsewhere(dir).is_some() {
                    return Err(failure);
                }
                continue;
            }
            Ok(Reply::Refused(_)) => return client::wait_for_absence(dir).map(|()| Living::No),
            // Its keeper was about to exit.
            Err(_) if live_status(dir).is_some_and(|status| status.state.is_over()) => {
                return client::wait_for_absence(dir).map(|()| Living::No);
            }
            // The parent is starting another keeper.
            Err(_) => {}
        }
        return Ok(Living::Unheard);
    }
    Ok(Living::No)
}

/// Refuses another rung for a run that has nothing to continue, or whose command runs on.
fn refuse_other_rung(dir: &RunDir) -> Result<(), Failure> {
    let (name, state) = (dir.name(), live_status(dir).map(|status| status.state));
    if state == Some(RunState::Finished) {
        return Err(Failure::new(2, format!("{name} has finished, so no rung continues it")));
    }
    if owners::worker(dir).is_none() {
        return Ok(());
    }
    let (resume, shift) = (dir.command("resume"), dir.command("shift"));
    Err(Failure::new(
        2,
        format!("{name} runs on without a keeper; `{resume}` takes it over, then `{shift} RUNG` shifts it"),
    ))
}

/// Reports whether a run is on the rung with this name or number.
fn is_on(dir: &RunDir, rung: &str) -> bool {
    let named = dir.run().ok().and_then(|run| run.rung_named(rung));
    named.is_some() && named == live_status(dir).map(|status| status.rung)
}

/// The way a run without a keeper continues.
enum Settled {
    /// Start its keeper like this.
    Start(Launch),
    /// Open the cockpit on the run that uses its device.
    Attach(RunDir),
}

/// Checks that a run without a keeper can continue.
fn ready(dir: &RunDir, args: &ResumeArgs, trainer: &dyn Trainer, place: (u32, &NextStart)) -> Result<Settled, Failure> {
    let run = dir.run().map_err(Failure::config)?;
    trust::require_approval(&run, args.trust)?;
    refuse_lost_command(dir)?;
    has_room_to_go_on(dir, &run)?;
    settle_launch(dir, &run, args, trainer, place)
}

/// Refuses a run that has taken its last step, before anything is asked for it. Of a command nothing tells how it would train
/// on, and another start may replace its outputs.
pub(super) fn refuse_finished(dir: &RunDir, args: &ResumeArgs, trainer: &dyn Trainer) -> Result<(), Failure> {
    let Some(status) = live_status(dir).filter(|status| status.state == RunState::Finished) else { return Ok(()) };
    let Ok(run) = dir.run() else { return Ok(()) };
    let longer = command_from_checkpoint(dir, run.command.as_ref(), None);
    let why = if let Some(again) = commands(dir, run.command.as_ref()).again {
        let change = "to train it longer, change how long the script trains, then start a run from its end";
        let longer = longer.map_or_else(String::new, |longer| format!("; {change}: `{longer}`"));
        format!("{longer}; `{}` starts over", again.command)
    } else {
        let rung = status.rung.min(run.rungs.len() - 1);
        // Its length may have been raised since. An older checkpoint has steps left, also if the newest is damaged.
        let newest = checkpoint::list(dir.path()).into_iter().next().filter(|_| args.from.is_none());
        let newest = newest.filter(|newest| checkpoint::verify(&newest.path).is_ok());
        let state = newest.and_then(|newest| file::read(&newest.path.join(STATE), Limit::Record).ok());
        let Some(end) = state.and_then(|state| trainer.end_of_run(&run, rung, &state)) else { return Ok(()) };
        let unit = if run.rungs[rung].preset.training.epochs.is_some() { "epochs" } else { "steps" };
        let set = |line: String| format!("; `{line} --set training.{unit}=N` begins a new run from its end");
        format!(": {end}{}", longer.map_or_else(String::new, set))
    };
    Err(Failure::new(2, format!("{} has finished{why}", dir.name())))
}

/// Refuses a command that has ended and can neither resume nor start over. A keeper would only find that it is gone. One
/// that trains on without its keeper is taken over.
pub(super) fn refuse_lost_command(dir: &RunDir) -> Result<(), Failure> {
    let Some(status) = live_status(dir).filter(|_| owners::worker(dir).is_none()) else { return Ok(()) };
    let has_ended = status.state.is_over() || status.state == RunState::Unattended;
    let way = continuation(dir, Some(&status));
    if !has_ended || way.how != How::RunAgain {
        return Ok(());
    }
    let name = dir.name();
    if let Some(pid) = owners::command_process(dir) {
        let why = "the process that held its terminal is gone, and nothing of it can be resumed, so a resume would only end it";
        return Err(Failure::new(
            2,
            format!("the command of {name}, process {pid}, runs on: {why}; `kill {pid}` ends it"),
        ));
    }
    Err(Failure::new(
        2,
        format!(
            "{name} has ended, and nothing of it can be resumed; start it anew with `{}`, or write `restart: from_start` \
             into its run.yaml to let it start over",
            way.command
        ),
    ))
}

/// Checks that the run of a job, which has no keeper, can continue. Returns how to launch it.
pub fn ready_in_job(
    dir: &RunDir,
    sharing: &Sharing,
    trust: Trust,
    trainer: &dyn Trainer,
    next: &NextStart,
) -> Result<Launch, Failure> {
    permissions::check(dir)?;
    let args = ResumeArgs { headless: true, sharing: sharing.clone(), trust, ..ResumeArgs::default() };
    match ready(dir, &args, trainer, (count_nodes()?, next))? {
        Settled::Start(launch) => Ok(launch),
        Settled::Attach(other) => Err(Failure::new(2, format!("{} uses the device", other.name()))),
    }
}

/// Settles the devices of a run that has begun: the requested ones, or those of its last worker.
fn settle_launch(
    dir: &RunDir,
    run: &Run,
    args: &ResumeArgs,
    trainer: &dyn Trainer,
    (nodes, next): (u32, &NextStart),
) -> Result<Settled, Failure> {
    let visible = next.variable(VISIBLE);
    let stored = stored_launch(dir);
    let device = args.device.as_ref().map(|device| worker_device(run, device)).transpose()?;
    let devices = match &device {
        Some(device) => {
            let found = trainer.look_ahead(run, device).map_err(Failure::of)?.device;
            devices_of_later_start(run, device, &found, visible.as_deref())
        }
        None => devices_of_last_worker(dir, run, stored.as_ref(), visible.as_deref()),
    };
    let (inject, earlier) =
        stored.as_ref().map(|stored| (stored.inject.clone(), stored.claim.clone())).unwrap_or_default();
    let earlier = earlier.unwrap_or_default();
    let another = args.sharing.another || (earlier.another && !args.sharing.wait_for_card);
    let runs = dir.path().parent().unwrap_or_else(|| Path::new("."));
    match occupied::settle_devices(&devices, &Sharing { another, ..args.sharing }, args.headless, (runs, Some(dir)))? {
        Answer::Attach(other) => Ok(Settled::Attach(other)),
        Answer::Start(claim) => {
            check_ranks(run, &devices, nodes)?;
            let device = device.or(stored.map(|stored| stored.device)).unwrap_or_else(|| "auto".to_owned());
            let claim = ClaimRequest { after: earlier.after, ..claim };
            Ok(Settled::Start(Launch { device, claim: Some(claim), inject }))
        }
    }
}

fn devices_of_last_worker(dir: &RunDir, run: &Run, stored: Option<&Launch>, visible: Option<&str>) -> Devices {
    let launched = stored.map_or("auto", |stored| &stored.device);
    let named = live_status(dir).and_then(|status| status.device);
    devices_of_later_start(run, launched, named.as_deref().unwrap_or(launched), visible)
}

fn stored_launch(dir: &RunDir) -> Option<Launch> {
    Reader::open(dir).ok().and_then(|reader| reader.fact("launch"))
}

/// Checks the checkpoint of `step`, if it is where it was written.
fn verify_goal(dir: &RunDir, step: u64) -> Result<(), Failure> {
    let is_there = checkpoint::list(dir.path()).iter().any(|entry| entry.step == step);
    if let Some(adopted) = adopted::find(dir.path(), step) {
        adopted.verify_every_byte().map_err(Failure::checkpoint)?;
    } else if is_there || !set_aside::steps_aside(dir.path()).contains(&step) {
        checkpoints::load_chosen(dir, Some(step))?;
    }
    Ok(())
}

/// Makes the checkpoint of `step` the newest one.
fn go_back(dir: &RunDir, step: u64) -> Result<(), Failure> {
    for path in OfflineKeeper::step_in(dir)?.go_back_to(step)? {
        say(&format!("set aside: {}", text::path(&path)));
    }
    Ok(())
}
