//! Xid errors from the driver: a thread waits for NVML events.
//!
//! The thread opens the library itself, since an event set lives no longer than the library it came from.
//! On stop it is signalled but not joined: it may hang inside the library.

use super::nvml_error::metric_reason;
use crate::protocol::probe::Metric;
use crate::untrusted::thread::start;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Duration of one wait inside the library.
const WAIT_MS: u32 = 500;
/// Maximum events kept between two readings.
const KEPT: usize = 64;
/// Reported when the driver does not know the error's number.
const UNKNOWN: u32 = 999;

/// Events received by the thread.
#[derive(Debug, Default)]
pub struct XidEvents {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    received: Mutex<Metric<Vec<u32>>>,
    stop: AtomicBool,
}

impl XidEvents {
    /// Starts to wait for errors of this GPU.
    pub fn watch(library: &Path, index: u32) -> Self {
        let received = Mutex::new(Metric::Is(Vec::new()));
        let shared = Arc::new(Shared { received, stop: AtomicBool::new(false) });
        let (listener, library) = (Arc::clone(&shared), library.to_owned());
        // Without it, there are no readings.
        let _ = start("errors of the GPU", move || {
            if let Err(error) = wait_for_xids(&listener, &library, index) {
                *listener.received.lock().unwrap_or_else(PoisonError::into_inner) = Metric::Not(metric_reason(&error));
            }
        });
        Self { shared: Some(shared) }
    }

    /// Returns the errors received since the last call.
    pub fn drain(&self) -> Metric<Vec<u32>> {
        let Some(shared) = &self.shared else { return Metric::default() };
        let mut received = shared.received.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *received {
            Metric::Is(numbers) => Metric::Is(mem::take(numbers)),
            other => other.clone(),
        }
    }

    /// Makes the thread end after its current wait.
    pub fn stop(&self) {
        if let Some(shared) = &self.shared {
            shared.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn wait_for_xids(shared: &Shared, library: &Path, index: u32) -> Result<(), NvmlError> {
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
    // Dropping calls functions that this library may lack, and would panic.
    if nvml.lib().nvmlShutdown.is_err() || nvml.lib().nvmlEventSetFree.is_err() {
        mem::forget(nvml);
        return Err(NvmlError::NotSupported);
    }
    let device = nvml.device_by_index(index)?;
    if !device.supported_event_types()?.contains(EventTypes::CRITICAL_XID_ERROR) {
        return Err(NvmlError::NotSupported);
    }
    let set = device
        .register_events(EventTypes::CRITICAL_XID_ERROR, nvml.create_event_set()?)
        .map_err(|refused| refused.error)?;
    while !shared.stop.load(Ordering::Relaxed) {
        let event = match set.wait(WAIT_MS) {
            Ok(event) => event,
            Err(NvmlError::Timeout) => continue,
            Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => return Err(error),
            Err(_) => {
                thread::sleep(Duration::from_millis(WAIT_MS.into()));
                continue;
            }
        };
        let number = match event.event_data {
            Some(XidError::Value(number)) => u32::try_from(number).unwrap_or(UNKNOWN),
            Some(XidError::Unknown) => UNKNOWN,
            None => continue,
        };
        if let Metric::Is(numbers) = &mut *shared.received.lock().unwrap_or_else(PoisonError::into_inner)
            && numbers.len() < KEPT
        {
            numbers.push(number);
        }
    }
    Ok(())
}
