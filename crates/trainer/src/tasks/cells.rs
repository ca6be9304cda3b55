//! Networks of cells (Zoph et al., 2018), as DARTS searches them (Liu, Simonyan, Yang, "DARTS: Differentiable
//! Architecture Search", 2019).
//!
//! ```text
//! image ─ stem ─ cell ─ cell/2 ─ cell ─ cell/2 ─ cell ─ mean over pixels ─ norm ─ linear ─ logits
//!
//! cell: the outputs of the two cells before ─▶ nodes, each the sum of its edges ─▶ all nodes, side by side
//!       an edge leads from an input or an earlier node, through operations, to a node
//! ```
//! The same cell serves both tasks. In a search its edges hold every operation, mixed by the architecture; in a network
//! built from a genotype each node has two edges with one operation. Feature maps are `[batch, height, width,
//! channels]`. Where DARTS has batch norms, these are norms over the channels of each pixel, as everywhere in
//! `task: vision`, so the split into micro-batches changes nothing.

pub mod cell;
pub mod drawing;
pub mod genotype;
pub mod operation;
