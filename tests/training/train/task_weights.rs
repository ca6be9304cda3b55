//! Fresh weights depend on the seed alone.

use super::harness::exclusive;
use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{
    Tensor,
    backend::{Backend, BackendTypes},
};
use downshift::burn;
use downshift::train::task::{Task, Train};
use downshift::train::tasks::lm::LanguageModel;
use downshift::train::tasks::vision::Vision;

type Cpu = Autodiff<Flex>;

#[derive(Default)]
struct Weights(Vec<f32>);

impl ModuleVisitor<Cpu> for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Cpu, D>>) {
        self.0.extend(param.val().into_data().iter::<f32>());
    }
}

/// Returns the weights of a fresh model; reading them draws them.
fn fresh<T: Task + Train<Cpu>>(data: &str, model: &str, seed: u64) -> Vec<f32> {
    let device = <Cpu as BackendTypes>::Device::default();
    let model_config = serde_json::from_str(model).unwrap();
    let set = T::load(&serde_json::from_str(data).unwrap(), &model_config, 7).unwrap();
    Cpu::seed(&device, seed);
    let model = T::init(&model_config, &set, &device);
    let mut weights = Weights::default();
    model.visit(&mut weights);
    weights.0
}

fn depends_on_the_seed_alone<T: Task + Train<Cpu>>(data: &str, model: &str) {
    let first = fresh::<T>(data, model, 1);
    assert!(first.len() > 1000, "{}", first.len());
    assert!(first == fresh::<T>(data, model, 1), "the same seed gives the same weights");
    let other = fresh::<T>(data, model, 2);
    let equal = first.iter().zip(&other).filter(|(a, b)| (*a - *b).abs() < f32::EPSILON).count();
    assert!(equal < first.len() / 2, "another seed gives other weights");
}

#[test]
fn weights_depend_only_on_the_seed() {
    let _generator = exclusive();
    depends_on_the_seed_alone::<Vision>(r#"{"source": "embedded:digits"}"#, r#"{"channels": 8}"#);
    depends_on_the_seed_alone::<LanguageModel>(r#"{"source": "embedded:text"}"#, r#"{"layers": 1, "width": 16}"#);
}
