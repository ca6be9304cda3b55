//! Parameters by path: `blocks.0.attention.weight`.
//!
//! Burn names parameters by ids that are fresh in each process. The path through the module's fields is the
//! same in every process, so gradients, moments and files are keyed by it. Tensors of any rank share one map
//! because the backend's own tensor type has no rank.

pub mod fit;
pub mod safetensors_file;

use super::native::ops;
use super::stored_tensor::{Masters, StoredTensor, as_f32};
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::tensor::{
    DType, Tensor, TensorData, TensorPrimitive,
    backend::{AutodiffBackend, Backend, ExecutionError},
    ops::{FloatTensor, FloatTensorOps, IntTensor, TransactionPrimitive},
    read_sync,
};
use std::{collections::BTreeMap, iter, sync::Arc};

/// Tensors of one backend by parameter path.
pub type Tensors<B> = BTreeMap<String, FloatTensor<B>>;
/// Values on the host by name: f32, or 8-bit codes.
pub type HostTensors = Vec<(String, Arc<TensorData>)>;

/// Erases the rank of a tensor.
pub fn erase_rank<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// Restores the rank of a tensor.
pub fn with_rank<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// The path from the root of a module to a visitor's current position.
#[derive(Default)]
pub struct Trail(Vec<String>);

impl Trail {
    /// Enters a field.
    pub fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    /// Leaves the field.
    pub fn leave(&mut self) {
        self.0.pop();
    }

    /// Returns the path, joined by dots.
    pub fn path(&self) -> String {
        self.0.join(".")
    }
}

/// Implements the path tracking of a visitor or mapper with a field `trail`.
macro_rules! follow_trail {
    () => {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.trail.enter(name);
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.trail.leave();
        }
    };
}
pub(super) use follow_trail;

/// Tensors queued for the host, read in one transfer.
pub struct TensorReader<B: Backend> {
    names: Vec<String>,
    tensors: Vec<FloatTensor<B>>,
    code_names: Vec<String>,
    codes: Vec<IntTensor<B>>,
    on_host: HostTensors,
}

impl<B: Backend> Default for TensorReader<B> {
    fn default() -> Self {
        let (names, code_names) = (Vec::new(), Vec::new());
        Self { names, tensors: Vec::new(), code_names, codes: Vec::new(), on_host: Vec::new() }
    }
}

impl<B: Backend> TensorReader<B> {
    /// Adds a tensor to be read as f32.
    pub fn add(&mut self, name: String, tensor: FloatTensor<B>) {
        self.names.push(name);
        self.tensors.push(as_f32::<B>(tensor));
    }

    /// Adds a piece of the optimizer's state in its own format.
    pub fn add_stored(&mut self, name: String, kept: StoredTensor<B>) {
        match kept {
            StoredTensor::Float(tensor) => self.add(name, tensor),
            StoredTensor::Codes(codes) => {
                self.code_names.push(name);
                self.codes.push(codes);
            }
            StoredTensor::Host(data) => self.on_host.push((name, data)),
        }
    }

    /// Waits for the values. Those of the device come first, in the order they were added.
    ///
    /// # Errors
    /// Returns the device's error, from this or earlier work.
    pub fn read_all(self) -> Result<HostTensors, ExecutionError> {
        // CUDA panics on an empty read.
        if self.tensors.is_empty() && self.codes.is_empty() {
            return Ok(self.on_host);
        }
        let transaction = TransactionPrimitive::new(self.tensors, Vec::new(), self.codes, Vec::new());
        let data = read_sync(B::tr_execute(transaction))?;
        let floats = iter::zip(self.names, data.read_floats);
        let codes = iter::zip(self.code_names, data.read_ints);
        let read = floats.chain(codes).map(|(name, data)| (name, Arc::new(data)));
        Ok(read.chain(self.on_host).collect())
    }
}

/// Adds every float parameter of a module, taken from `masters` if they hold it in full precision.
pub fn collect_parameters<B: Backend, M: Module<B>>(module: &M, masters: &Masters<B>, reader: &mut TensorReader<B>) {
    struct Visitor<'a, B: Backend> {
        trail: Trail,
        masters: &'a Masters<B>,
        reader: &'a mut TensorReader<B>,
    }
    impl<B: Backend> ModuleVisitor<B> for Visitor<'_, B> {
        follow_trail!();
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let path = self.trail.path();
            let master = self.masters.get(&path).cloned();
            self.reader.add_stored(path, master.unwrap_or_else(|| StoredTensor::Float(erase_rank(param.val()))));
        }
    }
    module.visit(&mut Visitor { trail: Trail::default(), masters, reader });
}

/// Returns the shape of every float parameter. Initializes lazy ones, in the module's order.
pub fn parameter_shapes<B: Backend, M: Module<B>>(module: &M) -> BTreeMap<String, Vec<usize>> {
    collect_shapes(module, true)
}

/// Returns the shape of every float parameter, without initializing them.
pub fn declared_shapes<B: Backend, M: Module<B>>(module: &M) -> BTreeMap<String, Vec<usize>> {
    collect_shapes(module, false)
}

fn collect_shapes<B: Backend, M: Module<B>>(module: &M, initializes: bool) -> BTreeMap<String, Vec<usize>> {
    struct Visitor {
        trail: Trail,
        initializes: bool,
        shapes: BTreeMap<String, Vec<usize>>,
    }
    impl<B: Backend> ModuleVisitor<B> for Visitor {
        follow_trail!();
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let shape = if self.initializes { param.val().shape() } else { param.lazy_shape() };
            self.shapes.insert(self.trail.path(), shape.to_vec());
        }
    }
    let mut visitor = Visitor { trail: Trail::default(), initializes, shapes: BTreeMap::new() };
    module.visit(&mut visitor);
    visitor.shapes
}

/// Reports whether any parameter of a module receives a gradient in a backward pass.
pub fn has_trained<B: Backend, M: Module<B>>(module: &M) -> bool {
    struct Visitor(bool);
    impl<B: Backend> ModuleVisitor<B> for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 |= param.val().is_require_grad();
        }
    }
    let mut visitor = Visitor(false);
    module.visit(&mut visitor);
    visitor.0
}

/// Reports whether a module has f16 parameters, whose gradients overflow easily.
pub fn has_f16<B: Backend, M: Module<B>>(module: &M) -> bool {
    struct Visitor(bool);
    impl<B: Backend> ModuleVisitor<B> for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 |= param.val().dtype() == DType::F16;
        }
    }
    let mut visitor = Visitor(false);
    module.visit(&mut visitor);
    visitor.0
}

/// Returns the number of values in the float parameters, without initializing them.
pub fn parameter_count<B: Backend, M: Module<B>>(module: &M) -> u64 {
    struct Visitor(u64);
    impl<B: Backend> ModuleVisitor<B> for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 += param.lazy_shape().num_elements() as u64;
        }
    }
    let mut visitor = Visitor(0);
    module.visit(&mut visitor);
    visitor.0
}

/// Moves the gradients of a backward pass into `sum`, as f32, each multiplied by `weight`. Without more that are
/// `summed` and a weight, those in 16 bits stay so where kernels of a GPU read them.
pub fn add_gradients<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    gradients: &mut B::Gradients,
    weight: f64,
    summed: bool,
    sum: &mut Tensors<B::InnerBackend>,
) {
    struct Visitor<'a, B: AutodiffBackend> {
        trail: Trail,
        gradients: &'a mut B::Gradients,
        weight: f64,
        summed: bool,
        sum: &'a mut Tensors<B::InnerBackend>,
    }
    impl<B: AutodiffBackend> ModuleVisitor<B> for Visitor<'_, B> {
        follow_trail!();
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let Some(gradient) = param.val().grad_remove(self.gradients) else { return };
            let stays = !self.summed && self.weight >= 1.0 && ops::has_gpu_kernels(&gradient);
            let mut gradient = erase_rank(gradient);
            if !stays {
                gradient = as_f32::<B::InnerBackend>(gradient);
            }
            if self.weight < 1.0 {
                gradient = B::InnerBackend::float_mul_scalar(gradient, self.weight.into());
            }
            let path = self.trail.path();
            if let Some(earlier) = self.sum.remove(&path) {
                gradient = B::InnerBackend::float_add(earlier, gradient);
            }
            self.sum.insert(path, gradient);
        }
    }
    module.visit(&mut Visitor { trail: Trail::default(), gradients, weight, summed, sum });
}
