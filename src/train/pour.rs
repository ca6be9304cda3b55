//! Weights from elsewhere into a fresh model.

use super::optimizer::kept::{Kept, Masters};
use super::params::{Trail, as_f32, follow_trail, ranked};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, FloatDType, Tensor, TensorData, backend::AutodiffBackend, ops::FloatTensorOps};
use std::collections::BTreeMap;

/// Puts values into a model by path; what it computes in fewer bits is also kept whole, as a master.
pub fn pour<A, M>(
    model: M,
    values: &mut BTreeMap<String, TensorData>,
    masters: &mut Masters<A::InnerBackend>,
    device: &A::Device,
) -> M
where
    A: AutodiffBackend,
    M: Module<A>,
{
    struct Pour<'a, A: AutodiffBackend> {
        trail: Trail,
        values: &'a mut BTreeMap<String, TensorData>,
        masters: &'a mut Masters<A::InnerBackend>,
        device: &'a A::Device,
    }
    impl<A: AutodiffBackend> ModuleMapper<A> for Pour<'_, A> {
        follow_trail!();
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
            let path = self.trail.path();
            let Some(data) = self.values.remove(&path) else { return param };
            let (id, old, mapper) = param.consume();
            let whole = as_f32::<A::InnerBackend>(A::InnerBackend::float_from_data(data.clone(), self.device));
            let mut tensor = ranked::<A::InnerBackend, D>(whole);
            if old.dtype() != DType::F32 {
                tensor = tensor.cast(FloatDType::from(old.dtype()));
                self.masters.insert(path, Kept::host(data));
            }
            let tensor = Tensor::from_inner(tensor).set_require_grad(old.is_require_grad());
            Param::from_mapped_value(id, tensor, mapper)
        }
    }
    model.map(&mut Pour::<A> { trail: Trail::default(), values, masters, device })
}
