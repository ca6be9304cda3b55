//! The memory rules of each real backend, beyond the allocation of outputs: which operations return a view of
//! a buffer, which write into their input, and which need scratch memory. Derived from the sources of Burn
//! 0.21 (burn-flex, burn-cubecl).

use super::backend_model::BackendModel;
use burn::tensor::Shape;
use burn_ir::{
    BaseOperationIr, BoolOperationIr, FloatOperationIr, IntOperationIr, ModuleOperationIr, NumericOperationIr,
    OperationIr, TensorIr,
};
use std::ops::Range;

/// The layout of a tensor in its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    strides: Vec<isize>,
    shape: Vec<usize>,
    /// Whether it begins at the start of the buffer.
    from_start: bool,
}

impl View {
    /// Returns a view of the whole buffer, contiguous.
    #[must_use]
    pub fn whole(shape: &Shape) -> Self {
        let shape = shape[..].to_vec();
        let mut strides = vec![1; shape.len()];
        for place in (1..shape.len()).rev() {
            strides[place - 1] = strides[place] * shape[place].cast_signed();
        }
        Self { strides, shape, from_start: true }
    }

    /// Reports whether the tensor is contiguous from the start of the buffer.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let mut expected = 1;
        let in_rows = self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
            let fits = *stride == expected;
            expected *= size.cast_signed();
            fits
        });
        self.from_start && in_rows
    }
}

/// Returns the tensor that an operation may return a view of.
#[must_use]
pub fn viewed_input(op: &OperationIr) -> Option<&TensorIr> {
    match base_op(op)? {
        BaseOperationIr::Reshape(desc) | BaseOperationIr::Expand(desc) => Some(&desc.input),
        BaseOperationIr::SwapDims(desc) => Some(&desc.input),
        BaseOperationIr::Permute(desc) => Some(&desc.input),
        BaseOperationIr::Slice(desc) => Some(&desc.tensor),
        BaseOperationIr::Cast(desc) => Some(&desc.input),
        _ => None,
    }
}

/// Returns the output of an operation that returns a view of its input's buffer, or `None` if it has to copy.
#[must_use]
pub fn view_of_input<'a>(backend: BackendModel, op: &'a OperationIr, input: &View) -> Option<(&'a TensorIr, View)> {
    let (mut shape, mut strides) = (input.shape.clone(), input.strides.clone());
    let from_start = input.from_start;
    match base_op(op)? {
        BaseOperationIr::Reshape(desc) => {
            let units = backend != BackendModel::Flex && without_units(&shape).eq(without_units(&desc.out.shape));
            (input.is_whole() || units).then(|| {
                let mut view = View::whole(&desc.out.shape);
                if !input.is_whole() {
                    // Still strided: not contiguous.
                    view.strides.iter_mut().for_each(|stride| *stride += 1);
                }
                (&desc.out, view)
            })
        }
        BaseOperationIr::SwapDims(desc) => {
            shape.swap(desc.dim1, desc.dim2);
            strides.swap(desc.dim1, desc.dim2);
            Some((&desc.out, View { strides, shape, from_start }))
        }
        BaseOperationIr::Permute(desc) => {
            let strides = desc.axes.iter().map(|axis| strides[*axis]).collect();
            let shape = desc.axes.iter().map(|axis| input.shape[*axis]).collect();
            Some((&desc.out, View { strides, shape, from_start }))
        }
        BaseOperationIr::Expand(desc) => {
            let shape = desc.out.shape[..].to_vec();
            let new = shape.len() - input.shape.len();
            let stride = |place: usize| match place.checked_sub(new) {
                Some(old) if input.shape[old] == shape[place] => input.strides[old],
                _ => 0,
            };
            let strides = (0..shape.len()).map(stride).collect();
            Some((&desc.out, View { strides, shape, from_start }))
        }
        BaseOperationIr::Slice(desc) => {
            let shape = desc.out.shape[..].to_vec();
            if shape == input.shape {
                return Some((&desc.out, input.clone()));
            }
            let forward = desc.ranges.iter().all(|range| range.step > 0);
            let starts = desc.ranges.iter().all(|range| range.start == 0);
            let stepped = desc.ranges.iter().map(|range| range.step).chain(std::iter::repeat(1));
            let strides = strides.iter().zip(stepped).map(|(stride, step)| stride * step).collect();
            // The start of a larger buffer is not the whole buffer.
            let from_start =
                from_start && starts && desc.out.shape.num_elements() == input.shape.iter().product::<usize>();
            (backend == BackendModel::Flex && forward).then_some((&desc.out, View { strides, shape, from_start }))
        }
        BaseOperationIr::Cast(desc) => (desc.input.dtype == desc.out.dtype).then(|| (&desc.out, input.clone())),
        _ => None,
    }
}

fn without_units(shape: &[usize]) -> impl Iterator<Item = &usize> {
    shape.iter().filter(|size| **size != 1)
}

fn base_op(op: &OperationIr) -> Option<&BaseOperationIr> {
    match op {
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => Some(base),
        _ => None,
    }
}

/// Returns which of its inputs an operation may write the output at this place into.
#[must_use]
pub fn overwritable_inputs(backend: BackendModel, op: &OperationIr, place: usize, inputs: usize) -> Range<usize> {
    match (op, place) {
        // A kernel of our own writes an output over the input at its place.
        (OperationIr::Custom(_), _) => place.min(inputs)..(place + 1).min(inputs),
        (_, 0) => 0..first_overwritable(backend, op).min(inputs),
        _ => 0..0,
    }
}

/// Returns how many of its first inputs an operation may write its output into.
fn first_overwritable(backend: BackendModel, op: &OperationIr) -> usize {
    // The CPU only writes into the left operand.
    let operands = if backend == BackendModel::Flex { 1 } else { 2 };
    match op {
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => overwritable_operands(op, operands),
        OperationIr::Float(_, op) => match op {
            FloatOperationIr::Matmul(_)
            | FloatOperationIr::Cross(_)
            | FloatOperationIr::Random(_)
            | FloatOperationIr::IntoInt(_)
            | FloatOperationIr::IsNan(_)
            | FloatOperationIr::IsInf(_)
            | FloatOperationIr::Quantize(_)
            | FloatOperationIr::Dequantize(_)
            | FloatOperationIr::GridSample2d(_) => 0,
            _ => 1,
        },
        OperationIr::Int(op) => usize::from(!matches!(op, IntOperationIr::IntoFloat(_) | IntOperationIr::Matmul(_))),
        OperationIr::Bool(op) => {
            usize::from(!matches!(op, BoolOperationIr::IntoFloat(_) | BoolOperationIr::IntoInt(_)))
        }
        _ => match (backend, base_op(op)) {
            (BackendModel::Cube(_), Some(BaseOperationIr::MaskFill(_) | BaseOperationIr::MaskWhere(_))) => 1,
            _ => 0,
        },
    }
}

fn overwritable_operands(op: &NumericOperationIr, operands: usize) -> usize {
    match op {
        NumericOperationIr::Add(_)
        | NumericOperationIr::Sub(_)
        | NumericOperationIr::Div(_)
        | NumericOperationIr::Mul(_)
        | NumericOperationIr::Rem(_)
        | NumericOperationIr::Powi(_) => operands,
        NumericOperationIr::AddScalar(_)
        | NumericOperationIr::SubScalar(_)
        | NumericOperationIr::DivScalar(_)
        | NumericOperationIr::RemScalar(_)
        | NumericOperationIr::MulScalar(_)
        | NumericOperationIr::PowiScalar(_)
        | NumericOperationIr::Abs(_)
        | NumericOperationIr::Clamp(_) => 1,
        _ => 0,
    }
}

/// Returns the scratch bytes that an operation needs while it runs. `strided` reports whether a tensor is not
/// contiguous.
#[must_use]
pub fn scratch_bytes(backend: BackendModel, op: &OperationIr, strided: &dyn Fn(&TensorIr) -> bool) -> u64 {
    if let OperationIr::Module(ModuleOperationIr::LinearWeightBackward(desc)) = op {
        // One product per row of the batch, summed afterwards.
        let rank = desc.x.shape.num_dims();
        let rows: usize = desc.x.shape[..rank.saturating_sub(2)].iter().product();
        return if rows > 1 { rows as u64 * byte_size(&desc.out) } else { 0 };
    }
    if backend != BackendModel::Flex {
        return 0;
    }
    let copies = |tensors: &[&TensorIr]| -> u64 {
        tensors.iter().filter(|tensor| strided(tensor)).map(|tensor| byte_size(tensor)).sum()
    };
    match op {
        OperationIr::Module(op) => match op {
            // The transposed weight gets leading dimensions, which makes a copy.
            ModuleOperationIr::LinearXBackward(desc) if desc.output_grad.shape.num_dims() > 2 => {
                byte_size(&desc.weight)
            }
            // Zeros to add to, in addition to the sum.
            ModuleOperationIr::EmbeddingBackward(desc) => byte_size(&desc.out),
            ModuleOperationIr::Conv2d(desc) => copies(&[&desc.x]) + reorder_bytes(&desc.x, &desc.weight),
            ModuleOperationIr::Conv2dXBackward(desc) => copies(&[&desc.output_grad]),
            ModuleOperationIr::Conv2dWeightBackward(desc) => {
                if desc.weight.shape[1] == 1 {
                    0
                } else {
                    byte_size(&desc.x) + byte_size(&desc.output_grad)
                }
            }
            _ => 0,
        },
        _ => match base_op(op) {
            Some(
                BaseOperationIr::Gather(_)
                | BaseOperationIr::Scatter(_)
                | BaseOperationIr::Select(_)
                | BaseOperationIr::SelectAssign(_)
                | BaseOperationIr::MaskFill(_)
                | BaseOperationIr::MaskWhere(_)
                | BaseOperationIr::Cat(_),
            ) => copies(&op.inputs().collect::<Vec<_>>()),
            // A conversion through f64.
            Some(BaseOperationIr::Cast(desc)) => desc.input.shape.num_elements() as u64 * 8,
            _ => 0,
        },
    }
}

/// Returns the scratch bytes for reordering the input, which all convolutions but depthwise ones need.
fn reorder_bytes(x: &TensorIr, weight: &TensorIr) -> u64 {
    if weight.shape[1] == 1 { 0 } else { byte_size(x) }
}

fn byte_size(tensor: &TensorIr) -> u64 {
    (tensor.shape.num_elements() * tensor.dtype.size()) as u64
}
