//! The buffers, their holders, and the peak of their sizes.

use super::backend_model::BackendModel;
use super::pages::Pages;
use super::rules::{self, View};
use burn::tensor::{DType, Shape};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use std::any::Any;
use std::collections::{BTreeSet, HashMap};

/// The use of a buffer, as far as its shape shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A buffer with the shape of a trained parameter, allocated after [`Ledger::end_parameters`].
    Gradient,
    /// A buffer with one value for each possible answer.
    Logits,
    /// Any other buffer.
    Other,
}

#[derive(Debug)]
struct Buffer {
    bytes: u64,
    holders: u32,
    kind: Kind,
    /// Its room in a page.
    _room: Option<Box<dyn Any + Send>>,
}

/// The peak since the last call of [`Ledger::take_peak`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peak {
    /// Peak bytes, including scratch memory.
    pub peak: u64,
    /// Peak bytes of buffers that are neither gradients nor logits.
    pub others: u64,
    /// Peak bytes of logits.
    pub logits: u64,
    /// Peak bytes of gradients.
    pub gradients: u64,
    /// Bytes that came from the host.
    pub uploaded: u64,
    /// Bytes of the pages that were taken, or the peak where memory is not taken in pages.
    pub taken: u64,
}

/// The bookkeeping of one count.
#[derive(Debug, Default)]
pub struct Ledger {
    backend: BackendModel,
    pages: Option<Box<dyn Pages>>,
    buffers: HashMap<u64, Buffer>,
    tensors: HashMap<TensorId, (u64, View)>,
    next: u64,
    live: u64,
    logits: u64,
    gradients: u64,
    peak: Peak,
    /// Shapes of the trained parameters.
    trained: BTreeSet<Vec<usize>>,
    /// The number of possible num_classes.
    num_classes: Option<usize>,
}

impl Ledger {
    /// Returns an empty ledger.
    #[must_use]
    pub fn new(backend: BackendModel, pages: Option<Box<dyn Pages>>) -> Self {
        Self { backend, pages, ..Self::default() }
    }

    /// All parameters are there. From now on, counts buffers with a shape in `trained` as gradients, and buffers with
    /// `num_classes` values per row as logits.
    pub fn end_parameters(&mut self, trained: BTreeSet<Vec<usize>>, num_classes: Option<usize>) {
        if let Some(pages) = &mut self.pages {
            pages.end_parameters();
        }
        (self.trained, self.num_classes) = (trained, num_classes);
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
    pub fn take_peak(&mut self) -> Peak {
        let (live, logits, gradients) = (self.live, self.logits, self.gradients);
        let fresh = Peak { peak: live, others: self.others(), logits, gradients, uploaded: 0, taken: 0 };
        let peak = std::mem::replace(&mut self.peak, fresh);
        // Pages are kept when their tensors are gone.
        Peak { taken: self.pages.as_mut().map_or(peak.peak, |pages| pages.taken()), ..peak }
    }

    /// Counts an operation.
    pub fn record_op(&mut self, op: &OperationIr) {
        if let OperationIr::Drop(tensor) = op {
            self.release(tensor.id);
            return;
        }
        if let Some((input, out, view)) = self.view_of_input(op) {
            self.alias(&input, &out, view);
            self.consume(&input);
            return;
        }
        let inputs: Vec<&TensorIr> = op.inputs().collect();
        let outputs: Vec<&TensorIr> = op.outputs().collect();
        let overwritten: Vec<_> =
            outputs.iter().enumerate().map(|(place, out)| self.overwritten_buffer(op, &inputs, place, out)).collect();
        for (out, buffer) in outputs.iter().zip(overwritten) {
            if self.tensors.contains_key(&out.id) {
                continue;
            }
            match buffer {
                Some(buffer) => self.reuse(buffer, out),
                None => self.allocate(out),
            }
        }
        let strided = |tensor: &TensorIr| self.tensors.get(&tensor.id).is_some_and(|(_, view)| !view.is_whole());
        let scratch = rules::scratch_bytes(self.backend, op, &strided);
        self.update_peak(scratch);
        drop(self.reserve(scratch));
        for input in inputs {
            self.consume(input);
        }
    }

    /// Counts a tensor made from host values.
    pub fn record_upload(&mut self, id: TensorId, shape: &Shape, dtype: DType) {
        let tensor = TensorIr { id, shape: shape.clone(), status: TensorStatus::NotInit, dtype };
        self.allocate(&tensor);
        self.peak.uploaded += bytes_of(&tensor);
        self.update_peak(0);
    }

    /// Counts the read of a tensor, and frees it if nothing else holds it.
    pub fn consume(&mut self, tensor: &TensorIr) {
        if tensor.status == TensorStatus::ReadWrite {
            self.release(tensor.id);
        }
    }

    fn view_of_input(&self, op: &OperationIr) -> Option<(TensorIr, TensorIr, View)> {
        let input = rules::viewed_input(op)?;
        let (_, view) = self.tensors.get(&input.id)?;
        let (out, view) = rules::view_of_input(self.backend, op, view)?;
        Some((input.clone(), out.clone(), view))
    }

    /// Returns the input buffer that the output at this place is written into.
    fn overwritten_buffer(&self, op: &OperationIr, inputs: &[&TensorIr], place: usize, out: &TensorIr) -> Option<u64> {
        let fits = |input: &&&TensorIr| {
            let Some((buffer, view)) = self.tensors.get(&input.id) else { return false };
            let unshared = self.buffers.get(buffer).is_some_and(|buffer| buffer.holders == 1);
            input.status == TensorStatus::ReadWrite
                && unshared
                && view.is_whole()
                && input.shape == out.shape
                && input.dtype.size() == out.dtype.size()
        };
        let inputs = &inputs[rules::overwritable_inputs(self.backend, op, place, inputs.len())];
        inputs.iter().find(fits).and_then(|input| Some(self.tensors.get(&input.id)?.0))
    }

    fn alias(&mut self, input: &TensorIr, out: &TensorIr, view: View) {
        if let Some((buffer, _)) = self.tensors.get(&input.id) {
            let number = *buffer;
            if let Some(buffer) = self.buffers.get_mut(&number) {
                buffer.holders += 1;
                self.tensors.insert(out.id, (number, view));
            }
        }
    }

    fn reuse(&mut self, number: u64, out: &TensorIr) {
        if let Some(buffer) = self.buffers.get_mut(&number) {
            buffer.holders += 1;
            self.tensors.insert(out.id, (number, View::whole(&out.shape)));
        }
    }

    fn allocate(&mut self, out: &TensorIr) {
        let (bytes, kind) = (bytes_of(out), self.classify(out));
        self.next += 1;
        let room = self.reserve(bytes);
        self.buffers.insert(self.next, Buffer { bytes, holders: 1, kind, _room: room });
        self.tensors.insert(out.id, (self.next, View::whole(&out.shape)));
        self.live += bytes;
        match kind {
            Kind::Gradient => self.gradients += bytes,
            Kind::Logits => self.logits += bytes,
            Kind::Other => {}
        }
    }

    fn reserve(&mut self, bytes: u64) -> Option<Box<dyn Any + Send>> {
        self.pages.as_mut().filter(|_| bytes > 0).map(|pages| pages.reserve(bytes))
    }

    fn release(&mut self, id: TensorId) {
        let Some((number, _)) = self.tensors.remove(&id) else { return };
        let Some(buffer) = self.buffers.get_mut(&number) else { return };
        buffer.holders -= 1;
        if buffer.holders == 0 {
            let (bytes, kind) = (buffer.bytes, buffer.kind);
            self.buffers.remove(&number);
            self.live -= bytes;
            match kind {
                Kind::Gradient => self.gradients -= bytes,
                Kind::Logits => self.logits -= bytes,
                Kind::Other => {}
            }
        }
    }

    fn classify(&self, out: &TensorIr) -> Kind {
        let shape = &out.shape[..];
        if self
            .num_classes
            .is_some_and(|num_classes| shape.last() == Some(&num_classes) && !self.trained.contains(shape))
        {
            Kind::Logits
        } else if self.trained.contains(shape) {
            Kind::Gradient
        } else {
            Kind::Other
        }
    }

    fn update_peak(&mut self, scratch: u64) {
        let others = self.others();
        let peak = &mut self.peak;
        peak.peak = peak.peak.max(self.live + scratch);
        peak.others = peak.others.max(others + scratch);
        peak.logits = peak.logits.max(self.logits);
        peak.gradients = peak.gradients.max(self.gradients);
    }
}

fn bytes_of(tensor: &TensorIr) -> u64 {
    (tensor.shape.num_elements() * tensor.dtype.size()) as u64
}
