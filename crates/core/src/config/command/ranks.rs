//! Several ranks: how `ranks: N` becomes a command of torchrun, and how many ranks any command starts.
//!
//! ```text
//! [python, train.py, --lr=1]   ranks: 2
//!   ──▶ [python, -m, torch.distributed.run, --standalone, --nproc-per-node=2, --max-restarts=0, train.py, --lr=1]
//! ```
//! On several nodes each starts its share: `--nnodes=2 --node-rank=0 --nproc-per-node=1 --master-addr=n1 --master-port=…` in
//! place of `--standalone`. The number of ranks is read from the words that are started, whoever wrote them.

use super::CommandLaunch;
use super::invocation::{Launcher, Target, find_script};
use super::nodes::NodePlace;
use std::ffi::OsString;

/// Maximum number of ranks of one run.
pub const MAX_RANKS: u32 = 64;
/// The port at which ranks meet, unless another one is given, with torchrun and with accelerate.
const DEFAULT_PORT: u16 = 29_500;
/// The same for torchrun's own rendezvous.
const DEFAULT_RENDEZVOUS_PORT: u16 = 29_400;

/// Why a command cannot be started in several ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotRanked {
    /// It starts ranks itself.
    #[error("the command has a launcher already: {0}")]
    Launched(&'static str),
    /// It names no interpreter and script.
    #[error("only `python` with a script or a module can be started in ranks")]
    NoScript,
    /// An option of the interpreter, which the launcher would get, but not the ranks.
    #[error("python's option {0} would reach the launcher, but not the ranks")]
    Option(String),
}

impl NotRanked {
    /// Returns the way out.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Launched(_) => "write [python, train.py], which downshift starts under torchrun, or remove `ranks`",
            Self::NoScript => "write [python, train.py] or [python, -m, package.train]",
            Self::Option(_) => "set its variable below `environment` instead, such as PYTHONWARNINGS or PYTHONDEVMODE",
        }
    }
}

/// Returns the command that starts the script of `words` in as many ranks, with the same interpreter; on several nodes, the
/// part of a node.
///
/// # Errors
/// Returns an error when the command is not Python with a script, or has a launcher.
pub fn under_torchrun(words: &[String], ranks: u32, place: &NodePlace) -> Result<Vec<String>, NotRanked> {
    let found = find_script(words).ok_or(NotRanked::NoScript)?;
    if let Some(launcher) = found.launcher {
        return Err(NotRanked::Launched(launcher.name()));
    }
    let python = found.interpreter.ok_or(NotRanked::NoScript)?;
    let named_by = if matches!(found.target, Target::Module(_)) { 2 } else { 1 };
    let script = found.arguments - named_by;
    // torchrun starts each rank with -u.
    if let Some(option) = words[python + 1..script].iter().find(|option| *option != "-u") {
        return Err(NotRanked::Option(option.clone()));
    }
    let launcher = ["-m", "torch.distributed.run"].map(str::to_owned).into_iter();
    let launcher: Vec<String> =
        launcher.chain(group_options(ranks, place)).chain(["--max-restarts=0".to_owned()]).collect();
    Ok([&words[..=python], &launcher, &words[script..]].concat())
}

/// Returns the options by which the ranks find each other.
fn group_options(ranks: u32, place: &NodePlace) -> Vec<String> {
    let NodePlace { node, nodes, head, port } = place;
    let here = ranks / (*nodes).max(1);
    if *nodes == 1 {
        return vec!["--standalone".to_owned(), format!("--nproc-per-node={here}")];
    }
    vec![
        format!("--nnodes={nodes}"),
        format!("--node-rank={node}"),
        format!("--nproc-per-node={here}"),
        format!("--master-addr={head}"),
        format!("--master-port={port}"),
    ]
}

/// The ranks that a command starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks {
    /// The ranks on this machine; none if the launcher takes one for each card, or only the ranks know.
    pub here: Option<u32>,
    /// The machines.
    pub machines: u32,
    /// Where the ranks meet; none if the launcher finds a free port itself.
    pub meeting: Option<Meeting>,
}

/// The place where ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// The name or address of its machine.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How the user names another port.
    pub key: &'static str,
    /// Rank 0 is started here, so the port has to be free.
    pub is_here: bool,
}

impl Ranks {
    /// Returns the ranks that a start names: options of a launcher, or the variables of torch.distributed. None for a
    /// command that names none. `variable` returns a variable that the command inherits.
    #[must_use]
    pub fn of(launch: &CommandLaunch, variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let text = |name: &str| {
            let own = launch.environment.get(name).cloned();
            own.or_else(|| variable(name))?.into_string().ok().filter(|text| !text.is_empty())
        };
        match find_script(&launch.argv) {
            Some(found) if found.launcher == Some(Launcher::Torchrun) => {
                Some(Self::of_torchrun(&Options(&launch.argv[..found.arguments])))
            }
            Some(found) if found.launcher == Some(Launcher::Accelerate) => {
                Some(Self::of_accelerate(&Options(&launch.argv[..found.arguments])))
            }
            _ => Self::of_variables(text),
        }
    }

    fn of_torchrun(options: &Options<'_>) -> Self {
        let here = options.value("nproc-per-node").map_or(Some(1), |count| count.parse().ok());
        // An elastic group has a range: `1:4`.
        let machines = options.value("nnodes").and_then(|count| count.rsplit(':').next()?.parse().ok()).unwrap_or(1);
        let is_here = options.value("node-rank").is_none_or(|rank| rank == "0");
        let endpoint = options.value("rdzv-endpoint").filter(|endpoint| !endpoint.is_empty());
        let meeting = if options.has("standalone") {
            None
        } else if let Some(endpoint) = endpoint {
            let (host, port) = split_endpoint(endpoint, DEFAULT_RENDEZVOUS_PORT);
            let of_group = options.value("rdzv-backend").is_some_and(|backend| backend != "static");
            // Such a group is joined by all: whoever comes first listens.
            Some(Meeting { host, port, key: "--rdzv-endpoint", is_here: is_here && !of_group })
        } else {
            let host = options.value("master-addr").unwrap_or("127.0.0.1").to_owned();
            let port = options.value("master-port").and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT);
            Some(Meeting { host, port, key: "--master-port", is_here })
        };
        Self { here, machines, meeting: meeting.filter(|meeting| meeting.port != 0) }
    }

    fn of_accelerate(options: &Options<'_>) -> Self {
        let number = |name: &str| options.value(name).and_then(|number| number.parse::<u32>().ok());
        let machines = number("num-machines").unwrap_or(1).max(1);
        let here = number("num-processes").map(|all| all.div_ceil(machines));
        let several = here.is_some_and(|here| here > 1) || machines > 1;
        let host = options.value("main-process-ip").unwrap_or("127.0.0.1").to_owned();
        let port = options.value("main-process-port").and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT);
        let is_here = options.value("machine-rank").is_none_or(|rank| rank == "0");
        let meeting = Meeting { host, port, key: "--main_process_port", is_here };
        Self { here, machines, meeting: several.then_some(meeting).filter(|meeting| meeting.port != 0) }
    }

    /// Reads what a cluster's job sets. Without all of it, torch.distributed would not read it either.
    fn of_variables(text: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| text(name)?.parse::<u32>().ok();
        let (world, rank) = (number("WORLD_SIZE")?, number("RANK")?);
        let here = number("LOCAL_WORLD_SIZE");
        let machines = here.filter(|here| *here > 0).map_or(1, |here| world.div_ceil(here));
        let (host, port) = (text("MASTER_ADDR")?, text("MASTER_PORT")?.parse().ok()?);
        Some(Self { here, machines, meeting: Some(Meeting { host, port, key: "MASTER_PORT", is_here: rank == 0 }) })
    }

    /// Returns the number of ranks of the whole group, as far as it is known.
    #[must_use]
    pub fn world(&self) -> Option<u32> {
        self.here.map(|here| here.saturating_mul(self.machines))
    }

    /// Returns why the ranks of this machine have too few cards, and the way out. `cards` are those that the run sees; with
    /// none it trains on the CPU, where any number of ranks fits.
    #[must_use]
    pub fn misfit(&self, cards: usize) -> Option<(String, String)> {
        let here = self.here.filter(|here| cards > 0 && *here as usize > cards)?;
        let seen = if cards == 1 { "1 is".to_owned() } else { format!("{cards} are") };
        let wrong = format!("{here} ranks on this machine need {here} GPUs, and {seen} visible");
        let fix = format!("start {cards}, choose {here} cards with --device, or train on the CPU with --device cpu");
        Some((wrong, fix))
    }
}

/// The words of a launcher. Its options are written with `-` or `_`, as one word or as two.
struct Options<'a>(&'a [String]);

impl<'a> Options<'a> {
    fn value(&self, name: &str) -> Option<&'a str> {
        let at = |(at, word): (usize, &'a String)| match word.split_once('=') {
            Some((option, value)) if is_option(option, name) => Some(value),
            None if is_option(word, name) => self.0.get(at + 1).map(String::as_str),
            _ => None,
        };
        self.0.iter().enumerate().find_map(at)
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|word| is_option(word, name))
    }
}

fn is_option(word: &str, name: &str) -> bool {
    word.strip_prefix("--").is_some_and(|option| option.replace('_', "-") == name)
}

/// Splits `host:port`, also `[::1]:29400`.
fn split_endpoint(endpoint: &str, default: u16) -> (String, u16) {
    let (host, port) = match endpoint.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().unwrap_or(default)),
        _ => (endpoint, default),
    };
    (host.trim_matches(['[', ']']).to_owned(), port)
}

#[cfg(test)]
mod tests {
    use super::{CommandLaunch, Meeting, NodePlace, NotRanked, Ranks, under_torchrun};
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_script_is_started_under_torchrun_by_its_own_interpreter() {
        let launcher = "-m torch.distributed.run --standalone --nproc-per-node=3 --max-restarts=0";
        for (line, before, after) in [
            ("python train.py --lr 1", "python", "train.py --lr 1"),
            ("/venv/bin/python3.12 -u train.py", "/venv/bin/python3.12", "train.py"),
            ("python -m pkg.train --lr 1", "python", "-m pkg.train --lr 1"),
            ("uv run python train.py", "uv run python", "train.py"),
            ("env A=1 nice -n 5 python train.py", "env A=1 nice -n 5 python", "train.py"),
        ] {
            let expected = format!("{before} {launcher} {after}");
            assert_eq!(under_torchrun(&words(line), 3, &NodePlace::default()).unwrap().join(" "), expected, "{line}");
        }
        for (line, wrong) in [
            ("torchrun --nproc-per-node=2 train.py", NotRanked::Launched("torchrun")),
            ("accelerate launch train.py", NotRanked::Launched("accelerate launch")),
            ("python -c print(1)", NotRanked::NoScript),
            ("./train.sh", NotRanked::NoScript),
            ("uv run train.py", NotRanked::NoScript),
            ("python -X dev train.py", NotRanked::Option("-X".to_owned())),
        ] {
            assert_eq!(under_torchrun(&words(line), 3, &NodePlace::default()), Err(wrong), "{line}");
        }
    }

    #[test]
    fn each_node_starts_its_share_of_the_ranks() {
        let place = NodePlace { node: 1, nodes: 2, head: "n1".to_owned(), port: 4711 };
        let started = under_torchrun(&words("python train.py --lr 1"), 6, &place).unwrap();
        let launcher =
            "--nnodes=2 --node-rank=1 --nproc-per-node=3 --master-addr=n1 --master-port=4711 --max-restarts=0";
        assert_eq!(started.join(" "), format!("python -m torch.distributed.run {launcher} train.py --lr 1"));
        let found = ranks(&started.join(" "), &[]).unwrap();
        assert_eq!((found.here, found.world()), (Some(3), Some(6)));
        assert_eq!(found.meeting, Some(meeting("n1", 4711, "--master-port", false)));
    }

    fn ranks(line: &str, variables: &[(&str, &str)]) -> Option<Ranks> {
        let argv = words(line);
        let launch = CommandLaunch { argv, directory: PathBuf::new(), environment: BTreeMap::new(), files: Vec::new() };
        let inherited = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| value.into());
        Ranks::of(&launch, inherited)
    }

    fn meeting(host: &str, port: u16, key: &'static str, is_here: bool) -> Meeting {
        Meeting { host: host.to_owned(), port, key, is_here }
    }

    #[test]
    fn the_ranks_of_a_launcher_are_read_however_they_are_written() {
        for (line, here, machines, meets) in [
            ("torchrun --standalone --nproc-per-node=4 train.py", Some(4), 1, None),
            (
                "python -m torch.distributed.run --nproc_per_node 2 t.py --nnodes 9",
                Some(2),
                1,
                Some(meeting("127.0.0.1", 29_500, "--master-port", true)),
            ),
            (
                "torchrun --nproc-per-node gpu --master_port=1234 t.py",
                None,
                1,
                Some(meeting("127.0.0.1", 1234, "--master-port", true)),
            ),
            (
                "torchrun --nnodes=1:3 --node-rank=1 --master-addr=node-0 t.py",
                Some(1),
                3,
                Some(meeting("node-0", 29_500, "--master-port", false)),
            ),
            (
                "torchrun --rdzv-backend=c10d --rdzv-endpoint=[::1] t.py",
                Some(1),
                1,
                Some(meeting("::1", 29_400, "--rdzv-endpoint", false)),
            ),
            (
                "torchrun --rdzv-endpoint=node-0:77 t.py",
                Some(1),
                1,
                Some(meeting("node-0", 77, "--rdzv-endpoint", true)),
            ),
            ("torchrun --rdzv-endpoint=localhost:0 t.py", Some(1), 1, None),
            (
                "accelerate launch --num_processes 6 --num_machines 2 t.py",
                Some(3),
                2,
                Some(meeting("127.0.0.1", 29_500, "--main_process_port", true)),
            ),
            ("accelerate launch t.py", None, 1, None),
        ] {
            let expected = Ranks { here, machines, meeting: meets };
            assert_eq!(ranks(line, &[]), Some(expected), "{line}");
        }
        let job = [("WORLD_SIZE", "8"), ("RANK", "4"), ("MASTER_ADDR", "node-0"), ("MASTER_PORT", "29500")];
        let found = ranks("python train.py", &job).unwrap();
        assert_eq!((found.world(), found.meeting), (None, Some(meeting("node-0", 29_500, "MASTER_PORT", false))));
        assert_eq!(ranks("python train.py", &job[..2]), None);
        assert_eq!(ranks("torchrun --nnodes=2 --nproc-per-node=4 t.py", &job).unwrap().world(), Some(8));
    }

    #[test]
    fn more_ranks_than_cards_are_refused_where_there_are_cards() {
        let found = ranks("torchrun --standalone --nproc-per-node=4 t.py", &[]).unwrap();
        let (wrong, fix) = found.misfit(2).unwrap();
        assert_eq!(wrong, "4 ranks on this machine need 4 GPUs, and 2 are visible");
        assert!(fix.starts_with("start 2, choose 4 cards with --device"), "{fix}");
        assert_eq!((found.misfit(4), found.misfit(8), found.misfit(0)), (None, None, None));
    }
}
