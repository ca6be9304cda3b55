//! What operations do with memory on each real backend, beyond making their outputs: which ones only
//! look at a buffer in another way, which ones write into what they read, and which ones need room
//! on the side. Read off the sources of Burn 0.21 (burn-flex, burn-cubecl).

use super::Habits;
use burn::tensor::Shape;
use burn_ir::{
    BaseOperationIr, BoolOperationIr, FloatOperationIr, IntOperationIr, ModuleOperationIr, NumericOperationIr,
    OperationIr, TensorIr,
};

/// How a tensor lies in its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    strides: Vec<isize>,
    shape: Vec<usize>,
    /// Whether it begins where the buffer begins.
    from_start: bool,
}

impl View {
    /// All of a buffer, row after row.
    #[must_use]
    pub fn whole(shape: &Shape) -> Self {
        let shape = shape[..].to_vec();
        let mut strides = vec![1; shape.len()];
        for place in (1..shape.len()).rev() {
            strides[place - 1] = strides[place] * shape[place].cast_signed();
        }
        Self { strides, shape, from_start: true }
    }

    /// Whether it lies row after row from the start of the buffer.
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

/// The tensor of which an operation may give a view.
#[must_use]
pub fn viewed(op: &OperationIr) -> Option<&TensorIr> {
    match base(op)? {
        BaseOperationIr::Reshape(desc) | BaseOperationIr::Expand(desc) => Some(&desc.input),
        BaseOperationIr::SwapDims(desc) => Some(&desc.input),
        BaseOperationIr::Permute(desc) => Some(&desc.input),
        BaseOperationIr::Slice(desc) => Some(&desc.tensor),
        BaseOperationIr::Cast(desc) => Some(&desc.input),
        _ => None,
    }
}

/// The output of an operation that only looks at the buffer of its input in another way; none where
/// it has to copy.
#[must_use]
pub fn view<'a>(habits: Habits, op: &'a OperationIr, input: &View) -> Option<(&'a TensorIr, View)> {
    let (mut shape, mut strides) = (input.shape.clone(), input.strides.clone());
    let from_start = input.from_start;
    match base(op)? {
        BaseOperationIr::Reshape(desc) => {
            let units = habits != Habits::Flex && without_units(&shape).eq(without_units(&desc.out.shape));
            (input.is_whole() || units).then(|| {
                let mut view = View::whole(&desc.out.shape);
                if !input.is_whole() {
                    // Still strided: no row after row.
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
            // The start of a larger buffer is not the whole of it.
            let from_start =
                from_start && starts && desc.out.shape.num_elements() == input.shape.iter().product::<usize>();
            (habits == Habits::Flex && forward).then_some((&desc.out, View { strides, shape, from_start }))
        }
        BaseOperationIr::Cast(desc) => (desc.input.dtype == desc.out.dtype).then(|| (&desc.out, input.clone())),
        _ => None,
    }
}

fn without_units(shape: &[usize]) -> impl Iterator<Item = &usize> {
    shape.iter().filter(|size| **size != 1)
}

fn base(op: &OperationIr) -> Option<&BaseOperationIr> {
    match op {
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => Some(base),
        _ => None,
    }
}

/// How many of the first inputs an operation may write its output into.
#[must_use]
pub fn overwritten(habits: Habits, op: &OperationIr) -> usize {
    // The CPU writes into the left operand alone.
    let operands = if habits == Habits::Flex { 1 } else { 2 };
    match op {
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => numeric(op, operands),
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
        _ => match (habits, base(op)) {
            (Habits::Cube(_), Some(BaseOperationIr::MaskFill(_) | BaseOperationIr::MaskWhere(_))) => 1,
            _ => 0,
        },
    }
}

fn numeric(op: &NumericOperationIr, operands: usize) -> usize {
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

/// Bytes that an operation needs on the side while it runs. `strided` says whether a tensor does not
/// lie row after row.
#[must_use]
pub fn side(habits: Habits, op: &OperationIr, strided: &dyn Fn(&TensorIr) -> bool) -> u64 {
    if let OperationIr::Module(ModuleOperationIr::LinearWeightBackward(desc)) = op {
        // One product a row of the batch, summed afterwards.
        let rank = desc.x.shape.num_dims();
        let rows: usize = desc.x.shape[..rank.saturating_sub(2)].iter().product();
        return if rows > 1 { rows as u64 * bytes(&desc.out) } else { 0 };
    }
    if habits != Habits::Flex {
        return 0;
    }
    let copies = |tensors: &[&TensorIr]| -> u64 {
        tensors.iter().filter(|tensor| strided(tensor)).map(|tensor| bytes(tensor)).sum()
    };
    match op {
        OperationIr::Module(op) => match op {
            // The transposed weight gets leading dimensions, which copies it.
            ModuleOperationIr::LinearXBackward(desc) if desc.output_grad.shape.num_dims() > 2 => bytes(&desc.weight),
            // Zeros to add to, beside the sum.
            ModuleOperationIr::EmbeddingBackward(desc) => bytes(&desc.out),
            ModuleOperationIr::Conv2d(desc) => copies(&[&desc.x]) + by_channels(&desc.x, &desc.weight),
            ModuleOperationIr::Conv2dXBackward(desc) => copies(&[&desc.output_grad]),
            ModuleOperationIr::Conv2dWeightBackward(desc) => {
                if desc.weight.shape[1] == 1 {
                    0
                } else {
                    bytes(&desc.x) + bytes(&desc.output_grad)
                }
            }
            _ => 0,
        },
        _ => match base(op) {
            Some(
                BaseOperationIr::Gather(_)
                | BaseOperationIr::Scatter(_)
                | BaseOperationIr::Select(_)
                | BaseOperationIr::SelectAssign(_)
                | BaseOperationIr::MaskFill(_)
                | BaseOperationIr::MaskWhere(_)
                | BaseOperationIr::Cat(_),
            ) => copies(&op.inputs().collect::<Vec<_>>()),
            // Through f64.
            Some(BaseOperationIr::Cast(desc)) => desc.input.shape.num_elements() as u64 * 8,
            _ => 0,
        },
    }
}

/// Convolutions but depthwise ones bring their input into another order first.
fn by_channels(x: &TensorIr, weight: &TensorIr) -> u64 {
    if weight.shape[1] == 1 { 0 } else { bytes(x) }
}

fn bytes(tensor: &TensorIr) -> u64 {
    (tensor.shape.num_elements() * tensor.dtype.size()) as u64
}
