//! A cell: nodes, and the edges that lead to them.

use super::genotype::{Nodes, Operation};
use super::operation::{Build, CellOperation, EPSILON, every_second_pixel, pointwise};
use crate::lora::projection::affine;
use crate::tasks::norm::{Norm, normalize};
use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Tensor, activation, backend::Backend};

/// The strengths that mix the operations of a searched cell.
#[derive(Debug, Clone)]
pub struct Mixture<B: Backend> {
    /// Of cells that keep the size, and of cells that halve it: `[edges, operations]`, each row sums to 1.
    pub strengths: [Tensor<B, 2>; 2],
    /// The strength of the auxiliary skip connection on every edge.
    pub auxiliary: f64,
}

/// The shape of a cell's input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellShape {
    /// The channels of the cell before the previous one, and of the previous one.
    pub inputs: [usize; 2],
    /// The channels of each node.
    pub channels: usize,
    /// Whether the cell halves its input.
    pub halves: bool,
    /// Whether the previous cell did, so that the one before it is twice as large.
    pub previous_halves: bool,
}

/// One edge.
#[derive(Debug, Module)]
struct CellEdge<B: Backend> {
    node: usize,
    from: usize,
    operations: Vec<CellOperation<B>>,
}

/// The first layer behind an input: ReLU, pointwise convolution, norm.
#[derive(Debug, Module)]
struct Entry<B: Backend> {
    halves: bool,
    pointwise: Linear<B>,
    norm: Option<Norm<B>>,
}

/// A cell.
#[derive(Debug, Module)]
pub struct Cell<B: Backend> {
    halves: bool,
    nodes: usize,
    entries: Vec<Entry<B>>,
    edges: Vec<CellEdge<B>>,
}

impl<B: Backend> Cell<B> {
    /// Returns a fresh cell with every operation on every edge.
    pub fn searched(nodes: usize, shape: CellShape, build: Build, device: &B::Device) -> Self {
        let all: Vec<Operation> =
            Operation::ALL.into_iter().filter(|operation| *operation != Operation::None).collect();
        let edges = (0..nodes).flat_map(|node| (0..node + 2).map(move |from| (node, from)));
        Self::new(nodes, edges.map(|(node, from)| (node, from, all.clone())), shape, build, device)
    }

    /// Returns a fresh cell of a genotype.
    pub fn of_genotype(nodes: &Nodes, shape: CellShape, build: Build, device: &B::Device) -> Self {
        let edges = nodes
            .iter()
            .enumerate()
            .flat_map(|(node, edges)| edges.iter().map(move |edge| (node, edge.from, vec![edge.operation])));
        Self::new(nodes.len(), edges, shape, build, device)
    }

    fn new(
        nodes: usize,
        edges: impl Iterator<Item = (usize, usize, Vec<Operation>)>,
        shape: CellShape,
        build: Build,
        device: &B::Device,
    ) -> Self {
        let channels = shape.channels;
        let entry = |from: usize, halves: bool| Entry {
            halves,
            pointwise: pointwise([from, channels], device),
            norm: build.scaled_norms.then(|| Norm::new(channels, true, EPSILON, device)),
        };
        let entries = vec![entry(shape.inputs[0], shape.previous_halves), entry(shape.inputs[1], false)];
        let edge = |(node, from, operations): (usize, usize, Vec<Operation>)| {
            let stride = if shape.halves && from < 2 { 2 } else { 1 };
            let build = |operation: Operation| CellOperation::new(operation, channels, stride, build, device);
            CellEdge { node, from, operations: operations.into_iter().map(build).collect() }
        };
        Self { halves: shape.halves, nodes, entries, edges: edges.map(edge).collect() }
    }

    /// Maps the outputs of the two cells before to this cell's, `[batch, height, width, nodes · channels]`.
    pub fn forward(&self, inputs: [Tensor<B, 4>; 2], mixture: Option<&Mixture<B>>) -> Tensor<B, 4> {
        let enter = |(entry, x): (&Entry<B>, Tensor<B, 4>)| entry.forward(x);
        let mut states: Vec<Tensor<B, 4>> = self.entries.iter().zip(inputs).map(enter).collect();
        for node in 0..self.nodes {
            let edges = self.edges.iter().enumerate().filter(|(_, edge)| edge.node == node);
            let parts = edges.map(|(row, edge)| self.follow(row, edge, &states, mixture));
            if let Some(sum) = parts.reduce(|sum, part| sum + part) {
                states.push(sum);
            }
        }
        Tensor::cat(states.split_off(2), 3)
    }

    /// Returns an edge's part of its node.
    fn follow(
        &self,
        row: usize,
        edge: &CellEdge<B>,
        states: &[Tensor<B, 4>],
        mixture: Option<&Mixture<B>>,
    ) -> Tensor<B, 4> {
        let x = states[edge.from].clone();
        let mixed = edge.operations.iter().map(|operation| {
            let y = operation.forward(x.clone());
            let Some(mixture) = mixture else { return y };
            let strengths = &mixture.strengths[usize::from(self.halves)];
            let column = operation.column();
            let strength = strengths.clone().slice([row..row + 1, column..column + 1]).reshape([1, 1, 1, 1]);
            let auxiliary = if operation.is_skip() { mixture.auxiliary } else { 0.0 };
            let strength = if auxiliary > 0.0 { strength.add_scalar(auxiliary) } else { strength };
            y * strength
        });
        mixed.reduce(|sum, part| sum + part).unwrap_or(x)
    }
}

impl<B: Backend> Entry<B> {
    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let x = if self.halves { every_second_pixel(x) } else { x };
        let x = affine(activation::relu(x), self.pointwise.weight.val(), None);
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => normalize(x, EPSILON),
        }
    }
}

/// The sizes of a network of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkShape {
    /// The channels of each node of the first cells; they double wherever the image is halved.
    pub channels: usize,
    /// The cells.
    pub layers: usize,
    /// The nodes of the cells that keep the size, and of those that halve it.
    pub nodes: [usize; 2],
    /// The smaller side of the stem's output, in pixels.
    pub side: usize,
}

/// The smallest side that a network halves.
const SMALLEST: usize = 8;

impl NetworkShape {
    /// Returns the shapes of the cells. Cells at one and two thirds of the network halve, as far as the image allows.
    #[must_use]
    pub fn cells(&self) -> Vec<CellShape> {
        let (mut inputs, mut channels, mut side) = ([self.channels; 2], self.channels, self.side);
        let mut previous_halves = false;
        let cell = |layer: usize| {
            let third = [self.layers / 3, 2 * self.layers / 3].contains(&layer);
            let halves = third && side >= SMALLEST;
            if halves {
                channels *= 2;
                side = side.div_ceil(2);
            }
            let shape = CellShape { inputs, channels, halves, previous_halves };
            inputs = [inputs[1], channels * self.nodes[usize::from(halves)]];
            previous_halves = halves;
            shape
        };
        (0..self.layers).map(cell).collect()
    }

    /// Returns why a search would leave one kind of cell undecided, if the network has none of that kind.
    #[must_use]
    pub fn missing_cells(&self) -> Option<String> {
        let Self { layers, side, .. } = self;
        let missing = |halves: bool, what: &str, fix: &str| {
            let none = self.cells().iter().all(|cell| cell.halves != halves);
            none.then(|| format!("{layers} layers on {side} × {side} pixels have no cell that {what} the image; {fix}"))
        };
        missing(true, "halves", "set data.size to 8 or more")
            .or_else(|| missing(false, "keeps the size of", "set model.layers to 3 or more"))
    }

    /// Returns the channels of the last cell's output.
    #[must_use]
    pub fn features(&self) -> usize {
        self.cells().last().map_or(self.channels, |cell| cell.channels * self.nodes[usize::from(cell.halves)])
    }

    /// Returns the parameter count of the network, without building it. `edges` are start and operation of those of a
    /// cell that halves or does not; images have `colours` channels.
    #[must_use]
    pub fn parameter_count(
        &self,
        edges: impl Fn(bool) -> Vec<(usize, Operation)>,
        scaled_norms: bool,
        [colours, classes]: [usize; 2],
    ) -> u128 {
        let edges = [false, true].map(edges);
        let cell = |cell: CellShape| -> u128 {
            let channels = cell.channels as u128;
            let norms = if scaled_norms { 4 * channels } else { 0 };
            let entries: u128 = cell.inputs.iter().map(|from| *from as u128 * channels).sum();
            let operations = edges[usize::from(cell.halves)].iter().map(|(from, operation)| {
                let stride = if cell.halves && *from < 2 { 2 } else { 1 };
                operation.parameter_count(channels, stride, scaled_norms)
            });
            entries + norms + operations.sum::<u128>()
        };
        let (stem, features) = ((9 * colours as u128 + 1) * self.channels as u128, self.features() as u128);
        stem + self.cells().into_iter().map(cell).sum::<u128>() + 2 * features + (features + 1) * classes as u128
    }
}
