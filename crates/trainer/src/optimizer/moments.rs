//! The two moments of one parameter: storage, reading for a checkpoint, and loading from one.

use super::blockwise::Kind;
use crate::params::{TensorReader, erase_rank, with_rank};
use crate::stored_tensor::StoredTensor;
use burn::tensor::{
    DType, Tensor, TensorData,
    backend::{Backend, ExecutionError},
    ops::FloatTensor,
};
use downshift_core::config::moments::BLOCK;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

const FIRST: &str = ".exp_avg";
const SECOND: &str = ".exp_avg_sq";
const SINCE: &str = ".since";
/// The name suffix of a moment stored in 8 bits.
const CODES: &str = ".codes";
const SCALES: &str = ".scales";

/// One moment of one parameter.
#[derive(Debug, Clone)]
pub enum Moment<B: Backend> {
    /// Unquantized, f32.
    Whole(StoredTensor<B>),
    /// 8-bit blocks: codes and scales.
    Coded(StoredTensor<B>, StoredTensor<B>),
}

impl<B: Backend> Moment<B> {
    /// Stores a moment after update `time`, quantized to 8 bits if asked.
    pub fn store<const D: usize>(kind: Kind, values: Tensor<B, D>, in_8_bits: bool, time: u64) -> Self {
        if !in_8_bits {
            return Self::Whole(StoredTensor::Float(erase_rank(values)));
        }
        let (codes, scales) = kind.encode(values, time);
        Self::Coded(StoredTensor::Codes(codes), StoredTensor::Float(scales))
    }

    /// Returns its values on the device.
    pub fn values(self, kind: Kind, shape: &[usize], device: &B::Device) -> FloatTensor<B> {
        match self {
            Self::Whole(kept) => kept.into_float(device),
            Self::Coded(codes, scales) => kind.decode::<B>(codes.into_float(device), scales.into_float(device), shape),
        }
    }

    /// Moves the moment to host memory.
    ///
    /// # Errors
    /// Returns the device's error, from this or earlier work.
    pub fn into_host(self) -> Result<Self, ExecutionError> {
        Ok(match self {
            Self::Whole(kept) => Self::Whole(kept.into_host()?),
            Self::Coded(codes, scales) => Self::Coded(codes.into_host()?, scales.into_host()?),
        })
    }

    fn is_coded(&self) -> bool {
        matches!(self, Self::Coded(..))
    }

    fn collect(&self, name: &str, reader: &mut TensorReader<B>) {
        match self {
            Self::Whole(kept) => reader.add_stored(name.to_owned(), kept.clone()),
            Self::Coded(codes, scales) => {
                reader.add_stored(format!("{name}{CODES}"), codes.clone());
                reader.add_stored(format!("{name}{SCALES}"), scales.clone());
            }
        }
    }

    /// Finds the moment of this name in a file, if it exists with this shape.
    fn find(name: &str, shape: &[usize], file: &SafeTensors<'_>) -> Option<Self> {
        let of = |name: &str, dtype: Dtype| file.tensor(name).ok().filter(|view| view.dtype() == dtype);
        if let Some(whole) = of(name, Dtype::F32) {
            return (whole.shape() == shape).then(|| Self::Whole(stored_on_host(&whole, DType::F32)));
        }
        let codes = of(&format!("{name}{CODES}"), Dtype::U8)?;
        let scales = of(&format!("{name}{SCALES}"), Dtype::F32)?;
        let blocks = shape.iter().product::<usize>().div_ceil(BLOCK);
        let fits = codes.shape() == [blocks, BLOCK] && scales.shape() == [blocks, 1];
        fits.then(|| Self::Coded(stored_on_host(&codes, DType::U8), stored_on_host(&scales, DType::F32)))
    }

    /// Converts the moment to or from 8 bits.
    fn recoded(self, kind: Kind, shape: &[usize], coded: bool, time: u64, device: &B::Device) -> Self {
        if self.is_coded() == coded {
            return self;
        }
        let values = self.values(kind, shape, device);
        if coded {
            let flat = B::float_reshape(values, [shape.iter().product::<usize>()].into());
            Self::store(kind, with_rank::<B, 1>(flat), true, time)
        } else {
            Self::Whole(StoredTensor::Float(values))
        }
    }
}

/// The two moments of one parameter.
#[derive(Debug, Clone)]
pub struct Moments<B: Backend> {
    /// The running mean of the gradient.
    pub first: Moment<B>,
    /// The running mean of its square.
    pub second: Moment<B>,
    /// The updates made before these moments started; their own time is t − since.
    pub since: u64,
}

impl<B: Backend> Moments<B> {
    /// Adds them to a reader: `<path>.exp_avg` and `<path>.exp_avg_sq`, with suffixes `.codes` and `.scales`
    /// if they are in 8 bits, and `<path>.since` if they started later than the run.
    pub fn collect(&self, path: &str, reader: &mut TensorReader<B>) {
        self.first.collect(&format!("{path}{FIRST}"), reader);
        self.second.collect(&format!("{path}{SECOND}"), reader);
        if self.since > 0 {
            let since = TensorData::from([self.since as f32]);
            reader.add_stored(format!("{path}{SINCE}"), StoredTensor::host(since));
        }
    }

    /// Finds the moments of a parameter in a file, if both exist with its shape. They stay in host memory
    /// until they are needed.
    pub fn find(path: &str, shape: &[usize], file: &SafeTensors<'_>, time: u64) -> Option<Self> {
        let first = Moment::find(&format!("{path}{FIRST}"), shape, file)?;
        let second = Moment::find(&format!("{path}{SECOND}"), shape, file)?;
        let since = file.tensor(&format!("{path}{SINCE}")).ok();
        let since = since.and_then(|view| view.data().first_chunk().copied());
        let since = since.map_or(0, |bytes| f32::from_le_bytes(bytes) as u64).min(time);
        Some(Self { first, second, since })
    }

    /// Reports whether they are in 8 bits.
    pub fn are_coded(&self) -> bool {
        self.first.is_coded() && self.second.is_coded()
    }

    /// Converts both moments to or from 8 bits, as of update `time`.
    pub fn recoded(self, shape: &[usize], coded: bool, time: u64, device: &B::Device) -> Self {
        let first = self.first.recoded(Kind::First, shape, coded, time, device);
        let second = self.second.recoded(Kind::Second, shape, coded, time, device);
        Self { first, second, since: self.since }
    }

    /// Moves both moments to host memory.
    ///
    /// # Errors
    /// Returns the device's error, from this or earlier work.
    pub fn into_host(self) -> Result<Self, ExecutionError> {
        Ok(Self { first: self.first.into_host()?, second: self.second.into_host()?, since: self.since })
    }
}

fn stored_on_host<B: Backend>(view: &TensorView<'_>, dtype: DType) -> StoredTensor<B> {
    StoredTensor::host(TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype))
}
