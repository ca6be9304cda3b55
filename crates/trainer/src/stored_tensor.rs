//! Storage of one tensor of the optimizer's state between updates: on the device, or in host memory
//! (`optimizer.offload`), from where it moves to the device only for its own update.

use burn::tensor::{
    DType, FloatDType, TensorData, TensorMetadata,
    backend::{Backend, ExecutionError},
    ops::{FloatTensor, IntTensor},
    read_sync,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A stored tensor.
#[derive(Debug, Clone)]
pub enum StoredTensor<B: Backend> {
    /// f32 on the device.
    Float(FloatTensor<B>),
    /// 8-bit codes on the device.
    Codes(IntTensor<B>),
    /// Either of them in host memory. Shared with a checkpoint while it is being written.
    Host(Arc<TensorData>),
}

/// f32 weights by parameter path, if the module holds them in fewer bits.
pub type Masters<B> = BTreeMap<String, StoredTensor<B>>;

impl<B: Backend> StoredTensor<B> {
    /// Wraps values in host memory.
    pub fn host(data: TensorData) -> Self {
        Self::Host(Arc::new(data))
    }

    /// Returns the values on the device as f32; codes become the integers they are.
    pub fn into_float(self, device: &B::Device) -> FloatTensor<B> {
        match self {
            Self::Float(tensor) => tensor,
            Self::Codes(codes) => B::int_into_float(codes, FloatDType::F32),
            Self::Host(data) => {
                let data = Arc::unwrap_or_clone(data);
                if data.dtype == DType::U8 {
                    B::int_into_float(B::int_from_data(data, device), FloatDType::F32)
                } else {
                    as_f32::<B>(B::float_from_data(data, device))
                }
            }
        }
    }

    /// Moves the values to host memory.
    ///
    /// # Errors
    /// Returns the device's error, from this or earlier work.
    pub fn into_host(self) -> Result<Self, ExecutionError> {
        Ok(match self {
            Self::Float(tensor) => Self::host(read_sync(B::float_into_data(tensor))?),
            Self::Codes(codes) => Self::host(read_sync(B::int_into_data(codes))?),
            host @ Self::Host(_) => host,
        })
    }
}

/// Converts a tensor to f32.
pub fn as_f32<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    if tensor.dtype() == DType::F32 { tensor } else { B::float_cast(tensor, FloatDType::F32) }
}
