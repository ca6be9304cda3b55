//! Checks the ranks that a command starts: against the cards of the run, and where they meet.

use crate::config::command::first_launch;
use crate::config::command::nodes::check_spread;
use crate::config::command::ranks::Ranks;
use crate::config::run::Run;
use crate::diagnose::doctor::Check;
use crate::format::counted;
use crate::protocol::claim::Devices;
use crate::untrusted::port::check_meeting;
use std::env;

const NAME: &str = "ranks";

/// Checks the ranks of every rung, on this many nodes; none for a command that starts no ranks.
pub fn checks(run: &Run, devices: &Devices, nodes: u32) -> Vec<Check> {
    if let Err(error) = check_spread(run, nodes) {
        return vec![Check::fail("nodes", error.to_string(), error.fix())];
    }
    let on = |rung| first_launch(run, rung, nodes).and_then(|launch| Ranks::of(&launch, |name| env::var_os(name)));
    let cards = match devices {
        Devices::Cpu => 0,
        Devices::Cards(cards) => cards.len(),
    };
    let misfit = |rung: usize| {
        let (wrong, fix) = on(rung)?.misfit(cards)?;
        let place = if rung == 0 { String::new() } else { format!(", on rung `{}`", run.rungs[rung].name) };
        // Ranks of a launcher of your own may share a card, or train on the CPU.
        let asked_for = run.rungs[rung].preset.ranks.is_some();
        let new = if asked_for { Check::fail } else { Check::warn };
        Some(new(NAME, format!("{wrong}{place}"), fix))
    };
    // Rungs inherit the number of ranks.
    let misfit = (0..run.rungs.len()).find_map(misfit);
    let Some(full) = on(0) else { return misfit.into_iter().collect() };
    let meeting = full.meeting.as_ref().and_then(|meeting| {
        let refused = check_meeting(&meeting.host, meeting.port, meeting.is_here).err()?;
        let new = if refused.is_certain() { Check::fail } else { Check::warn };
        Some(new(NAME, refused.to_string(), refused.fix(meeting.key)))
    });
    // A job's own nodes are all kept.
    let machines = (full.machines > 1 && nodes == 1).then(|| {
        let text = format!("on {} machines: downshift keeps the ranks of this one", full.machines);
        Check::warn(
            NAME,
            text,
            "use one machine, or let downshift start the ranks in a Slurm job: `downshift sbatch --nodes`",
        )
    });
    let found: Vec<Check> = [misfit, meeting, machines].into_iter().flatten().collect();
    if found.is_empty() { vec![Check::ok(NAME, describe(&full, nodes))] } else { found }
}

fn describe(ranks: &Ranks, nodes: u32) -> String {
    let here = ranks.here.map_or("one for each card".to_owned(), |here| counted(u64::from(here), "rank"));
    let here = if nodes > 1 { format!("{here} on each of {nodes} nodes") } else { here };
    let meeting = ranks.meeting.as_ref();
    meeting.map_or_else(|| here.clone(), |meeting| format!("{here}, which meet at {}:{}", meeting.host, meeting.port))
}
