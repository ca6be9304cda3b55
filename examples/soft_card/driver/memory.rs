//! Device memory: pages of this process, counted against the capacity of the card.

use super::abi::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use super::ledger::Ledger;
use crate::settings;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Sizes are rounded up to this.
const GRANULE: usize = 512;

pub struct Memory {
    capacity: AtomicU64,
    blocks: Mutex<BTreeMap<u64, usize>>,
    ledger: Ledger,
}

impl Memory {
    pub fn new(device: usize) -> Self {
        Self {
            capacity: AtomicU64::new(settings::number::<u64>("MEMORY_MIB", 8192) << 20),
            blocks: Mutex::default(),
            ledger: Ledger::of_device(device),
        }
    }

    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::SeqCst)
    }

    pub fn cut_capacity(&self, bytes: u64) {
        self.capacity.store(bytes, Ordering::SeqCst);
    }

    /// Returns the bytes that no process uses.
    pub fn free_bytes(&self) -> u64 {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let own = blocks.values().sum::<usize>() as u64;
        self.capacity().saturating_sub(own + self.ledger.others())
    }

    pub fn allocate(&self, bytes: usize) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let size = bytes.checked_next_multiple_of(GRANULE).ok_or(OUT_OF_MEMORY)?;
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let own = blocks.values().sum::<usize>() as u64;
        if !self.ledger.claim(own, size as u64, self.capacity()) {
            settings::log(&format!("no room for {size} bytes beside {own}"));
            return Err(OUT_OF_MEMORY);
        }
        let Some(at) = map_pages(size) else {
            self.ledger.write(own);
            return Err(OUT_OF_MEMORY);
        };
        blocks.insert(at as u64, size);
        Ok(at as u64)
    }

    /// Returns the size of an allocation.
    pub fn size_of(&self, at: u64) -> u64 {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).get(&at).map_or(0, |size| *size as u64)
    }

    pub fn free(&self, at: u64) -> Result<(), Code> {
        if at == 0 {
            return Ok(());
        }
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let size = blocks.remove(&at).ok_or(INVALID_VALUE)?;
        // SAFETY: `map_pages` made these pages, and they were listed until now.
        unsafe { libc::munmap(at as *mut libc::c_void, size) };
        self.ledger.write(blocks.values().sum::<usize>() as u64);
        Ok(())
    }
}

/// Maps zeroed pages, or pages full of NaN.
pub fn map_pages(bytes: usize) -> Option<usize> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: asks for new pages anywhere; nothing else is touched.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind | libc::MAP_NORESERVE, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    if settings::setting("POISON").is_some() {
        // SAFETY: the pages are new and have this size.
        unsafe { at.cast::<u8>().write_bytes(0xff, bytes) };
    }
    Some(at.expose_provenance())
}

static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

pub fn allocate_pinned(bytes: usize) -> Result<usize, Code> {
    let at = map_pages(bytes.max(1)).ok_or(OUT_OF_MEMORY)?;
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).insert(at, bytes.max(1));
    Ok(at)
}

pub fn free_pinned(at: usize) -> Result<(), Code> {
    let bytes = PINNED.lock().unwrap_or_else(PoisonError::into_inner).remove(&at).ok_or(INVALID_VALUE)?;
    // SAFETY: as in `Memory::free`.
    unsafe { libc::munmap(at as *mut libc::c_void, bytes) };
    Ok(())
}

pub fn is_pinned(at: usize) -> bool {
    let pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    pinned.range(..=at).next_back().is_some_and(|(start, bytes)| at - start < *bytes)
}
