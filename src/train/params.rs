//! Parameters by path: `blocks.0.attention.weight`.
//!
//! Burn names parameters by ids that are fresh in each process. The path through the module's fields is the
//! same in every process, so gradients, moments and files are keyed by it. Tensors of any rank share one map
//! because the backend's own tensor type has no rank.

use super::optimizer::kept::{Kept, Masters};
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::tensor::{
    DType, FloatDType, Tensor, TensorData, TensorMetadata, TensorPrimitive,
    backend::{AutodiffBackend, Backend, ExecutionError},
    ops::{FloatTensor, FloatTensorOps, IntTensor, TransactionPrimitive},
    read_sync,
};
use safetensors::{
    Dtype, SafeTensors,
    tensor::{Metadata, TensorInfo, TensorView},
};
use std::{borrow::Borrow, collections::BTreeMap, fmt::Write as _, iter, sync::Arc};

/// Tensors of one backend by parameter path.
pub type Tensors<B> = BTreeMap<String, FloatTensor<B>>;
/// Values on the host by name: f32, or 8-bit codes.
pub type HostTensors = Vec<(String, Arc<TensorData>)>;

/// Erases the rank of a tensor.
pub fn erase<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// Restores the rank of a tensor.
pub fn ranked<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// The path from the root of a module to a visitor's current position.
#[derive(Default)]
pub struct Trail(Vec<String>);

impl Trail {
    /// Enters a field.
    pub fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    /// Leaves the field.
    pub fn leave(&mut self) {
        self.0.pop();
    }

    /// Returns the path, joined by dots.
    pub fn path(&self) -> String {
        self.0.join(".")
    }
}

/// Implements the path tracking of a visitor or mapper with a field `trail`.
macro_rules! follow_trail {
    () => {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.trail.enter(name);
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.trail.leave();
        }
    };
}
pub(super) use follow_trail;

/// Tensors queued for the host, read in one transfer.
pub struct Reading<B: Backend> {
    names: Vec<String>,
    tensors: Vec<FloatTensor<B>>,
    code_names: Vec<String>,
    codes: Vec<IntTensor<B>>,
    on_host: HostTensors,
}

impl<B: Backend> Default for Reading<B> {
    fn default() -> Self {
        let (names, code_names) = (Vec::new(), Vec::new());
        Self { names, tensors: Vec::new(), code_names, codes: Vec::new(), on_host: Vec::new() }
    }
}

impl<B: Backend> Reading<B> {
    /// Adds a tensor to be read as f32.
    pub fn add(&mut self, name: String, tensor: FloatTensor<B>) {
        self.names.push(name);
        self.tensors.push(as_f32::<B>(tensor));
    }

    /// Adds a piece of the optimizer's state in its own format.
    pub fn keep(&mut self, name: String, kept: Kept<B>) {
        match kept {
            Kept::Float(tensor) => self.add(name, tensor),
            Kept::Codes(codes) => {
                self.code_names.push(name);
                self.codes.push(codes);
            }
            Kept::Host(data) => self.on_host.push((name, data)),
        }
    }

    /// Waits for the values. Those of the device come first, in the order they were added.
    ///
    /// # Errors
    /// Returns the device's error, from this or earlier work.
    pub fn finish(self) -> Result<HostTensors, ExecutionError> {
        // CUDA panics on an empty read.
        if self.tensors.is_empty() && self.codes.is_empty() {
            return Ok(self.on_host);
        }
        let transaction = TransactionPrimitive::new(self.tensors, Vec::new(), self.codes, Vec::new());
        let data = read_sync(B::tr_execute(transaction))?;
        let floats = iter::zip(self.names, data.read_floats);
        let codes = iter::zip(self.code_names, data.read_ints);
        let read = floats.chain(codes).map(|(name, data)| (name, Arc::new(data)));
        Ok(read.chain(self.on_host).collect())
    }
}

/// Converts a tensor to f32.
pub fn as_f32<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    if tensor.dtype() == DType::F32 { tensor } else { B::float_cast(tensor, FloatDType::F32) }
}

/// Adds every float parameter of a module, taken from `masters` if they hold it in full precision.
pub fn read_into<B: Backend, M: Module<B>>(module: &M, masters: &Masters<B>, reading: &mut Reading<B>) {
    struct Visitor<'a, B: Backend> {
        trail: Trail,
        masters: &'a Masters<B>,
        reading: &'a mut Reading<B>,
    }
    impl<B: Backend> ModuleVisitor<B> for Visitor<'_, B> {
        follow_trail!();
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let path = self.trail.path();
            let master = self.masters.get(&path).cloned();
            self.reading.keep(path, master.unwrap_or_else(|| Kept::Float(erase(param.val()))));
        }
    }
    module.visit(&mut Visitor { trail: Trail::default(), masters, reading });
}

/// Returns the shape of every float parameter. Initializes lazy ones, in the module's order.
pub fn shapes<B: Backend, M: Module<B>>(module: &M) -> BTreeMap<String, Vec<usize>> {
    struct Visitor {
        trail: Trail,
        shapes: BTreeMap<String, Vec<usize>>,
    }
    impl<B: Backend> ModuleVisitor<B> for Visitor {
        follow_trail!();
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.shapes.insert(self.trail.path(), param.val().dims().to_vec());
        }
    }
    let mut visitor = Visitor { trail: Trail::default(), shapes: BTreeMap::new() };
    module.visit(&mut visitor);
    visitor.shapes
}

/// Reports whether any parameter of a module receives a gradient in a backward pass.
pub fn trains_any<B: Backend, M: Module<B>>(module: &M) -> bool {
    struct Visitor(bool);
    impl<B: Backend> ModuleVisitor<B> for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 |= param.val().is_require_grad();
        }
    }
    let mut visitor = Visitor(false);
    module.visit(&mut visitor);
    visitor.0
}

/// Reports whether a module has f16 parameters, whose gradients overflow easily.
pub fn is_half<B: Backend, M: Module<B>>(module: &M) -> bool {
    struct Visitor(bool);
    impl<B: Backend> ModuleVisitor<B> for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 |= param.val().dtype() == DType::F16;
        }
    }
    let mut visitor = Visitor(false);
    module.visit(&mut visitor);
    visitor.0
}

/// Returns the number of values in the float parameters, without initializing them.
pub fn count<B: Backend, M: Module<B>>(module: &M) -> u64 {
    struct Visitor(u64);
    impl<B: Backend> ModuleVisitor<B> for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 += param.lazy_shape().num_elements() as u64;
        }
    }
    let mut visitor = Visitor(0);
    module.visit(&mut visitor);
    visitor.0
}

/// Moves the gradients of a backward pass into `sum`, as f32, each multiplied by `weight`.
pub fn add_gradients<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    gradients: &mut B::Gradients,
    weight: f64,
    sum: &mut Tensors<B::InnerBackend>,
) {
    struct Visitor<'a, B: AutodiffBackend> {
        trail: Trail,
        gradients: &'a mut B::Gradients,
        weight: f64,
        sum: &'a mut Tensors<B::InnerBackend>,
    }
    impl<B: AutodiffBackend> ModuleVisitor<B> for Visitor<'_, B> {
        follow_trail!();
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let Some(gradient) = param.val().grad_remove(self.gradients) else { return };
            let mut gradient = as_f32::<B::InnerBackend>(erase(gradient));
            if self.weight < 1.0 {
                gradient = B::InnerBackend::float_mul_scalar(gradient, self.weight.into());
            }
            let path = self.trail.path();
            if let Some(earlier) = self.sum.remove(&path) {
                gradient = B::InnerBackend::float_add(earlier, gradient);
            }
            self.sum.insert(path, gradient);
        }
    }
    module.visit(&mut Visitor { trail: Trail::default(), gradients, weight, sum });
}

/// Returns the header of a safetensors file and the order of its tensors. The bytes depend on names, shapes
/// and values only.
///
/// # Errors
/// Returns an error when the format rejects the tensors: a duplicate name, or a shape that its values do not fill.
pub fn safetensors_header<T: Borrow<TensorData>>(
    tensors: &[(String, T)],
) -> Result<(Vec<u8>, Vec<&TensorData>), String> {
    let sorted: BTreeMap<&str, &TensorData> =
        tensors.iter().map(|(name, data)| (name.as_str(), data.borrow())).collect();
    if sorted.len() != tensors.len() {
        return Err("two parameters have the same path".to_owned());
    }
    let mut end = 0;
    let info = |(name, data): (&&str, &&TensorData)| {
        let begin = end;
        end += data.as_bytes().len();
        let dtype = if data.dtype == DType::U8 { Dtype::U8 } else { Dtype::F32 };
        let info = TensorInfo { dtype, shape: data.shape.to_vec(), data_offsets: (begin, end) };
        ((*name).to_owned(), info)
    };
    let infos: Vec<(String, TensorInfo)> = sorted.iter().map(info).collect();
    let metadata = Metadata::new(None, infos).map_err(|error| error.to_string())?;
    let text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    // The length comes first; trailing spaces pad the header to whole words.
    let length = text.len().next_multiple_of(8);
    let mut header = (length as u64).to_le_bytes().to_vec();
    header.extend(text);
    header.resize(8 + length, b' ');
    Ok((header, sorted.into_values().collect()))
}

/// Returns a whole safetensors file in memory.
///
/// # Errors
/// Returns an error when two tensors have the same path.
#[cfg(test)]
pub fn to_safetensors<T: Borrow<TensorData>>(tensors: &[(String, T)]) -> Result<Vec<u8>, String> {
    let (mut file, order) = safetensors_header(tensors)?;
    for data in order {
        file.extend_from_slice(data.as_bytes());
    }
    Ok(file)
}

/// Returns the values of an f32 tensor in a safetensors file.
pub fn from_safetensors(view: &TensorView<'_>) -> TensorData {
    TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), DType::F32)
}

/// Returns the shape of every tensor in a safetensors file.
pub fn shapes_in(file: &SafeTensors<'_>) -> BTreeMap<String, Vec<usize>> {
    file.iter().map(|(name, view)| (name.to_owned(), view.shape().to_vec())).collect()
}

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
            let mut text = "of another shape:".to_owned();
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
    use super::{Fit, safetensors_header, shapes_in, to_safetensors};
    use burn::tensor::TensorData;
    use safetensors::SafeTensors;
    use std::collections::BTreeMap;

    #[test]
    fn what_does_not_fit_is_listed_by_name() {
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
        let fit = Fit::between(&model, &shapes_in(&file));
        assert!(!fit.is_whole());
        assert_eq!(
            fit.to_string(),
            "missing in the checkpoint: new.weight; unexpected in the checkpoint: old.weight; \
             of another shape: head.weight [4, 2] in the checkpoint, [8, 2] in the model"
        );
    }

    #[test]
    fn the_bytes_depend_on_the_tensors_alone() {
        let tensor = |value: f32| TensorData::new(vec![value; 6], [2, 3]);
        let there = to_safetensors(&[("b".into(), tensor(1.0)), ("a".into(), tensor(2.0))]).unwrap();
        let back = to_safetensors(&[("a".into(), tensor(2.0)), ("b".into(), tensor(1.0))]).unwrap();
        assert_eq!(there, back);
        let file = SafeTensors::deserialize(&there).unwrap();
        assert_eq!(file.tensor("b").unwrap().shape(), [2, 3]);
        // Byte for byte the output of the `safetensors` crate.
        let views: Vec<_> = file.iter().collect();
        assert_eq!(there, safetensors::serialize(views, None).unwrap());
        let twice = vec![("a".into(), tensor(1.0)), ("a".into(), tensor(2.0))];
        assert!(safetensors_header(&twice).unwrap_err().contains("same path"));
    }
}
