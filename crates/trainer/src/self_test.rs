//! A small computation that checks the device before a run depends on it.

#[cfg(not(feature = "cuda"))]
use super::device::NoGpu;
use super::device::{self, DeviceError, TensorDevice};
use super::device_failure::{ask_driver, describe_error};
use super::exit::exit_now;
use burn::backend::flex::{Flex, FlexDevice};
use burn::tensor::{
    Tensor,
    backend::{Backend, ExecutionError},
};
use downshift_core::config::knobs::Precision;
use downshift_core::protocol::device::DeviceChoice;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The dimension of the square matrices.
const SIDE: usize = 256;
/// Values in the large allocation: 256 MB of f32.
const LARGE: usize = 64 << 20;

/// The exit code of a failed test.
pub const FAILED: u8 = 11;

/// A passed test.
#[derive(Debug, Clone, PartialEq)]
pub struct SelfTest {
    /// The device's display name.
    pub device: String,
    /// The duration in seconds.
    pub seconds: f64,
    /// Why this is not the device that was asked for, if so.
    pub note: Option<String>,
}

impl fmt::Display for SelfTest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, seconds, note } = self;
        write!(formatter, "{device}: 256 MB allocated, {SIDE}×{SIDE} matrix product correct, {seconds:.1} s")?;
        note.as_ref().map_or(Ok(()), |note| write!(formatter, " ({note})"))
    }
}

/// The reason why a test failed.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The computation failed.
    #[error("{device}: {error}")]
    Computation {
        /// The device's display name.
        device: String,
        /// The failure.
        error: ComputationError,
    },
}

/// A failure of the computation.
#[derive(Debug, thiserror::Error)]
pub enum ComputationError {
    /// The device reports an error.
    #[error("{0}")]
    Execution(String),
    /// The device returned nothing.
    #[error("the device returned no values")]
    Empty,
    /// The device computed wrong values.
    #[error("wrong results: {large} instead of 1, {product} instead of {SIDE}")]
    Wrong {
        /// The largest of many ones.
        large: f64,
        /// The mean of a matrix product of ones.
        product: f64,
    },
    /// The CUDA backend is not compiled in.
    #[cfg(not(feature = "cuda"))]
    #[error(transparent)]
    NoGpu(#[from] NoGpu),
}

/// Allocates and multiplies on the device.
///
/// # Errors
/// Returns an error when the device is missing, fails, or computes wrong values. A device that panics, or that has not
/// answered within `limit`, ends the process with [`FAILED`].
pub fn run_self_test(choice: &DeviceChoice, limit: Duration) -> Result<SelfTest, SelfTestError> {
    end_after(limit, &choice.to_string());
    let chosen = device::choose_device(choice, Precision::F32)?;
    end_by_panic(&chosen.name);
    let begun = Instant::now();
    let result = match chosen.location {
        TensorDevice::Cpu => check_computation::<Flex>(&FlexDevice),
        #[cfg(feature = "cuda")]
        TensorDevice::Cuda(index) => {
            use burn::tensor::backend::AutodiffBackend;
            type Plain = <super::backends::CudaPlain as AutodiffBackend>::InnerBackend;
            check_computation::<Plain>(&cubecl::cuda::CudaDevice::new(index))
        }
        #[cfg(not(feature = "cuda"))]
        TensorDevice::Cuda(_) => Err(NoGpu::NotBuilt.into()),
    };
    let seconds = begun.elapsed().as_secs_f64();
    match result {
        Ok(()) => Ok(SelfTest { note: chosen.note(), device: chosen.name, seconds }),
        Err(error) => Err(SelfTestError::Computation { device: chosen.name, error }),
    }
}

/// Ends the process when the device has not answered in time.
fn end_after(limit: Duration, device: &str) {
    let device = device.to_owned();
    // If the system refuses the thread, the test runs without a limit.
    let _ = thread::Builder::new().name("time limit".to_owned()).spawn(move || {
        thread::sleep(limit);
        let fix = "restart the machine (under WSL2, `wsl --shutdown` in Windows)";
        end_failed(&device, &format!("no result within {} s; {fix}", limit.as_secs()));
    });
}

/// Ends the process when the device panics, which would leave its caller waiting or with garbage.
fn end_by_panic(device: &str) {
    let (device, taken) = (device.to_owned(), AtomicBool::new(false));
    std::panic::set_hook(Box::new(move |panic| {
        if !taken.swap(true, Ordering::SeqCst) {
            let text = panic.payload_as_str().unwrap_or("panicked without a message");
            end_failed(&device, &describe_error(text, ask_driver().as_ref()));
        }
    }));
}

fn end_failed(device: &str, reason: &str) -> ! {
    let _ = writeln!(std::io::stdout(), "{device}: {reason}");
    exit_now(FAILED)
}

fn check_computation<B: Backend>(device: &B::Device) -> Result<(), ComputationError> {
    let read = |tensor: Tensor<B, 1>| {
        let failed = |error: ExecutionError| describe_error(&error.to_string(), ask_driver().as_ref());
        let data = tensor.try_into_data().map_err(failed).map_err(ComputationError::Execution)?;
        data.iter::<f64>().next().ok_or(ComputationError::Empty)
    };
    // Use max rather than mean: this many ones do not sum correctly in f32.
    let large = read(Tensor::<B, 1>::ones([LARGE], device).max())?;
    let ones = Tensor::<B, 2>::ones([SIDE, SIDE], device);
    let product = read(ones.clone().matmul(ones).mean())?;
    if (large - 1.0).abs() > 1e-3 || (product - SIDE as f64).abs() > 1e-3 {
        return Err(ComputationError::Wrong { large, product });
    }
    Ok(())
}
