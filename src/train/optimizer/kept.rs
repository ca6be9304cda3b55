//! One tensor of the optimizer's state, where it rests between updates: on the device, or as data
//! in host memory (`optimizer.offload`), from where it visits the device for its own update alone.

use crate::train::params::as_f32;
use burn::tensor::{
    DType, FloatDType, TensorData,
    backend::{Backend, ExecutionError},
    ops::{FloatTensor, IntTensor},
    read_sync,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tensor at rest.
#[derive(Debug, Clone)]
pub enum Kept<B: Backend> {
    /// f32 on the device.
    Float(FloatTensor<B>),
    /// Codes of 8 bits on the device.
    Codes(IntTensor<B>),
    /// Either of them in host memory. Shared with a checkpoint while that is being written.
    Host(Arc<TensorData>),
}

/// f32 weights by parameter path, where the module holds fewer bits.
pub type Masters<B> = BTreeMap<String, Kept<B>>;

impl<B: Backend> Kept<B> {
    /// Values in host memory.
    pub fn host(data: TensorData) -> Self {
        Self::Host(Arc::new(data))
    }

    /// The values on the device as f32; codes as the whole numbers that they are.
    pub fn float(self, device: &B::Device) -> FloatTensor<B> {
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

    /// The same values in host memory.
    ///
    /// # Errors
    /// What the device reports, now or about earlier work.
    pub fn into_host(self) -> Result<Self, ExecutionError> {
        Ok(match self {
            Self::Float(tensor) => Self::host(read_sync(B::float_into_data(tensor))?),
            Self::Codes(codes) => Self::host(read_sync(B::int_into_data(codes))?),
            host @ Self::Host(_) => host,
        })
    }
}
