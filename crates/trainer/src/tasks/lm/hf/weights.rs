//! Reads tensors of safetensors files one at a time, so a large model is never in memory twice.
//!
//! A file is the length of its header (8 bytes, little-endian), the header (JSON: name, dtype, shape, first
//! and last byte) and the values.

use crate::task::DataError;
use crate::tasks::files::{self, data_error};
use burn::tensor::TensorData;
use downshift_core::untrusted::file::Limit;
use half::{bf16, f16};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The standard names of the weights: a single file, or the index of several.
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The longest header accepted; a longer one means a damaged file.
const LONGEST_HEADER: u64 = 100 << 20;

trait Bytes: Read + Seek + Send {}
impl<T: Read + Seek + Send> Bytes for T {}

#[derive(Debug, Clone, Deserialize)]
struct TensorInfo {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// The tensors of one file or of several shards.
pub struct TensorFiles {
    path: PathBuf,
    shards: Vec<(PathBuf, Box<dyn Bytes>)>,
    /// By name: the shard, the tensor's header entry, and the start of the shard's values.
    infos: BTreeMap<String, (usize, TensorInfo, u64)>,
}

impl TensorFiles {
    /// Opens the weights in a folder, or the file or index in it that was named.
    ///
    /// # Errors
    /// Returns an error that names the missing or damaged file.
    pub fn open(folder: &Path, file: Option<&Path>) -> Result<Self, DataError> {
        let usual = [WHOLE, INDEX].map(|name| folder.join(name)).into_iter().find(|path| path.is_file());
        let path = match (file, usual) {
            (Some(file), _) => file.to_owned(),
            (None, Some(path)) => path,
            (None, None) => {
                let message = format!("contains neither {WHOLE} nor {INDEX}; name the safetensors file");
                return Err(data_error(folder, message));
            }
        };
        let files =
            if path.extension().is_some_and(|end| end == "json") { shard_files(&path)? } else { vec![path.clone()] };
        let mut tensors = Self { path, shards: Vec::new(), infos: BTreeMap::new() };
        for path in files {
            let file = files::open_file(&path)?;
            tensors.add_shard(path, Box::new(file))?;
        }
        Ok(tensors)
    }

    /// Opens the tensors of a file in memory.
    ///
    /// # Errors
    /// Returns an error when the file is damaged.
    pub fn from_bytes(name: &str, bytes: &'static [u8]) -> Result<Self, DataError> {
        let mut tensors = Self { path: name.into(), shards: Vec::new(), infos: BTreeMap::new() };
        tensors.add_shard(name.into(), Box::new(Cursor::new(bytes)))?;
        Ok(tensors)
    }

    /// Returns the file, or the index of its shards.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names and shapes.
    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        self.infos.iter().map(|(name, (_, info, _))| (name.clone(), info.shape.clone())).collect()
    }

    /// Reads the values of a tensor as f32.
    ///
    /// # Errors
    /// Returns an error when there is no such tensor, or its values cannot be read.
    pub fn read_tensor(&mut self, name: &str) -> Result<TensorData, DataError> {
        let Some((shard, info, first)) = self.infos.get(name) else {
            return Err(data_error(&self.path, format!("it has no tensor {name}")));
        };
        let (path, file) = &mut self.shards[*shard];
        let [begin, end] = info.data_offsets;
        let mut bytes = vec![0; (end - begin) as usize];
        let read = file.seek(SeekFrom::Start(first + begin)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|error| data_error(path, format!("{name} cannot be read ({error})")))?;
        let values = decode_values(&info.dtype, &bytes).ok_or_else(|| {
            data_error(path, format!("{name} has the type {}; f32, f16, bf16 and f64 are supported", info.dtype))
        })?;
        let wanted = info.shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if Some(values.len()) != wanted {
            return Err(data_error(
                path,
                format!("{name} has {} values, but its shape is {:?}", values.len(), info.shape),
            ));
        }
        if !values.iter().all(|value| value.is_finite()) {
            return Err(data_error(path, format!("{name} contains NaN or infinity; download the model again")));
        }
        Ok(TensorData::new(values, info.shape.clone()))
    }

    fn add_shard(&mut self, path: PathBuf, mut file: Box<dyn Bytes>) -> Result<(), DataError> {
        let damaged =
            |why: String| data_error(&path, format!("is not a valid safetensors file: {why}; download it again"));
        let failed = |error: std::io::Error| damaged(error.to_string());
        let whole = file.seek(SeekFrom::End(0)).map_err(failed)?;
        file.rewind().map_err(failed)?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(failed)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER.min(whole.saturating_sub(8)) {
            return Err(damaged(format!("its header claims {length} bytes")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(failed)?;
        let header: Map<String, Value> =
            serde_json::from_slice(&header).map_err(|error| damaged(format!("its header: {error}")))?;
        let (shard, first) = (self.shards.len(), 8 + length);
        for (name, value) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
            let info: TensorInfo =
                serde_json::from_value(value).map_err(|error| damaged(format!("{name} in its header: {error}")))?;
            let [begin, end] = info.data_offsets;
            if begin > end || first.checked_add(end).is_none_or(|end| end > whole) {
                return Err(damaged(format!("{name} is beyond the end of the file, at bytes {begin} to {end}")));
            }
            self.infos.insert(name, (shard, info, first));
        }
        self.shards.push((path, file));
        Ok(())
    }
}

/// Returns the files that an index names.
fn shard_files(index: &Path) -> Result<Vec<PathBuf>, DataError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let read: Index = serde_json::from_slice(&files::read_file_within(index, Limit::Record)?)
        .map_err(|error| data_error(index, format!("is not a valid shard index ({error})")))?;
    let names: BTreeSet<String> = read.weight_map.into_values().collect();
    if let Some(outside) = names.iter().find(|name| name.contains(['/', '\\']) || name.starts_with('.')) {
        return Err(data_error(index, format!("it names a file outside its folder: {outside}")));
    }
    Ok(names.into_iter().map(|name| index.with_file_name(name)).collect())
}

fn decode_values(dtype: &str, bytes: &[u8]) -> Option<Vec<f32>> {
    let twos = || bytes.as_chunks::<2>().0.iter().copied();
    Some(match dtype {
        "F32" => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        "F16" => twos().map(|bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
        "BF16" => twos().map(|bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        "F64" => bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{TensorFiles, decode_values};
    use crate::params::safetensors_file::to_safetensors;
    use burn::tensor::TensorData;
    use std::fs;

    #[test]
    fn number_types_are_read_as_f32() {
        assert_eq!(decode_values("F32", &1.5f32.to_le_bytes()), Some(vec![1.5]));
        assert_eq!(decode_values("F64", &(-2.25f64).to_le_bytes()), Some(vec![-2.25]));
        assert_eq!(decode_values("F16", &[0x00, 0x3c, 0x00, 0xc0]), Some(vec![1.0, -2.0]));
        assert_eq!(decode_values("BF16", &[0x80, 0x3f, 0x00, 0xc0]), Some(vec![1.0, -2.0]));
        assert_eq!(decode_values("I64", &[0; 8]), None);
    }

    #[test]
    fn shards_are_read_by_their_index_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let one = |name: &str, value: f32| {
            to_safetensors(&[(name.to_owned(), TensorData::new(vec![value; 2], [2]))]).unwrap()
        };
        fs::write(path("a.safetensors"), one("x", 1.0)).unwrap();
        fs::write(path("b.safetensors"), one("y", 2.0)).unwrap();
        let index = r#"{"metadata": {}, "weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#;
        fs::write(path("model.safetensors.index.json"), index).unwrap();
        let mut tensors = TensorFiles::open(folder.path(), None).unwrap();
        assert_eq!(tensors.read_tensor("y").unwrap(), TensorData::new(vec![2.0f32; 2], [2]));
        assert_eq!(tensors.shapes().len(), 2);
        assert!(tensors.read_tensor("z").unwrap_err().message.contains("no tensor z"));

        let refusal = |bytes: &[u8]| {
            fs::write(path("c.safetensors"), bytes).unwrap();
            TensorFiles::open(folder.path(), Some(&path("c.safetensors"))).err().unwrap().message
        };
        let whole = one("x", 1.0);
        assert!(refusal(&whole[..whole.len() - 1]).contains("beyond the end"));
        assert!(refusal(&whole[..20]).contains("header"));
        assert!(refusal(&[]).contains("safetensors"));
        fs::write(path("out.json"), r#"{"weight_map": {"x": "../a.safetensors"}}"#).unwrap();
        let outside = TensorFiles::open(folder.path(), Some(&path("out.json"))).err().unwrap();
        assert!(outside.message.contains("outside"), "{outside}");
        let empty = tempfile::tempdir().unwrap();
        assert!(TensorFiles::open(empty.path(), None).err().unwrap().message.contains("neither"));
    }
}
