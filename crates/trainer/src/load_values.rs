//! Loads external values into a model: a checkpoint's, or those of another program.

use super::params::{Trail, follow_trail, with_rank};
use super::stored_tensor::{Masters, StoredTensor, as_f32};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, FloatDType, Tensor, TensorData, backend::AutodiffBackend, ops::FloatTensorOps};

/// Writes the f32 values that `find` returns for a path into a model, in any shape of the same rank.
/// Parameters that the model computes in fewer bits are also kept in f32, as masters.
pub fn load_values<A, M>(
    model: M,
    mut find: impl FnMut(&str) -> Option<TensorData>,
    masters: &mut Masters<A::InnerBackend>,
    device: &A::Device,
) -> M
where
    A: AutodiffBackend,
    M: Module<A>,
{
    struct Loader<'a, A: AutodiffBackend> {
        trail: Trail,
        find: &'a mut dyn FnMut(&str) -> Option<TensorData>,
        masters: &'a mut Masters<A::InnerBackend>,
        device: &'a A::Device,
    }
    impl<A: AutodiffBackend> ModuleMapper<A> for Loader<'_, A> {
        follow_trail!();
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
            let path = self.trail.path();
            let Some(data) = (self.find)(&path) else { return param };
            let (id, old, mapper) = param.consume();
            if old.dtype() != DType::F32 {
                self.masters.insert(path, StoredTensor::host(data.clone()));
            }
            let whole = as_f32::<A::InnerBackend>(A::InnerBackend::float_from_data(data, self.device));
            let values = with_rank::<A::InnerBackend, D>(whole).cast(FloatDType::from(old.dtype()));
            let tensor = Tensor::from_inner(values).set_require_grad(old.is_require_grad());
            Param::from_mapped_value(id, tensor, mapper)
        }
    }
    model.map(&mut Loader::<A> { trail: Trail::default(), find: &mut find, masters, device })
}
