//! The fit between the parameters of a model and those of a file.

use std::{collections::BTreeMap, fmt::Write as _};

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
        let mut parts = Vec::new();
        if !self.missing.is_empty() {
            parts.push(format!("missing in the checkpoint: {}", self.missing.join(", ")));
        }
        if !self.unexpected.is_empty() {
            parts.push(format!("unexpected in the checkpoint: {}", self.unexpected.join(", ")));
        }
        if !self.reshaped.is_empty() {
            let mut text = "different shape:".to_owned();
            for (index, (path, model, file)) in self.reshaped.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                write!(text, "{comma} {path} {file:?} in the checkpoint, {model:?} in the model")?;
            }
            parts.push(text);
        }
        formatter.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::Fit;
    use crate::train::params::safetensors_file::{shapes_in_file, to_safetensors};
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
}
