//! A genotype: the operations of both kinds of cell that a search ends with. Pure, without tensors.

use crate::task::DataError;
use crate::tasks::files::data_error;
use downshift_core::untrusted::file::{self, Limit};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The most nodes a cell may have.
pub const MOST_NODES: usize = 16;
/// The edges kept for each node.
const EDGES: usize = 2;

/// An operation on an edge of a cell, by the names of DARTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// No connection.
    None,
    /// The maximum of 3×3 pixels.
    #[serde(rename = "max_pool_3x3")]
    MaxPool3,
    /// The mean of 3×3 pixels.
    #[serde(rename = "avg_pool_3x3")]
    AveragePool3,
    /// The input itself.
    SkipConnect,
    /// A depthwise 3×3 and a pointwise convolution.
    #[serde(rename = "sep_conv_3x3")]
    Separable3,
    /// A depthwise 5×5 and a pointwise convolution.
    #[serde(rename = "sep_conv_5x5")]
    Separable5,
    /// A depthwise 3×3 convolution of every second pixel, and a pointwise one.
    #[serde(rename = "dil_conv_3x3")]
    Dilated3,
}

impl Operation {
    /// All, in the order of the architecture's columns.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::MaxPool3,
        Self::AveragePool3,
        Self::SkipConnect,
        Self::Separable3,
        Self::Separable5,
        Self::Dilated3,
    ];

    /// Returns side and dilation of its depthwise convolution, if it has one.
    #[must_use]
    pub fn kernel(self) -> Option<(usize, usize)> {
        match self {
            Self::Separable3 => Some((3, 1)),
            Self::Separable5 => Some((5, 1)),
            Self::Dilated3 => Some((3, 2)),
            Self::None | Self::MaxPool3 | Self::AveragePool3 | Self::SkipConnect => None,
        }
    }

    /// Returns the number of its parameters.
    #[must_use]
    pub fn parameter_count(self, channels: u128, stride: usize, scaled_norms: bool) -> u128 {
        let resamples = self == Self::SkipConnect && stride > 1;
        let norm = if scaled_norms { 2 * channels } else { 0 };
        match self.kernel() {
            Some((side, _)) => (side * side) as u128 * channels + channels * channels + norm,
            None if resamples => channels * channels + norm,
            None if matches!(self, Self::None | Self::SkipConnect) => 0,
            None => norm,
        }
    }

    /// Returns its name in a genotype.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::MaxPool3 => "max_pool_3x3",
            Self::AveragePool3 => "avg_pool_3x3",
            Self::SkipConnect => "skip_connect",
            Self::Separable3 => "sep_conv_3x3",
            Self::Separable5 => "sep_conv_5x5",
            Self::Dilated3 => "dil_conv_3x3",
        }
    }
}

/// Returns start and operation of every edge of a searched cell, with all operations on each.
#[must_use]
pub fn searched_edges(nodes: usize) -> Vec<(usize, Operation)> {
    let starts = (0..nodes).flat_map(|node| 0..node + 2);
    starts.flat_map(|from| Operation::ALL.map(|operation| (from, operation))).collect()
}

/// An edge of a genotype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Its start: 0 is the cell before the previous one, 1 the previous one, 2 the first node, and so on.
    pub from: usize,
    /// Its operation.
    pub operation: Operation,
}

/// The nodes of a cell, each with its edges.
pub type Nodes = Vec<Vec<Edge>>;

/// The cells of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Genotype {
    /// The cells that keep the size.
    pub normal: Nodes,
    /// The cells that halve it.
    pub reduce: Nodes,
}

/// `model.genotype`: a path in a run file; the run.yaml of a run holds the content, so the run does not depend on the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "the path of a genotype.json, or its content with `normal` and `reduce`")]
pub enum GenotypeSource {
    /// A file written by `checkpoints export --format genotype`.
    File(String),
    /// The genotype.
    Inline(Genotype),
}

impl GenotypeSource {
    /// Returns the genotype, read from its file if need be.
    ///
    /// # Errors
    /// Returns an error that names the file and the mistake.
    pub fn read(&self) -> Result<Genotype, DataError> {
        let (genotype, place) = match self {
            Self::Inline(genotype) => (genotype.clone(), Path::new("model.genotype")),
            Self::File(path) => (read_file(Path::new(path))?, Path::new(path)),
        };
        match genotype.mistake() {
            Some(mistake) => Err(data_error(place, format!("{mistake}; export it again"))),
            None => Ok(genotype),
        }
    }

    /// Returns the source with a relative path made absolute and then replaced by the file's content, if it is valid.
    #[must_use]
    pub fn resolved(self, absolute: &dyn Fn(&str) -> String) -> Self {
        let Self::File(path) = self else { return self };
        let source = Self::File(absolute(&path));
        source.read().map_or(source, Self::Inline)
    }
}

fn read_file(path: &Path) -> Result<Genotype, DataError> {
    let text = file::read_text(path, Limit::Record)
        .map_err(|error| data_error(path, format!("the genotype cannot be read ({error})")))?;
    serde_json::from_str(&text).map_err(|error| {
        let fix = "`downshift checkpoints RUN export --format genotype --out DIR` writes a genotype.json";
        data_error(path, format!("it is not a genotype ({error}); {fix}"))
    })
}

impl Genotype {
    /// Derives the genotype from the strengths of both cells; see [`derive_nodes`].
    #[must_use]
    pub fn derive(normal: &[Vec<f64>], reduce: &[Vec<f64>]) -> Self {
        Self { normal: derive_nodes(normal), reduce: derive_nodes(reduce) }
    }

    /// Returns the cell that keeps the size, or the one that halves it.
    #[must_use]
    pub fn cell(&self, halves: bool) -> &Nodes {
        if halves { &self.reduce } else { &self.normal }
    }

    /// Returns the numbers of nodes of both kinds of cell.
    #[must_use]
    pub fn node_counts(&self) -> [usize; 2] {
        [self.normal.len(), self.reduce.len()]
    }

    /// Returns start and operation of every edge of a cell.
    #[must_use]
    pub fn edges(&self, halves: bool) -> Vec<(usize, Operation)> {
        self.cell(halves).iter().flatten().map(|edge| (edge.from, edge.operation)).collect()
    }

    /// Returns it as JSON, a node a line.
    #[must_use]
    pub fn to_json(&self) -> String {
        let edge = |edge: &Edge| format!("{{\"from\": {}, \"operation\": \"{}\"}}", edge.from, edge.operation.name());
        let node = |edges: &Vec<Edge>| format!("    [{}]", edges.iter().map(edge).collect::<Vec<_>>().join(", "));
        let cell = |nodes: &Nodes| nodes.iter().map(node).collect::<Vec<_>>().join(",\n");
        format!("{{\n  \"normal\": [\n{}\n  ],\n  \"reduce\": [\n{}\n  ]\n}}\n", cell(&self.normal), cell(&self.reduce))
    }

    /// Returns what makes it impossible to build, if anything does.
    fn mistake(&self) -> Option<String> {
        let cells = [("normal", &self.normal), ("reduce", &self.reduce)];
        cells.into_iter().find_map(|(name, nodes)| {
            if nodes.is_empty() || nodes.len() > MOST_NODES {
                return Some(format!("`{name}` has {} nodes, and a cell has 1 to {MOST_NODES}", nodes.len()));
            }
            nodes.iter().enumerate().find_map(|(node, edges)| {
                let bad = edges.iter().find(|edge| edge.from >= node + 2 || edge.operation == Operation::None);
                match bad {
                    _ if edges.is_empty() || edges.len() > node + 2 => {
                        Some(format!("node {node} of `{name}` has {} edges, not 1 to {}", edges.len(), node + 2))
                    }
                    Some(edge) if edge.operation == Operation::None => {
                        Some(format!("node {node} of `{name}` has an edge with the operation none"))
                    }
                    Some(edge) => Some(format!("node {node} of `{name}` has an edge from {}, a later one", edge.from)),
                    None => None,
                }
            })
        })
    }
}

/// Returns the number of edges of a searched cell: each node is connected to both inputs and every earlier node.
#[must_use]
pub fn edge_count(nodes: usize) -> usize {
    (0..nodes).map(|node| node + 2).sum()
}

/// Derives the nodes of a cell from the strength of each operation on each edge: the two edges with the strongest
/// operation other than `none`, in the order of their starts. Of equals the earlier edge and the earlier operation win,
/// so the result is the same everywhere.
#[must_use]
pub fn derive_nodes(strengths: &[Vec<f64>]) -> Nodes {
    let (mut nodes, mut rest) = (Vec::new(), strengths);
    while let Some((edges, later)) = rest.split_at_checked(nodes.len() + 2).filter(|(edges, _)| !edges.is_empty()) {
        let mut best: Vec<(f64, Edge)> = edges.iter().enumerate().map(|(from, row)| strongest(from, row)).collect();
        // A stable sort keeps the order of equals.
        best.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut kept: Vec<Edge> = best.into_iter().take(EDGES).map(|(_, edge)| edge).collect();
        kept.sort_by_key(|edge| edge.from);
        nodes.push(kept);
        rest = later;
    }
    nodes
}

/// Returns the strongest operation of an edge other than `none`, with its strength.
pub(super) fn strongest(from: usize, row: &[f64]) -> (f64, Edge) {
    let start = (f64::NEG_INFINITY, Edge { from, operation: Operation::SkipConnect });
    let candidates = Operation::ALL.into_iter().zip(row).filter(|(operation, _)| *operation != Operation::None);
    candidates.fold(
        start,
        |best, (operation, strength)| {
            if *strength > best.0 { (*strength, Edge { from, operation }) } else { best }
        },
    )
}

/// Returns the mean entropy of the rows as a share of the largest possible: 1 = undecided, 0 = one operation on each
/// edge.
#[must_use]
pub fn entropy(strengths: &[Vec<f64>]) -> f64 {
    let of_row = |row: &Vec<f64>| -> f64 {
        let terms = row.iter().filter(|share| **share > 0.0).map(|share| -share * share.ln());
        terms.sum::<f64>() / (row.len().max(2) as f64).ln()
    };
    strengths.iter().map(of_row).sum::<f64>() / strengths.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::{Edge, Genotype, GenotypeSource, Operation, derive_nodes, edge_count, entropy};
    use proptest::prelude::*;

    /// Returns the strengths of an edge on which only this operation counts.
    fn row(operation: Operation, strength: f64) -> Vec<f64> {
        let rest = (1.0 - strength) / 6.0;
        Operation::ALL.map(|other| if other == operation { strength } else { rest }).to_vec()
    }

    #[test]
    fn a_node_keeps_the_two_edges_with_the_strongest_operation_other_than_none() {
        use Operation::{Dilated3, MaxPool3, None, Separable3, Separable5, SkipConnect};
        let strengths = [
            row(Separable3, 0.9),
            row(SkipConnect, 0.4),
            row(None, 0.99), // Nothing else on it counts.
            row(MaxPool3, 0.3),
            row(Dilated3, 0.5),
        ];
        let edge = |from, operation| Edge { from, operation };
        let nodes = vec![vec![edge(0, Separable3), edge(1, SkipConnect)], vec![edge(1, MaxPool3), edge(2, Dilated3)]];
        assert_eq!(derive_nodes(&strengths), nodes);
        let equal = vec![vec![1.0 / 7.0; 7]; edge_count(2)];
        let first = [0, 1].map(|from| edge(from, MaxPool3)).to_vec();
        assert_eq!(derive_nodes(&equal), [first.clone(), first], "of equals the first wins");
        assert!((entropy(&equal) - 1.0).abs() < 1e-12 && entropy(&[row(Separable5, 1.0)]).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn every_derived_genotype_is_valid_and_survives_its_file(
            values in prop::collection::vec(0.0f64..1.0, 7 * 14), nodes in 1usize..5,
        ) {
            let rows: Vec<Vec<f64>> = values.chunks(7).take(edge_count(nodes)).map(<[f64]>::to_vec).collect();
            let genotype = Genotype::derive(&rows, &rows);
            prop_assert_eq!(genotype.normal.len(), nodes);
            prop_assert!(genotype.mistake().is_none());
            prop_assert_eq!(serde_json::from_str::<Genotype>(&genotype.to_json()).unwrap(), genotype);
        }
    }

    #[test]
    fn a_genotype_that_cannot_be_built_is_refused_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("genotype.json");
        let edge = r#"{"from": 0, "operation": "sep_conv_3x3"}"#;
        for (normal, wanted) in [
            ("[]", "`normal` has 0 nodes"),
            ("[[]]", "node 0 of `normal` has 0 edges"),
            (r#"[[{"from": 2, "operation": "sep_conv_3x3"}]]"#, "an edge from 2"),
            (r#"[[{"from": 0, "operation": "none"}]]"#, "the operation none"),
            (r#"[[{"from": 0, "operation": "conv_9x9"}]]"#, "unknown variant `conv_9x9`"),
        ] {
            std::fs::write(&path, format!(r#"{{"normal": {normal}, "reduce": [[{edge}]]}}"#)).unwrap();
            let source = GenotypeSource::File(path.display().to_string());
            let error = source.read().unwrap_err();
            assert_eq!(error.file, path.display().to_string());
            assert!(error.message.contains(wanted), "{error}");
            assert_eq!(source.clone().resolved(&|path| path.to_owned()), source, "a bad file stays a path");
        }
    }
}
