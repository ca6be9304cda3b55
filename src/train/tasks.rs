//! The tasks that ship with downshift, on the same traits as a person's own.

pub(crate) mod files;
pub mod lm;
pub mod vision;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, backend::Backend};

/// Draws every weight now, in the order of the model's fields. Burn draws a weight when it is first
/// used; a worker that seeds the device per step would then get other weights than it asked for.
pub fn draw_weights<B: Backend, M: Module<B>>(model: M) -> M {
    struct Draw;
    impl<B: Backend> ModuleVisitor<B> for Draw {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let _ = param.val();
        }
    }
    model.visit(&mut Draw);
    model
}
