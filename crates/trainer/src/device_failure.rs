//! Errors of a device: their class, and their message in one line. CubeCL puts errors inside errors, and each level
//! repeats the text of those below it.

#[cfg(feature = "cuda")]
pub use super::driver_error::ask_driver;

use downshift_core::format::bytes;
use downshift_core::protocol::worker::FailureClass;
use std::fmt::{self, Display};

/// Name prefixes of the threads that run cubecl's device work.
pub const DEVICE_THREADS: [&str; 2] = ["DSD-", "DSU-"];
/// Messages of a failed allocation, from cubecl and from the driver.
const OUT_OF_MEMORY: [&str; 4] = [CANNOT_ALLOCATE, "out of memory", "CUDA_ERROR_OUT_OF_MEMORY", NO_PAGE];
/// Messages of a device fault reported on another thread.
const DEVICE_FAULTS: [&str; 5] = [
    DRIVER_CODE,
    "DriverError",
    "NVRTC_ERROR",
    "An error happened during execution",
    "The server is in an invalid state",
];
const CANNOT_ALLOCATE: &str = "can't allocate buffer";
/// A tensor whose allocation failed earlier.
const NO_PAGE: &str = "Memory page 0 doesn't exist";
/// Messages of a full disk: CubeCL panics when it cannot write its caches.
const NO_DISK: [&str; 2] = ["No space left on device", "StorageFull"];
/// The beginning of every name of a driver's error.
const DRIVER_CODE: &str = "CUDA_ERROR";
/// The driver's code for an allocation that failed.
const NO_MEMORY: i32 = 2;
/// The longest message, in characters.
const LONGEST: usize = 300;
/// The longest message with the log of NVRTC, which names the line of the kernel that it refuses.
const LONGEST_LOG: usize = 3_000;
/// CubeCL's words before that log.
const COMPILER_LOG: &str = "[Compilation Error]";
/// Lines of nested errors without information.
const EMPTY: [&str; 6] = [
    "Caused by:",
    "Backtrace",
    "Backtrace:",
    "No backtrace available",
    "An error happened during execution",
    "Unknown error happened during execution",
];

/// The error that a device is in, as its driver names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverError {
    /// The driver's number.
    pub code: i32,
    /// The driver's name for it: `CUDA_ERROR_LAUNCH_FAILED`.
    pub name: String,
    /// The driver's description: `unspecified launch failure`.
    pub description: String,
}

impl Display for DriverError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({}): {}", self.name, self.code, self.description)
    }
}

/// Returns none: this build has no CUDA.
#[cfg(not(feature = "cuda"))]
#[must_use]
pub fn ask_driver() -> Option<DriverError> {
    None
}

/// Returns the class of a panic, from the thread's name, the message, and the device's error if there is one.
#[must_use]
pub fn classify_panic(thread: &str, message: &str, driver: Option<&DriverError>) -> FailureClass {
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    let on_device = DEVICE_THREADS.iter().any(|name| thread.starts_with(name));
    if missing_library_remedy(message).is_some() {
        FailureClass::Config
    } else if on_device && says(&NO_DISK) {
        FailureClass::DiskFull
    } else if let Some(error) = driver {
        if error.code == NO_MEMORY { FailureClass::DeviceOutOfMemory } else { FailureClass::DeviceFault }
    } else if says(&OUT_OF_MEMORY) && (on_device || says(&DEVICE_FAULTS) || says(&OUT_OF_MEMORY[..1])) {
        FailureClass::DeviceOutOfMemory
    } else if on_device || says(&DEVICE_FAULTS) {
        FailureClass::DeviceFault
    } else {
        FailureClass::Panic
    }
}

/// Returns the message of a device's error: one line of limited length.
#[must_use]
pub fn describe_error(message: &str, driver: Option<&DriverError>) -> String {
    if let Some(fix) = missing_library_remedy(message) {
        let first = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        return format!("{}; {fix}", in_one_line(first));
    }
    let said = driver
        .map(ToString::to_string)
        .or_else(|| named_in(message))
        .or_else(|| {
            refused_bytes(message).map(|size| format!("the device has no room for a buffer of {}", bytes(size)))
        })
        .or_else(|| message.contains(NO_PAGE).then(|| "the device has no room for a tensor".to_owned()));
    in_one_line(said.as_deref().unwrap_or(message))
}

/// Returns the first error that the text names as the driver does, with its description.
fn named_in(message: &str) -> Option<String> {
    let begin = message.find(DRIVER_CODE)?;
    let rest = &message[begin..];
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    // Debug text within debug text escapes its quotes.
    let description = after.strip_prefix(", ").map(|text| text.trim_start_matches(['\\', '"']));
    let description = description.and_then(|text| text.split(['\\', '"']).next()).filter(|text| !text.is_empty());
    Some(description.map_or_else(|| name.to_owned(), |text| format!("{name}: {text}")))
}

/// Returns the size of the buffer that could not be allocated.
fn refused_bytes(message: &str) -> Option<u64> {
    let (_, size) = message.split_once("can't allocate buffer of size: ")?;
    size.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Joins the lines that carry information, each once.
fn in_one_line(message: &str) -> String {
    let mut said: Vec<&str> = Vec::new();
    for line in message.lines().map(str::trim).filter(|line| !line.is_empty() && !EMPTY.contains(line)) {
        if !said.contains(&line) {
            said.push(line);
        }
    }
    let text = if said.is_empty() { "the device failed without a reason".to_owned() } else { said.join("; ") };
    let longest = if text.contains(COMPILER_LOG) { LONGEST_LOG } else { LONGEST };
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Returns the remedy for a CUDA library that cannot be loaded, if the panic is about one.
#[must_use]
fn missing_library_remedy(message: &str) -> Option<&'static str> {
    let missing = message.contains("Unable to dynamically load the");
    if missing && message.contains("\"nvrtc\"") {
        return Some("install the CUDA toolkit's runtime compiler (NVRTC), or train with --device cpu");
    }
    if missing && message.contains("\"cuda\"") {
        return Some("install the NVIDIA driver, or train with --device cpu");
    }
    if message.contains("CUDA installation not found") {
        return Some("set CUDA_PATH to the folder that holds include/cuda_runtime.h, or train with --device cpu");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{DriverError, FailureClass, LONGEST, LONGEST_LOG, classify_panic, describe_error};

    fn driver(code: i32, name: &str, description: &str) -> DriverError {
        DriverError { code, name: name.to_owned(), description: description.to_owned() }
    }

    #[test]
    fn panics_are_classified_by_thread_and_message() {
        use FailureClass::{Config, DeviceFault, DeviceOutOfMemory, DiskFull, Panic};
        let table = [
            ("DSD-0-0", "can't allocate buffer of size: 68719476736", DeviceOutOfMemory),
            ("DSD-0-0", "couldn't find resource for that handle: Memory page 0 doesn't exist", DeviceOutOfMemory),
            ("DSU-0-0", "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")", DeviceOutOfMemory),
            ("main", "called `Result::unwrap()`: DriverError(CUDA_ERROR_OUT_OF_MEMORY)", DeviceOutOfMemory),
            ("main", "can't allocate buffer of size: 12", DeviceOutOfMemory),
            ("DSD-0-1", "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)", DeviceFault),
            ("DSD-0-0", "index out of bounds", DeviceFault),
            ("DSD-0-0", "Failed to write to chunk: Os { code: 28, kind: StorageFull }", DiskFull),
            ("main", "DriverError(CUDA_ERROR_LAUNCH_FAILED)", DeviceFault),
            ("main", "An error happened during execution\nCaused by:\n  Unknown error", DeviceFault),
            ("main", "Unable to dynamically load the \"nvrtc\" shared library - searched", Config),
            ("DSD-0-0", "Unable to dynamically load the \"cuda\" shared library - searched", Config),
            ("DSD-0-0", "CUDA installation not found.", Config),
            ("loader-0", "index out of bounds", Panic),
            ("main", "the pool of ideas is out of memory", Panic),
            ("saver", "attempt to divide by zero", Panic),
        ];
        for (thread, message, class) in table {
            assert_eq!(classify_panic(thread, message, None), class, "{thread}: {message}");
        }
    }

    #[test]
    fn the_drivers_code_tells_what_the_text_hides() {
        let hidden = "An error happened during execution\nCaused by:\n  Unknown error happened during execution";
        let memory = driver(2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory");
        assert_eq!(classify_panic("main", hidden, Some(&memory)), FailureClass::DeviceOutOfMemory);
        let launch = driver(719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure");
        for text in [hidden, "couldn't find resource for that handle: Memory page 0 doesn't exist"] {
            assert_eq!(classify_panic("DSD-0-0", text, Some(&launch)), FailureClass::DeviceFault);
        }
        assert_eq!(describe_error(hidden, Some(&launch)), "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure");
    }

    #[test]
    fn an_error_is_one_short_line() {
        let table = [
            (
                "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory \
                 access was encountered\")",
                "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
            ),
            (
                "The server is in an invalid state\nCaused by:\n  [Generic { reason: \"DriverError(CUDA_ERROR_UNKNOWN, \
                 \\\"unknown error\\\")\" }]",
                "CUDA_ERROR_UNKNOWN: unknown error",
            ),
            ("CUDA_ERROR_X", "CUDA_ERROR_X"),
            ("CUDA_ERROR_X, bare\nand more", "CUDA_ERROR_X: bare; and more"),
            (
                "can't allocate buffer of size: 68719476736\nNo backtrace available",
                "the device has no room for a buffer of 64.0 GiB",
            ),
            (
                "An error happened during execution\nCaused by:\n  the kernel is odd\nBacktrace:\nNo backtrace available",
                "the kernel is odd",
            ),
            ("An error happened during execution\nCaused by:\n", "the device failed without a reason"),
        ];
        for (message, line) in table {
            assert_eq!(describe_error(message, None), line);
        }
        let nested: Vec<String> = (0..4000).map(|depth| format!("level {depth}\nCaused by:\n  the same")).collect();
        let line = describe_error(&nested.join("\n"), None);
        assert_eq!((line.lines().count(), line.chars().count()), (1, LONGEST + 1));
        assert!(line.starts_with("level 0; the same; level 1; level 2"), "{line}");
        let log = (0..90).map(|line| format!("kernel.cu({line}): error: name followed by :: must be a class\n"));
        let line = describe_error(&format!("[Compilation Error] \n{}", log.collect::<String>()), None);
        assert!(line.contains("kernel.cu(40): error") && line.chars().count() == LONGEST_LOG + 1, "{line}");
    }
}
