//! A small computation that checks the device before a run depends on it.

use super::device::{self, Place};
use crate::config::knobs::Precision;
use crate::protocol::device::DeviceChoice;
use burn::backend::flex::{Flex, FlexDevice};
use burn::tensor::{Tensor, backend::Backend};
use std::io::Write;
use std::time::Instant;

/// The dimension of the square matrices.
const SIDE: usize = 256;
/// Values in the large allocation: 256 MB of f32.
const LARGE: usize = 64 << 20;

/// Allocates and multiplies on the device, and returns a description of the work.
///
/// # Errors
/// Returns a description of the failure and its exit code.
pub fn run(choice: DeviceChoice) -> Result<String, (u8, String)> {
    // A panicking device thread would otherwise leave its caller waiting, or with garbage.
    std::panic::set_hook(Box::new(|panic| {
        let words = panic.to_string();
        let _ = writeln!(std::io::stdout(), "{}", words.lines().last().unwrap_or("a panic"));
        std::process::exit(11);
    }));
    let chosen = device::choose(choice, Precision::F32).map_err(|why| (11, why))?;
    let begun = Instant::now();
    let right = match chosen.place {
        Place::Cpu => compute::<Flex>(&FlexDevice),
        #[cfg(feature = "cuda")]
        Place::Cuda(index) => {
            use burn::tensor::backend::AutodiffBackend;
            type Plain = <super::backends::CudaPlain as AutodiffBackend>::InnerBackend;
            compute::<Plain>(&cubecl::cuda::CudaDevice::new(index))
        }
        #[cfg(not(feature = "cuda"))]
        Place::Cuda(_) => Err("this build has no CUDA backend".to_owned()),
    };
    right.map_err(|why| (11, format!("{}: {why}", chosen.name)))?;
    let took = begun.elapsed().as_secs_f64();
    Ok(format!("{}: 256 MB allocated, {SIDE}×{SIDE} matrix product right, {took:.1} s in all", chosen.name))
}

fn compute<B: Backend>(device: &B::Device) -> Result<(), String> {
    let read = |tensor: Tensor<B, 1>| -> Result<f64, String> {
        let data = tensor.try_into_data().map_err(|error| error.to_string())?;
        data.iter::<f64>().next().ok_or_else(|| "nothing came back".to_owned())
    };
    // Use max rather than mean: this many ones do not sum correctly in f32.
    let large = read(Tensor::<B, 1>::ones([LARGE], device).max())?;
    let ones = Tensor::<B, 2>::ones([SIDE, SIDE], device);
    let product = read(ones.clone().matmul(ones).mean())?;
    if (large - 1.0).abs() > 1e-3 || (product - SIDE as f64).abs() > 1e-3 {
        return Err(format!("the results are wrong: {large} for 1, {product} for {SIDE}"));
    }
    Ok(())
}
