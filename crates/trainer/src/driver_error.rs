//! Asks the CUDA driver for the error that a device is in, since CubeCL's errors do not always name it.

#![expect(unsafe_code, reason = "the driver is a C library, called through symbols looked up by name")]

use super::device_failure::DriverError;
use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long the driver may take: a device that hangs never answers.
const LIMIT: Duration = Duration::from_secs(1);

/// Returns the error of the first device of this process that has one. An error that leaves a device usable is
/// unknown to its driver afterwards.
pub fn ask_driver() -> Option<DriverError> {
    let (tell, told) = mpsc::channel();
    let ask = move || {
        // SAFETY: only finds the library if this process already uses it, and runs nothing.
        let driver = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | libc::RTLD_NOLOAD) };
        // Nobody listens after the limit.
        let _ = tell.send(driver.ok().and_then(|driver| find_error(&driver)));
    };
    thread::Builder::new().name("driver error".to_owned()).spawn(ask).ok()?;
    told.recv_timeout(LIMIT).ok().flatten()
}

fn find_error(driver: &Library) -> Option<DriverError> {
    type Context = *mut c_void;
    // SAFETY: the signatures are those of the CUDA driver API; every pointer is to a live local. Contexts are retained
    // only where this process has one, so none is created.
    let code = unsafe {
        let count_devices = driver.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDeviceGetCount\0").ok()?;
        let get_state = driver
            .get::<unsafe extern "C" fn(c_int, *mut c_uint, *mut c_int) -> c_int>(b"cuDevicePrimaryCtxGetState\0")
            .ok()?;
        let retain =
            driver.get::<unsafe extern "C" fn(*mut Context, c_int) -> c_int>(b"cuDevicePrimaryCtxRetain\0").ok()?;
        let set_current = driver.get::<unsafe extern "C" fn(Context) -> c_int>(b"cuCtxSetCurrent\0").ok()?;
        let synchronize = driver.get::<unsafe extern "C" fn() -> c_int>(b"cuCtxSynchronize\0").ok()?;
        let ask = |device| {
            let (mut flags, mut active, mut context) = (0, 0, std::ptr::null_mut());
            if get_state(device, &raw mut flags, &raw mut active) != 0 || active == 0 {
                return 0;
            }
            match retain(&raw mut context, device) {
                0 => match set_current(context) {
                    0 => synchronize(),
                    code => code,
                },
                code => code,
            }
        };
        let mut count = 0;
        // Without an answer here, CUDA never started in this process.
        if count_devices(&raw mut count) != 0 {
            return None;
        }
        (0..count).map(ask).find(|code| *code != 0)?
    };
    let text = |symbol: &[u8]| {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: as above; the driver's texts are static and end with NUL.
        unsafe {
            let get = driver.get::<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>(symbol).ok()?;
            (get(code, &raw mut text) == 0 && !text.is_null())
                .then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    let name = text(b"cuGetErrorName\0").unwrap_or_else(|| "CUDA error".to_owned());
    let description = text(b"cuGetErrorString\0").unwrap_or_else(|| "no description".to_owned());
    Some(DriverError { code, name, description })
}
