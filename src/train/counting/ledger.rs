//! The buffers, their holders, and the peak of their sizes.

use super::Habits;
use super::rules::{self, View};
use burn::tensor::{DType, Shape};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use std::collections::{BTreeSet, HashMap};

/// The use of a buffer, as far as its shape shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A buffer with the shape of a trained parameter, allocated after [`Ledger::tell_apart`].
    Gradient,
    /// A buffer with one value for each possible answer.
    Logits,
    /// Any other buffer.
    Other,
}

#[derive(Debug)]
struct Buffer {
    bytes: u64,
    held: u32,
    kind: Kind,
}

/// The peak since the last call of [`Ledger::look`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Level {
    /// Peak bytes, including scratch memory.
    pub peak: u64,
    /// Peak bytes of buffers that are neither gradients nor logits.
    pub others: u64,
    /// Peak bytes of logits.
    pub logits: u64,
    /// Peak bytes of gradients.
    pub gradients: u64,
    /// Bytes that came from the host.
    pub given: u64,
}

/// The bookkeeping of one count.
#[derive(Debug, Default)]
pub struct Ledger {
    habits: Habits,
    buffers: HashMap<u64, Buffer>,
    tensors: HashMap<TensorId, (u64, View)>,
    next: u64,
    live: u64,
    logits: u64,
    gradients: u64,
    level: Level,
    /// Shapes of the trained parameters.
    trained: BTreeSet<Vec<usize>>,
    /// The number of possible answers.
    answers: Option<usize>,
}

impl Ledger {
    /// Returns an empty ledger.
    #[must_use]
    pub fn new(habits: Habits) -> Self {
        Self { habits, ..Self::default() }
    }

    /// From now on, counts buffers with a shape in `trained` as gradients, and buffers with `answers` values
    /// per row as logits.
    pub fn tell_apart(&mut self, trained: BTreeSet<Vec<usize>>, answers: Option<usize>) {
        (self.trained, self.answers) = (trained, answers);
    }

    /// Returns the bytes currently allocated.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Returns the bytes currently allocated to buffers that are neither shaped like gradients nor logits.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.live - self.logits - self.gradients
    }

    /// Returns the peak since the last call, and starts a new one.
    pub fn look(&mut self) -> Level {
        let (live, logits, gradients) = (self.live, self.logits, self.gradients);
        let fresh = Level { peak: live, others: self.others(), logits, gradients, given: 0 };
        std::mem::replace(&mut self.level, fresh)
    }

    /// Counts an operation.
    pub fn take(&mut self, op: &OperationIr) {
        if let OperationIr::Drop(tensor) = op {
            self.release(tensor.id);
            return;
        }
        if let Some((input, out, view)) = self.view(op) {
            self.alias(&input, &out, view);
            self.consume(&input);
            return;
        }
        let inputs: Vec<&TensorIr> = op.inputs().collect();
        let outputs: Vec<&TensorIr> = op.outputs().collect();
        let taken_over = self.taken_over(op, &inputs, &outputs);
        let mut fresh = Vec::new();
        for out in &outputs {
            if self.tensors.contains_key(&out.id) {
                continue;
            }
            match taken_over {
                Some(buffer) if fresh.is_empty() => self.hold(buffer, out),
                _ => self.make(out),
            }
            fresh.push(out.id);
        }
        let strided = |tensor: &TensorIr| self.tensors.get(&tensor.id).is_some_and(|(_, view)| !view.is_whole());
        let side = rules::side(self.habits, op, &strided);
        self.rise(side);
        for input in inputs {
            self.consume(input);
        }
    }

    /// Counts a tensor made from host values.
    pub fn given(&mut self, id: TensorId, shape: &Shape, dtype: DType) {
        let tensor = TensorIr { id, shape: shape.clone(), status: TensorStatus::NotInit, dtype };
        self.make(&tensor);
        self.level.given += bytes_of(&tensor);
        self.rise(0);
    }

    /// Counts the read of a tensor, and frees it if nothing else holds it.
    pub fn consume(&mut self, tensor: &TensorIr) {
        if tensor.status == TensorStatus::ReadWrite {
            self.release(tensor.id);
        }
    }

    fn view(&self, op: &OperationIr) -> Option<(TensorIr, TensorIr, View)> {
        let input = rules::viewed(op)?;
        let (_, view) = self.tensors.get(&input.id)?;
        let (out, view) = rules::view(self.habits, op, view)?;
        Some((input.clone(), out.clone(), view))
    }

    /// Returns the input buffer that the output is written into.
    fn taken_over(&self, op: &OperationIr, inputs: &[&TensorIr], outputs: &[&TensorIr]) -> Option<u64> {
        let out = outputs.first()?;
        let fits = |input: &&&TensorIr| {
            let Some((buffer, view)) = self.tensors.get(&input.id) else { return false };
            let alone = self.buffers.get(buffer).is_some_and(|buffer| buffer.held == 1);
            input.status == TensorStatus::ReadWrite
                && alone
                && view.is_whole()
                && input.shape == out.shape
                && input.dtype.size() == out.dtype.size()
        };
        let inputs = inputs.get(..rules::overwritten(self.habits, op)).unwrap_or(inputs);
        inputs.iter().find(fits).and_then(|input| Some(self.tensors.get(&input.id)?.0))
    }

    fn alias(&mut self, input: &TensorIr, out: &TensorIr, view: View) {
        if let Some((buffer, _)) = self.tensors.get(&input.id) {
            let buffer = *buffer;
            if let Some(held) = self.buffers.get_mut(&buffer) {
                held.held += 1;
                self.tensors.insert(out.id, (buffer, view));
            }
        }
    }

    fn hold(&mut self, buffer: u64, out: &TensorIr) {
        if let Some(held) = self.buffers.get_mut(&buffer) {
            held.held += 1;
            self.tensors.insert(out.id, (buffer, View::whole(&out.shape)));
        }
    }

    fn make(&mut self, out: &TensorIr) {
        let (bytes, kind) = (bytes_of(out), self.kind(out));
        self.next += 1;
        self.buffers.insert(self.next, Buffer { bytes, held: 1, kind });
        self.tensors.insert(out.id, (self.next, View::whole(&out.shape)));
        self.live += bytes;
        match kind {
            Kind::Gradient => self.gradients += bytes,
            Kind::Logits => self.logits += bytes,
            Kind::Other => {}
        }
    }

    fn release(&mut self, id: TensorId) {
        let Some((number, _)) = self.tensors.remove(&id) else { return };
        let Some(buffer) = self.buffers.get_mut(&number) else { return };
        buffer.held -= 1;
        if buffer.held == 0 {
            let Buffer { bytes, kind, .. } = *buffer;
            self.buffers.remove(&number);
            self.live -= bytes;
            match kind {
                Kind::Gradient => self.gradients -= bytes,
                Kind::Logits => self.logits -= bytes,
                Kind::Other => {}
            }
        }
    }

    fn kind(&self, out: &TensorIr) -> Kind {
        let shape = &out.shape[..];
        if self.answers.is_some_and(|answers| shape.last() == Some(&answers) && !self.trained.contains(shape)) {
            Kind::Logits
        } else if self.trained.contains(shape) {
            Kind::Gradient
        } else {
            Kind::Other
        }
    }

    fn rise(&mut self, side: u64) {
        let others = self.others();
        let level = &mut self.level;
        level.peak = level.peak.max(self.live + side);
        level.others = level.others.max(others + side);
        level.logits = level.logits.max(self.logits);
        level.gradients = level.gradients.max(self.gradients);
    }
}

fn bytes_of(tensor: &TensorIr) -> u64 {
    (tensor.shape.num_elements() * tensor.dtype.size()) as u64
}
