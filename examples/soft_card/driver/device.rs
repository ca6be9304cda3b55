//! A device: its memory, its streams, and the error that has broken it.

use super::abi::{Code, Handle, INVALID_CONTEXT, INVALID_DEVICE, SUCCESS};
use super::faults;
use super::memory::Memory;
use super::stream::Stream;
use crate::settings;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};

static DEVICES: LazyLock<Vec<Device>> =
    LazyLock::new(|| (0..settings::number("DEVICES", 1)).map(Device::new).collect());

thread_local! {
    static CURRENT: Cell<Option<&'static Device>> = const { Cell::new(None) };
}

pub struct Device {
    pub index: usize,
    pub memory: Memory,
    /// Whether this process has retained the primary context.
    is_active: AtomicBool,
    /// The error of a launch that has failed and that no call has returned so far.
    latent: AtomicI32,
    /// The error that every call returns from now on.
    sticky: AtomicI32,
    streams: Mutex<Vec<Weak<Stream>>>,
    default_stream: OnceLock<Arc<Stream>>,
}

impl Device {
    fn new(index: usize) -> Self {
        Self {
            index,
            memory: Memory::new(index),
            is_active: AtomicBool::new(false),
            latent: AtomicI32::new(SUCCESS),
            sticky: AtomicI32::new(SUCCESS),
            streams: Mutex::new(Vec::new()),
            default_stream: OnceLock::new(),
        }
    }

    pub fn count() -> usize {
        DEVICES.len()
    }

    pub fn by_index(index: i32) -> Result<&'static Device, Code> {
        usize::try_from(index).ok().and_then(|index| DEVICES.get(index)).ok_or(INVALID_DEVICE)
    }

    /// Returns the device whose primary context is current on this thread, unless it is broken.
    pub fn current() -> Result<&'static Device, Code> {
        CURRENT.get().ok_or(INVALID_CONTEXT)?.working()
    }

    /// Returns this device, unless it is broken.
    pub fn working(&'static self) -> Result<&'static Device, Code> {
        faults::play_standing(self);
        self.check()?;
        Ok(self)
    }

    /// Retains the primary context and returns its handle.
    pub fn retain(&self) -> Handle {
        self.is_active.store(true, Ordering::SeqCst);
        self.context()
    }

    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::SeqCst)
    }

    /// The context's handle: the device's index plus one.
    fn context(&self) -> Handle {
        ptr::without_provenance_mut(self.index + 1)
    }

    pub fn current_context() -> Handle {
        CURRENT.get().map_or(ptr::null_mut(), Device::context)
    }

    pub fn set_current(context: Handle) -> Result<(), Code> {
        let device = match context.addr() {
            0 => None,
            number => Some(DEVICES.get(number - 1).ok_or(INVALID_CONTEXT)?),
        };
        CURRENT.set(device);
        device.map_or(Ok(()), Device::check)
    }

    pub fn check(&self) -> Result<(), Code> {
        match self.sticky.load(Ordering::SeqCst) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    pub fn is_broken(&self) -> bool {
        self.latent.load(Ordering::SeqCst) != SUCCESS || self.check().is_err()
    }

    /// Breaks the device; the next call that waits for it returns the code, and all calls after that one.
    pub fn break_later(&self, code: Code) {
        let _ = self.latent.compare_exchange(SUCCESS, code, Ordering::SeqCst, Ordering::SeqCst);
    }

    pub fn break_now(&self, code: Code) {
        let _ = self.sticky.compare_exchange(SUCCESS, code, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Ends a call that has waited for work: returns the error of that work.
    pub fn report(&self) -> Result<(), Code> {
        match self.latent.load(Ordering::SeqCst) {
            SUCCESS => {}
            code => self.break_now(code),
        }
        self.check()
    }

    pub fn add_stream(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    pub fn default_stream(&'static self) -> Arc<Stream> {
        self.default_stream.get_or_init(|| Stream::start(self)).clone()
    }

    /// Waits for the work that all streams have now.
    pub fn synchronize(&self) -> Result<(), Code> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone();
        streams.iter().filter_map(Weak::upgrade).for_each(|stream| stream.wait());
        self.report()
    }
}
