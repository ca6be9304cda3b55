//! Operations of the models as CubeCL kernels on a GPU, with gradients derived by hand.
//!
//! ```text
//! ops ── run ─────── Runner ┬─ Fused    adds the kernel to Burn's stream of operations
//!  │                        └─ Shapes   counts its outputs
//!  └─── apply ─ Operation   several kernels and products as one node of Burn's graph
//! ```
//! Kernels compute in f32 and read and write the number format of their tensors. None adds in an order that depends on
//! timing. An output is written over the input at its place if that fits and nothing else holds it.
#![expect(
    clippy::trivially_copy_pass_by_ref,
    clippy::used_underscore_binding,
    reason = "the macro reads the arguments of a kernel, whose tensors are empty types"
)]

mod activation;
mod attention;
mod cross_entropy;
mod layout;
mod linear;
mod norm;
mod optimizer;
mod softmax;
mod sum;

pub use activation::FusedGelu;
pub use attention::TiledAttention;
pub use cross_entropy::CrossEntropy;
pub use linear::GeluLinear;
pub use norm::FusedNorm;
pub use optimizer::{AddSquares, SUMS, UpdateAdamW};
pub use softmax::{CausalSoftmax, CausalSoftmaxGrad};
pub use sum::AddToSum;

use super::is_enabled;
use super::operation::{Operation, apply_on, take_as};
use super::runner::Shapes;
use crate::backends::{Fused, Plain};
use crate::gpu_runtime::GpuRuntime;
use burn::backend::Autodiff;
use burn::tensor::{DType, Shape, TensorMetadata, backend::Backend, ops::FloatTensor};
use burn_cubecl::fusion::FusionCubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::stream::{Operation as FusionOperation, OperationStreams};
use burn_fusion::{FusionHandle, FusionTensor};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, OperationOutput, TensorId, TensorIr, TensorStatus};
use burn_router::{RouterTensor, RunnerClient};
use cubecl::Runtime;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind, StorageType};
use std::any::Any;
use std::fmt::Debug;

type FusionRuntime = FusionCubeRuntime<GpuRuntime>;
/// A tensor on the GPU.
type GpuTensor = CubeTensor<GpuRuntime>;

/// A kernel from `I` tensors to `O`.
pub trait Kernel<const I: usize, const O: usize>: Debug + Clone + Send + Sync + 'static {
    /// Its name, the same for each shape.
    const NAME: &'static str;

    /// Returns shape and number format of the outputs.
    fn outputs(&self, inputs: [(Shape, DType); I]) -> [(Shape, DType); O];

    /// Launches it. An output of the shape and size of numbers of the input at its place takes that one's buffer
    /// (`layout::output_over_input`): the memory plan counts on it.
    fn launch(&self, inputs: [GpuTensor; I]) -> [GpuTensor; O];
}

/// A backend that kernels run on.
pub trait Runner: Backend {
    /// Reports whether kernels stand for the operations of this tensor's device.
    fn has_kernels(tensor: &FloatTensor<Self>) -> bool;

    /// Reports whether the tensor's device has matrix instructions for its number format.
    fn has_matrix_units(tensor: &FloatTensor<Self>) -> bool;

    /// Runs a kernel.
    fn run<K: Kernel<I, O>, const I: usize, const O: usize>(
        kernel: K,
        inputs: [FloatTensor<Self>; I],
    ) -> [FloatTensor<Self>; O];
}

/// Runs a kernel on tensors without a graph. Returns the inputs if kernels do not apply to them.
pub fn run<B: Backend, K: Kernel<I, O>, const I: usize, const O: usize>(
    kernel: K,
    inputs: [FloatTensor<B>; I],
) -> Result<[FloatTensor<B>; O], [FloatTensor<B>; I]> {
    if !applies::<B>(&inputs.each_ref()) {
        return Err(inputs);
    }
    let mut inputs = Some(inputs);
    let outputs = if let Some(inputs) = take_as::<_, [FloatTensor<Fused>; I]>(&mut inputs) {
        take_as(&mut Some(Fused::run(kernel, inputs)))
    } else if let Some(inputs) = take_as::<_, [FloatTensor<Shapes>; I]>(&mut inputs) {
        take_as(&mut Some(Shapes::run(kernel, inputs)))
    } else {
        None
    };
    match (outputs, inputs) {
        (Some(outputs), _) => Ok(outputs),
        (None, Some(inputs)) => Err(inputs),
        (None, None) => unreachable!("a backend has one type of tensors"),
    }
}

/// Computes an operation of kernels, in the graph if there is one. Returns `None` if kernels do not apply.
pub fn apply<B: Backend, O, const N: usize, const K: usize>(
    operation: &O,
    inputs: [&FloatTensor<B>; N],
) -> Option<FloatTensor<B>>
where
    O: Operation<Fused, N, K> + Operation<Shapes, N, K>,
{
    if !applies::<B>(&inputs) {
        return None;
    }
    let mut inputs = Some(inputs.map(Clone::clone));
    apply_on::<B, Fused, O, N, K>(operation, &mut inputs)
        .or_else(|| apply_on::<B, Shapes, O, N, K>(operation, &mut inputs))
}

/// Reports whether kernels apply to these tensors.
pub fn applies<B: Backend>(tensors: &[&FloatTensor<B>]) -> bool {
    is_enabled()
        && tensors.iter().all(|tensor| {
            matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16)
                && tensor.shape().num_elements() > 0
                && (tensor_of::<B, Fused>(tensor).is_some_and(Fused::has_kernels)
                    || tensor_of::<B, Shapes>(tensor).is_some_and(Shapes::has_kernels))
        })
}

/// Reports whether the tensor's device has matrix instructions for its number format.
pub fn has_matrix_units<B: Backend>(tensor: &FloatTensor<B>) -> bool {
    tensor_of::<B, Fused>(tensor).is_some_and(Fused::has_matrix_units)
        || tensor_of::<B, Shapes>(tensor).is_some_and(Shapes::has_matrix_units)
}

/// Returns the tensor on the backend `R`, without a graph, if it is on that.
fn tensor_of<B: Backend, R: Backend>(tensor: &FloatTensor<B>) -> Option<&FloatTensor<R>> {
    let tensor: &dyn Any = tensor;
    let plain = tensor.downcast_ref::<FloatTensor<R>>();
    plain.or_else(|| tensor.downcast_ref::<FloatTensor<Autodiff<R>>>().map(|tensor| &tensor.primitive))
}

/// Describes the outputs of a kernel, which have no values yet.
fn new_outputs<B: Backend, K: Kernel<I, O>, const I: usize, const O: usize>(
    kernel: &K,
    inputs: &[FloatTensor<B>; I],
    new_id: impl Fn() -> TensorId,
) -> [TensorIr; O] {
    let shapes = kernel.outputs(inputs.each_ref().map(|input| (input.shape(), input.dtype())));
    shapes.map(|(shape, dtype)| TensorIr { id: new_id(), shape, status: TensorStatus::NotInit, dtype })
}

impl Runner for Fused {
    fn has_kernels(_tensor: &FusionTensor<FusionRuntime>) -> bool {
        true
    }

    fn has_matrix_units(tensor: &FusionTensor<FusionRuntime>) -> bool {
        let kind = match tensor.dtype {
            DType::BF16 => FloatKind::BF16,
            DType::F16 => FloatKind::F16,
            _ => return false,
        };
        let number = StorageType::from(ElemType::Float(kind));
        let sum = StorageType::from(ElemType::Float(FloatKind::F32));
        let product = MmaConfig { a_type: number, b_type: number, cd_type: sum, m: 16, n: 8, k: 16 };
        let client = GpuRuntime::client(tensor.client.device());
        let features = &client.features().matmul;
        features.mma.contains(&product) && features.ldmatrix.contains(&number)
    }

    fn run<K: Kernel<I, O>, const I: usize, const O: usize>(
        kernel: K,
        inputs: [FloatTensor<Self>; I],
    ) -> [FloatTensor<Self>; O] {
        let streams = OperationStreams::with_inputs(&inputs);
        let client = inputs[0].client.clone();
        let outputs = new_outputs::<Self, K, I, O>(&kernel, &inputs, || client.create_empty_handle());
        let inputs = inputs.map(FusionTensor::into_ir);
        let operation = OperationIr::Custom(CustomOpIr::new(K::NAME, &inputs, &outputs));
        client.register(streams, operation, Launch { kernel, inputs, outputs }).outputs()
    }
}

/// A kernel in Burn's stream of operations.
#[derive(Debug)]
struct Launch<K, const I: usize, const O: usize> {
    kernel: K,
    inputs: [TensorIr; I],
    outputs: [TensorIr; O],
}

impl<K: Kernel<I, O>, const I: usize, const O: usize> FusionOperation<FusionRuntime> for Launch<K, I, O> {
    fn execute(&self, handles: &mut HandleContainer<FusionHandle<FusionRuntime>>) {
        let inputs = self.inputs.each_ref().map(|input| handles.get_float_tensor::<Plain>(input));
        for (output, tensor) in self.outputs.iter().zip(self.kernel.launch(inputs)) {
            handles.register_float_tensor::<Plain>(&output.id, tensor);
        }
    }
}

impl Runner for Shapes {
    fn has_kernels(tensor: &FloatTensor<Self>) -> bool {
        !tensor.client.device().is_cpu()
    }

    /// A plan knows no GPU, and takes it for one of compute capability 8.0 or later.
    fn has_matrix_units(tensor: &FloatTensor<Self>) -> bool {
        Self::has_kernels(tensor) && matches!(tensor.dtype(), DType::BF16 | DType::F16)
    }

    fn run<K: Kernel<I, O>, const I: usize, const O: usize>(
        kernel: K,
        inputs: [FloatTensor<Self>; I],
    ) -> [FloatTensor<Self>; O] {
        let client = inputs[0].client.clone();
        let outputs = new_outputs::<Self, K, I, O>(&kernel, &inputs, || client.create_empty_handle());
        let inputs = inputs.map(RouterTensor::into_ir);
        client.register(OperationIr::Custom(CustomOpIr::new(K::NAME, &inputs, &outputs))).outputs()
    }
}
