//! The processes of a command on several nodes. The id of a process means something on its own node only.

use crate::store::checkpoint::staged::StagedWriter;
use std::fmt;

/// A node of the run, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u32);

impl Node {
    /// The node of this process; to a harness, that is the first.
    pub const HERE: Self = Self(0);
}

/// A process of the command. Processes of two nodes may have the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePid {
    /// Its node.
    pub node: Node,
    /// Its id there.
    pub pid: u32,
}

impl NodePid {
    /// Returns the id, if the process is on this node: only then does it name a process in /proc.
    pub fn here(self) -> Option<u32> {
        (self.node == Node::HERE).then_some(self.pid)
    }
}

impl From<NodePid> for StagedWriter {
    fn from(NodePid { node, pid }: NodePid) -> Self {
        Self { node: node.0, pid }
    }
}

/// A connection of a companion: each node numbers its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerId {
    /// The node.
    pub node: Node,
    /// The number of the connection.
    pub connection: u64,
}

impl fmt::Display for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "node {}", self.0)
    }
}
