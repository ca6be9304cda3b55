//! Tensors as a safetensors file.

use burn::tensor::{DType, TensorData};
use safetensors::{
    Dtype, SafeTensorError, SafeTensors,
    tensor::{Metadata, TensorInfo, TensorView},
};
use std::{borrow::Borrow, collections::BTreeMap};

/// The reason why tensors cannot be written as a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// Two tensors have the same name.
    #[error("two parameters have the same path")]
    DuplicatePath,
    /// A shape does not match its values.
    #[error(transparent)]
    Format(#[from] SafeTensorError),
    /// The header cannot be written.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Returns the header of a safetensors file and the order of its tensors. The bytes depend on names, shapes
/// and values only.
///
/// # Errors
/// Returns an error when the format rejects the tensors: a duplicate name, or a shape that its values do not fill.
pub fn safetensors_header<T: Borrow<TensorData>>(
    tensors: &[(String, T)],
) -> Result<(Vec<u8>, Vec<&TensorData>), HeaderError> {
    let sorted: BTreeMap<&str, &TensorData> =
        tensors.iter().map(|(name, data)| (name.as_str(), data.borrow())).collect();
    if sorted.len() != tensors.len() {
        return Err(HeaderError::DuplicatePath);
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
    let metadata = Metadata::new(None, infos)?;
    let text = serde_json::to_vec(&metadata)?;
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
pub fn to_safetensors<T: Borrow<TensorData>>(tensors: &[(String, T)]) -> Result<Vec<u8>, HeaderError> {
    let (mut file, order) = safetensors_header(tensors)?;
    for data in order {
        file.extend_from_slice(data.as_bytes());
    }
    Ok(file)
}

/// Returns the values of an f32 tensor in a safetensors file.
pub fn tensor_data(view: &TensorView<'_>) -> TensorData {
    TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), DType::F32)
}

/// Returns the shape of every tensor in a safetensors file.
pub fn shapes_in_file(file: &SafeTensors<'_>) -> BTreeMap<String, Vec<usize>> {
    file.iter().map(|(name, view)| (name.to_owned(), view.shape().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::{HeaderError, safetensors_header, to_safetensors};
    use burn::tensor::TensorData;
    use safetensors::SafeTensors;

    #[test]
    fn the_bytes_depend_only_on_the_tensors() {
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
        assert!(matches!(safetensors_header(&twice), Err(HeaderError::DuplicatePath)));
    }
}
