//! Several nodes of a job: where a start of a command stands among them, and whether a command can be spread over them.

use super::launch::names_node;
use crate::config::run::Run;

/// The place of a start among the nodes of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace {
    /// The number of this node, from 0.
    pub node: u32,
    /// The number of nodes.
    pub nodes: u32,
    /// The name of the first node.
    pub head: String,
    /// A port of the first node at which the ranks can meet; 0 before a start.
    pub port: u16,
}

impl Default for NodePlace {
    /// Returns the place of a command on one machine.
    fn default() -> Self {
        Self { node: 0, nodes: 1, head: "127.0.0.1".to_owned(), port: 0 }
    }
}

/// Reason why a run cannot train on several nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSpread {
    /// A task of this program.
    #[error("the built-in task `{0}` trains in one process")]
    BuiltIn(String),
    /// The nodes would start different numbers of ranks.
    #[error("`ranks: {ranks}`{rung} cannot be divided evenly among {nodes} nodes")]
    Uneven {
        /// The ranks.
        ranks: u32,
        /// The nodes.
        nodes: u32,
        /// The rung, as a part of the sentence; empty for the body of the file.
        rung: String,
    },
    /// The command would start the whole training on each node.
    #[error("the command does not name its node, so each of {nodes} nodes would start the whole training{rung}")]
    Unnamed {
        /// The nodes.
        nodes: u32,
        /// The rung, as a part of the sentence; empty for the body of the file.
        rung: String,
    },
}

impl NotSpread {
    /// Returns the way out.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::BuiltIn(_) => "use one node".to_owned(),
            Self::Uneven { ranks, nodes, .. } => {
                format!("write `ranks: {}`, or use another number of nodes", ranks.next_multiple_of(*nodes))
            }
            Self::Unnamed { nodes, .. } => format!(
                "write `ranks: {nodes}` or a multiple, or pass {{node}}, {{nodes}}, {{head}} and {{port}} to your launcher"
            ),
        }
    }
}

/// Checks that every rung of a run can train on this many nodes.
///
/// # Errors
/// Returns the reason of the first rung that cannot.
pub fn check_spread(run: &Run, nodes: u32) -> Result<(), NotSpread> {
    if nodes <= 1 {
        return Ok(());
    }
    let Some(spec) = &run.command else { return Err(NotSpread::BuiltIn(run.task.clone())) };
    for (index, rung) in run.rungs.iter().enumerate() {
        let named = || if index == 0 { String::new() } else { format!(" on rung `{}`", rung.name) };
        match rung.preset.ranks {
            Some(ranks) if !ranks.is_multiple_of(nodes) => {
                return Err(NotSpread::Uneven { ranks, nodes, rung: named() });
            }
            None if !names_node(spec, &rung.preset) => return Err(NotSpread::Unnamed { nodes, rung: named() }),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{NotSpread, check_spread};
    use crate::config::run::{AsWritten, Run, Source};
    use std::path::Path;

    fn run(body: &str) -> Run {
        let text = format!("name: x\ntask: command\n{body}\n");
        let source = Source { file: "x.yaml", text: &text, base: Path::new("/project"), overrides: &[] };
        Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    #[test]
    fn ranks_are_divided_evenly_among_the_nodes_on_every_rung() {
        let ranked = run("command: [python, train.py]\nranks: 4\nladder: [{ name: fewer, set: { ranks: 3 } }]");
        assert_eq!(check_spread(&ranked, 1), Ok(()));
        let error = check_spread(&ranked, 2).unwrap_err();
        assert_eq!(error.to_string(), "`ranks: 3` on rung `fewer` cannot be divided evenly among 2 nodes");
        assert!(error.fix().starts_with("write `ranks: 4`"), "{}", error.fix());
    }

    #[test]
    fn a_command_with_a_launcher_of_its_own_names_its_node() {
        let whole = run("command: [torchrun, --nnodes=2, train.py]");
        let error = check_spread(&whole, 2).unwrap_err();
        assert_eq!(error, NotSpread::Unnamed { nodes: 2, rung: String::new() });
        assert!(error.fix().contains("{node}, {nodes}, {head} and {port}"), "{}", error.fix());
        for named in [
            "command: [torchrun, '--node-rank={node}', train.py]",
            "command: [./train]\nenvironment: { NODE: '{node}' }",
        ] {
            assert_eq!(check_spread(&run(named), 2), Ok(()), "{named}");
        }
    }
}
