//! A model of native operations has the same gradients on any number of threads, bit by bit.

use super::{Cpu, decoder, loss_and_grads};
use crate::task::Pass;
use crate::tasks::lm::model::Transformer;
use crate::tasks::lm::shape::{Activation, Family};
use burn::backend::{Flex, flex::FlexDevice};
use burn::tensor::{Int, Tensor};

#[test]
fn the_number_of_threads_changes_no_bit() {
    let model = Transformer::<Cpu>::new(&decoder(Family::Gpt2, Activation::Gelu, None), &FlexDevice);
    let grads = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let tokens = Tensor::<Flex, 1, Int>::arange(0..8 * 70, &FlexDevice).remainder_scalar(50).reshape([8, 70]);
            loss_and_grads(&model, &model.loss(tokens.clone(), tokens, &Pass::plain(&FlexDevice)))
        })
    };
    let one = grads(1);
    for threads in [2, 3, 5] {
        assert_eq!(grads(threads), one, "{threads} threads");
    }
}
