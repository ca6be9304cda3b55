//! The first half of a start on another node: nothing of an earlier attempt is left there.

use super::node_guard::Claim;
use super::signals::Signals;
use crate::protocol::node::{NodeClaim, NodeOrder, NodeStart, Refused};
use crate::store::run_dir::RunDir;
use crate::store::socket_place;
use std::io;
use std::path::PathBuf;
use tokio::sync::mpsc;

/// Waits until all nodes are ready. Returns none if the harness is gone, or the step is told to end.
pub async fn wait_for_start(orders: &mut mpsc::Receiver<NodeOrder>, signals: &mut Signals) -> Option<NodeStart> {
    tokio::select! {
        order = orders.recv() => match order {
            Some(NodeOrder::Begin(start)) => Some(*start),
            _ => None,
        },
        () = Signals::asked_to_end(&mut signals.terminate, &mut signals.interrupt) => None,
    }
}

/// Returns what makes a refusal of a system's error.
pub fn refuse(what: &str) -> impl FnOnce(io::Error) -> Refused {
    move |error| Refused::Io { what: what.to_owned(), message: error.to_string() }
}

/// A node on which nothing of an earlier attempt is left.
pub struct ClaimedNode {
    pub node: u32,
    pub token: String,
    pub socket: PathBuf,
    pub claim: Claim,
}

impl ClaimedNode {
    /// Takes the claim of an attempt.
    ///
    /// # Errors
    /// Returns why the command cannot be started here.
    pub fn take(claim: NodeClaim) -> Result<Self, Refused> {
        let own = env!("CARGO_PKG_VERSION");
        if claim.build != own {
            return Err(Refused::Build { own: own.to_owned(), theirs: claim.build });
        }
        let run_dir = RunDir::open(&claim.run_dir).map_err(|error| Refused::RunDir(error.to_string()))?;
        let socket = socket_place::prepare_node(&run_dir, claim.node).map_err(refuse("the socket"))?;
        let held = Claim::take(&socket.with_extension("claim"), &claim)?;
        Ok(Self { node: claim.node, token: claim.token, socket, claim: held })
    }
}
