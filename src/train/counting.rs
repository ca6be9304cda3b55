//! A backend that computes nothing and counts: how much memory would be taken if it did.
//!
//! ```text
//! task, optimizer ── Autodiff ── burn-router ── Counter ── Ledger
//!                    (the real one: what it keeps for the backward pass, it keeps here too)
//! ```
//! A tensor is a shape, a number format and a share of a buffer that is not there. Which operations
//! give a view of a buffer, which write into the one they read and which need room on the side is
//! known for each real backend ([`rules`]); all else follows from which tensors Burn holds on to. So
//! a plan is made by the very code that trains, for every task, without a weight being drawn.

mod ledger;
mod rules;

pub use ledger::{Ledger, Level};

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::tensor::{Bytes, DType, FloatDType, IntDType, Shape, TensorData, set_default_dtypes};
use burn_backend::backend::{DTypeUsage, DTypeUsageSet, DeviceId, DeviceOps, ExecutionError};
use burn_ir::{OperationIr, TensorId, TensorIr};
use burn_router::{BackendRouter, MultiBackendBridge, RouterTensor, RunnerChannel, RunnerClient, get_client};
use burn_std::future::DynFut;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// The backend that counts, with what Burn keeps for the backward pass.
pub type Counting = Autodiff<BackendRouter<Channel>>;
/// The same, with activations recomputed in the backward pass.
pub type CountingRecompute = Autodiff<BackendRouter<Channel>, BalancedCheckpointing>;

/// Whose habits are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Habits {
    /// Burn's CPU backend.
    #[default]
    Flex,
    /// Burn's CUDA backend, for a number format of new tensors.
    Cube(FloatDType),
}

impl Habits {
    const ALL: [Self; 4] =
        [Self::Flex, Self::Cube(FloatDType::F32), Self::Cube(FloatDType::BF16), Self::Cube(FloatDType::F16)];

    fn number(self) -> u16 {
        Self::ALL.iter().position(|habits| *habits == self).map_or(0, |number| number as u16)
    }

    fn float(self) -> FloatDType {
        match self {
            Self::Flex => FloatDType::F32,
            Self::Cube(float) => float,
        }
    }
}

/// A device to count on: one is lent to each count, so that counts do not meet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counter {
    habits: Habits,
    index: u16,
}

impl burn_std::device::Device for Counter {
    fn from_id(id: DeviceId) -> Self {
        Self { habits: Habits::ALL[usize::from(id.type_id) % Habits::ALL.len()], index: id.index_id }
    }

    fn to_id(&self) -> DeviceId {
        DeviceId { type_id: self.habits.number(), index_id: self.index }
    }
}

impl DeviceOps for Counter {}

/// Indices that no count uses now, by [`Habits::number`], and the next new one.
static FREE: Mutex<[(Vec<u16>, u16); 4]> = Mutex::new([const { (Vec::new(), 0) }; 4]);

fn free() -> MutexGuard<'static, [(Vec<u16>, u16); 4]> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A counter that is given back when this is dropped.
#[derive(Debug)]
pub struct Lent(Counter);

impl Lent {
    /// A counter with an empty ledger.
    #[must_use]
    pub fn new(habits: Habits) -> Self {
        let number = habits.number();
        let index = {
            let (back, next) = &mut free()[usize::from(number)];
            back.pop().unwrap_or_else(|| {
                *next = next.wrapping_add(1);
                *next
            })
        };
        let counter = Counter { habits, index };
        // Settings stay with the device for good: a second time changes nothing.
        let _ = set_default_dtypes::<BackendRouter<Channel>>(&counter, habits.float(), IntDType::I32);
        let lent = Self(counter);
        lent.read(|ledger| *ledger = Ledger::new(habits));
        lent
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Counter {
        &self.0
    }

    /// What was counted so far.
    pub fn read<R>(&self, with: impl FnOnce(&mut Ledger) -> R) -> R {
        let client = get_client::<Channel>(&self.0);
        with(&mut client.ledger())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        free()[usize::from(self.0.habits.number())].0.push(self.0.index);
    }
}

/// How the router reaches counters.
#[derive(Debug, Clone)]
pub struct Channel;

/// One counter's ledger, shared by its tensors.
#[derive(Debug, Clone)]
pub struct Client {
    counter: Counter,
    ledger: Arc<Mutex<Ledger>>,
}

impl Client {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunnerClient for Client {
    type Device = Counter;

    fn register_op(&self, op: OperationIr) {
        self.ledger().take(&op);
    }

    /// Zeros: nothing was computed.
    fn read_tensor_async(&self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        self.ledger().consume(&tensor);
        let data = zeros(tensor.shape, tensor.dtype);
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
        self.ledger().given(id, &data.shape, data.dtype);
        RouterTensor::new(id, data.shape, data.dtype, self.clone())
    }

    fn device(&self) -> Counter {
        self.counter.clone()
    }

    fn seed(&self, _seed: u64) {}

    fn dtype_usage(&self, _dtype: DType) -> DTypeUsageSet {
        DTypeUsage::general()
    }
}

/// Zeros that take no memory until somebody looks at them. Moments that rest in host memory are read
/// and never looked at: made for real, they would be as large as those of the run.
fn zeros(shape: Shape, dtype: DType) -> TensorData {
    // The number formats that the router converts to: a conversion would look at them.
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

/// There is nothing to carry from one counter to another.
#[derive(Debug)]
pub struct NoBridge;

impl MultiBackendBridge for NoBridge {
    type TensorHandle = ();
    type Device = Counter;

    fn change_backend_float((): (), _shape: Shape, _target: &Counter) {}
    fn change_backend_int((): (), _shape: Shape, _target: &Counter) {}
    fn change_backend_bool((): (), _shape: Shape, _target: &Counter) {}
}

impl RunnerChannel for Channel {
    type Device = Counter;
    type Bridge = NoBridge;
    type Client = Client;
    type FloatElem = f32;
    type IntElem = i32;
    type BoolElem = bool;

    fn name(_device: &Counter) -> String {
        "counting".to_owned()
    }

    fn init_client(device: &Counter) -> Client {
        Client { counter: device.clone(), ledger: Arc::new(Mutex::new(Ledger::new(device.habits))) }
    }

    fn get_tensor_handle(_tensor: &TensorIr, _client: &Client) {}

    fn register_tensor(client: &Client, (): (), shape: Shape, dtype: DType) -> RouterTensor<Client> {
        let id = client.create_empty_handle();
        client.ledger().given(id, &shape, dtype);
        RouterTensor::new(id, shape, dtype, client.clone())
    }
}

#[cfg(test)]
mod tests;
