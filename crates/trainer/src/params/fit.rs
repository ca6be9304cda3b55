//! The fit between the parameters of a model and those of a file.

use std::collections::BTreeMap;

/// Parameters that a message names of each kind.
const SHOWN: usize = 4;

/// The fit between the parameters of a file and those of a model.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// Paths that are in the model but not in the file.
    pub missing: Vec<String>,
    /// Paths that are in the file but not in the model.
    pub unexpected: Vec<String>,
    /// Paths whose shapes differ: path, shape in the model, shape in the file.
    pub reshaped: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl Fit {
    /// Compares names and shapes of a model with those of a file.
    pub fn between(model: &BTreeMap<String, Vec<usize>>, file: &BTreeMap<String, Vec<usize>>) -> Self {
        let mut fit = Self::default();
        for (path, shape) in model {
            match file.get(path) {
                None => fit.missing.push(path.clone()),
                Some(other) if other != shape => {
                    fit.reshaped.push((path.clone(), shape.clone(), other.clone()));
                }
                Some(_) => {}
            }
        }
        fit.unexpected = file.keys().filter(|name| !model.contains_key(*name)).cloned().collect();
        fit
    }

    /// Reports whether every parameter has its value.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.reshaped.is_empty()
    }
}

impl std::fmt::Display for Fit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reshaped = |(path, model, file): &(String, Vec<usize>, Vec<usize>)| {
            format!("{path} {file:?} in the checkpoint, {model:?} in the model")
        };
        let reshaped: Vec<String> = self.reshaped.iter().map(reshaped).collect();
        let parts = [
            ("missing in the checkpoint", &self.missing),
            ("unexpected in the checkpoint", &self.unexpected),
            ("different shape", &reshaped),
        ];
        let parts = parts.iter().filter(|(_, names)| !names.is_empty());
        let parts: Vec<String> = parts.map(|(what, names)| format!("{what}: {}", list_first(names))).collect();
        formatter.write_str(&parts.join("; "))
    }
}

/// Lists a few; a model of another architecture differs in hundreds.
fn list_first(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}, and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::Fit;
    use crate::params::safetensors_file::{shapes_in_file, to_safetensors};
    use burn::tensor::TensorData;
    use safetensors::SafeTensors;
    use std::collections::BTreeMap;

    #[test]
    fn mismatches_are_listed_by_name() {
        let data = |shape: [usize; 2]| TensorData::zeros::<f32, _>(shape);
        let bytes = to_safetensors(&[
            ("head.weight".into(), data([4, 2])),
            ("old.weight".into(), data([1, 1])),
            ("same".into(), data([3, 3])),
        ])
        .unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let model = BTreeMap::from([
            ("head.weight".to_owned(), vec![8, 2]),
            ("new.weight".to_owned(), vec![1]),
            ("same".to_owned(), vec![3, 3]),
        ]);
        let fit = Fit::between(&model, &shapes_in_file(&file));
        assert!(!fit.is_whole());
        assert_eq!(
            fit.to_string(),
            "missing in the checkpoint: new.weight; unexpected in the checkpoint: old.weight; \
             different shape: head.weight [4, 2] in the checkpoint, [8, 2] in the model"
        );
    }

    #[test]
    fn a_long_list_ends_with_a_number() {
        let model = (1..=6).map(|layer| (format!("layer.{layer}"), vec![1])).collect();
        let text = Fit::between(&model, &BTreeMap::new()).to_string();
        assert_eq!(text, "missing in the checkpoint: layer.1, layer.2, layer.3, layer.4, and 2 more");
    }
}
