//! Handles of the C interface: numbers that stand for shared objects, so a stale one is an error and no crash.

use super::abi::{Code, Handle, INVALID_HANDLE};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

pub struct Handles<T> {
    entries: Mutex<(usize, BTreeMap<usize, Arc<T>>)>,
}

impl<T> Handles<T> {
    pub const fn new() -> Self {
        Self { entries: Mutex::new((0, BTreeMap::new())) }
    }

    pub fn insert(&self, value: Arc<T>) -> Handle {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.0 += 1;
        // Far from the small numbers that CUDA reserves for its default streams.
        let handle = 0x1000 + 16 * entries.0;
        entries.1.insert(handle, value);
        ptr::without_provenance_mut(handle)
    }

    pub fn get(&self, handle: Handle) -> Result<Arc<T>, Code> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.1.get(&handle.addr()).cloned().ok_or(INVALID_HANDLE)
    }

    pub fn remove(&self, handle: Handle) -> Result<Arc<T>, Code> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.1.remove(&handle.addr()).ok_or(INVALID_HANDLE)
    }
}
