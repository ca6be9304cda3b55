//! A backend that tracks shapes only: it computes nothing and counts the memory that real computation would take.
//!
//! ```text
//! task, optimizer ── Autodiff ── burn-router ── ShapeDevice ── Ledger
//!                    (the real one: everything it keeps for the backward pass is counted)
//! ```
//! A tensor is a shape, a number format and a share of a buffer that does not exist. [`rules`] knows for each
//! real backend which operations return a view of a buffer, which write into their input and which need
//! scratch memory; everything else follows from the tensors Burn holds on to. So the very code that trains
//! makes the estimate, for every task, without initializing a weight.

mod backend_model;
mod ledger;
mod pages;
mod rules;

pub use backend_model::BackendModel;
pub use ledger::{Ledger, Peak};
pub use pages::Pages;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::tensor::{Bytes, DType, IntDType, Shape, TensorData, set_default_dtypes};
use burn_backend::backend::{DTypeUsage, DTypeUsageSet, DeviceId, DeviceOps, ExecutionError};
use burn_ir::{OperationIr, TensorId, TensorIr};
use burn_router::{BackendRouter, MultiBackendBridge, RouterTensor, RunnerChannel, RunnerClient, get_client};
use burn_std::future::DynFut;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// The backend, including the tensors Burn keeps for the backward pass.
pub type ShapeBackend = Autodiff<BackendRouter<Channel>>;
/// The same, with activations recomputed in the backward pass.
pub type ShapeBackendRecompute = Autodiff<BackendRouter<Channel>, BalancedCheckpointing>;

/// A device whose memory is counted. Each estimate gets its own, so that estimates do not mix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShapeDevice {
    backend: BackendModel,
    index: u16,
}

impl ShapeDevice {
    /// Reports whether it models the CPU.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        self.backend == BackendModel::Flex
    }
}

impl burn_std::device::Device for ShapeDevice {
    fn from_id(id: DeviceId) -> Self {
        Self { backend: BackendModel::ALL[usize::from(id.type_id) % BackendModel::ALL.len()], index: id.index_id }
    }

    fn to_id(&self) -> DeviceId {
        DeviceId { type_id: self.backend.number(), index_id: self.index }
    }
}

impl DeviceOps for ShapeDevice {}

/// Free indices, by [`BackendModel::number`], and the next unused index.
static FREE: Mutex<[(Vec<u16>, u16); 4]> = Mutex::new([const { (Vec::new(), 0) }; 4]);

fn free_indices() -> MutexGuard<'static, [(Vec<u16>, u16); 4]> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device that is returned to the pool on drop.
#[derive(Debug)]
pub struct LeasedDevice(ShapeDevice);

impl LeasedDevice {
    /// Returns a device with an empty ledger, which takes its memory in `pages` if there are any.
    #[must_use]
    pub fn new(backend: BackendModel, pages: Option<Box<dyn Pages>>) -> Self {
        let number = backend.number();
        let index = {
            let (back, next) = &mut free_indices()[usize::from(number)];
            back.pop().unwrap_or_else(|| {
                *next = next.wrapping_add(1);
                *next
            })
        };
        let device = ShapeDevice { backend, index };
        // A device keeps its settings for good; setting them again changes nothing.
        let _ = set_default_dtypes::<BackendRouter<Channel>>(&device, backend.float_dtype(), IntDType::I32);
        let leased = Self(device);
        leased.read(|ledger| *ledger = Ledger::new(backend, pages));
        leased
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &ShapeDevice {
        &self.0
    }

    /// Gives `with` access to the ledger of this device.
    pub fn read<R>(&self, with: impl FnOnce(&mut Ledger) -> R) -> R {
        let client = get_client::<Channel>(&self.0);
        with(&mut client.ledger())
    }
}

impl Drop for LeasedDevice {
    fn drop(&mut self) {
        free_indices()[usize::from(self.0.backend.number())].0.push(self.0.index);
    }
}

/// The router's channel to the devices.
#[derive(Debug, Clone)]
pub struct Channel;

/// The ledger of one device, shared by its tensors.
#[derive(Debug, Clone)]
pub struct Client {
    device: ShapeDevice,
    ledger: Arc<Mutex<Ledger>>,
}

impl Client {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunnerClient for Client {
    type Device = ShapeDevice;

    fn register_op(&self, op: OperationIr) {
        self.ledger().record_op(&op);
    }

    /// Zeros, since nothing was computed.
    fn read_tensor_async(&self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        self.ledger().consume(&tensor);
        let data = lazy_zeros(tensor.shape, tensor.dtype);
        Box::pin(async move { Ok(data) })
    }

    fn sync(&self) -> Result<(), ExecutionError> {
        Ok(())
    }

    fn create_empty_handle(&self) -> TensorId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        TensorId::new(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn register_tensor_data(&self, data: TensorData) -> RouterTensor<Self> {
        let id = self.create_empty_handle();
        self.ledger().record_upload(id, &data.shape, data.dtype);
        RouterTensor::new(id, data.shape, data.dtype, self.clone())
    }

    fn device(&self) -> ShapeDevice {
        self.device.clone()
    }

    fn seed(&self, _seed: u64) {}

    fn dtype_usage(&self, _dtype: DType) -> DTypeUsageSet {
        DTypeUsage::general()
    }
}

/// Returns zeros that take no memory until they are read. Moments resting in host memory are transferred but
/// never read; real zeros would be as large as the run's moments.
fn lazy_zeros(shape: Shape, dtype: DType) -> TensorData {
    // Use the number formats that the router converts to; a conversion would read the zeros.
    let dtype = if dtype.is_float() {
        DType::F32
    } else if dtype.is_int() || dtype.is_uint() {
        DType::I32
    } else {
        dtype
    };
    let bytes = (shape.num_elements() * dtype.size()) as u64;
    TensorData::from_bytes(Bytes::from_file("/dev/zero", bytes, 0), shape, dtype)
}

/// A bridge that moves nothing: tensors never move between devices.
#[derive(Debug)]
pub struct NoBridge;

impl MultiBackendBridge for NoBridge {
    type TensorHandle = ();
    type Device = ShapeDevice;

    fn change_backend_float((): (), _shape: Shape, _target: &ShapeDevice) {}
    fn change_backend_int((): (), _shape: Shape, _target: &ShapeDevice) {}
    fn change_backend_bool((): (), _shape: Shape, _target: &ShapeDevice) {}
}

impl RunnerChannel for Channel {
    type Device = ShapeDevice;
    type Bridge = NoBridge;
    type Client = Client;
    type FloatElem = f32;
    type IntElem = i32;
    type BoolElem = bool;

    fn name(_device: &ShapeDevice) -> String {
        "shapes".to_owned()
    }

    fn init_client(device: &ShapeDevice) -> Client {
        Client { device: device.clone(), ledger: Arc::new(Mutex::new(Ledger::new(device.backend, None))) }
    }

    fn get_tensor_handle(_tensor: &TensorIr, _client: &Client) {}

    fn register_tensor(client: &Client, (): (), shape: Shape, dtype: DType) -> RouterTensor<Client> {
        let id = client.create_empty_handle();
        client.ledger().record_upload(id, &shape, dtype);
        RouterTensor::new(id, shape, dtype, client.clone())
    }
}

#[cfg(test)]
mod tests;
