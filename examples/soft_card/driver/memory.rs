//! Device memory: pages of this process, counted against the capacity of the card.

use super::abi::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use super::ledger::Ledger;
use crate::settings;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Sizes are rounded up to this.
const GRANULE: usize = 512;
/// Sizes of mappings are rounded up to this, as on a card: CubeCL's `select` reads the index of every column before it
/// knows whether it needs it, so beyond a short buffer of indices.
const PAGE: usize = 2 << 20;

pub struct Memory {
    capacity: AtomicU64,
    /// Whether allocations beyond the capacity succeed all the same.
    swallows: AtomicBool,
    blocks: Mutex<BTreeMap<u64, usize>>,
    ledger: Ledger,
}

impl Memory {
    pub fn new(device: usize) -> Self {
        Self {
            capacity: AtomicU64::new(settings::number::<u64>("MEMORY_MIB", 8192) << 20),
            swallows: AtomicBool::new(false),
            blocks: Mutex::default(),
            ledger: Ledger::of_device(device),
        }
    }

    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::SeqCst)
    }

    pub fn cut_capacity(&self, bytes: u64, swallows: bool) {
        self.capacity.store(bytes, Ordering::SeqCst);
        self.swallows.store(swallows, Ordering::SeqCst);
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
            if !self.swallows.load(Ordering::SeqCst) {
                return Err(OUT_OF_MEMORY);
            }
        }
        let Some(at) = map_pages(size.next_multiple_of(PAGE)) else {
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
        unsafe { libc::munmap(at as *mut libc::c_void, size.next_multiple_of(PAGE)) };
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
static PINNED_CAPACITY: AtomicU64 = AtomicU64::new(u64::MAX);

pub fn cut_pinned(bytes: u64) {
    PINNED_CAPACITY.store(bytes, Ordering::SeqCst);
}

pub fn allocate_pinned(bytes: usize) -> Result<usize, Code> {
    let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = bytes.max(1);
    if (pinned.values().sum::<usize>() + bytes) as u64 > PINNED_CAPACITY.load(Ordering::SeqCst) {
        settings::log(&format!("cannot pin {bytes} bytes"));
        return Err(OUT_OF_MEMORY);
    }
    let at = map_pages(bytes).ok_or(OUT_OF_MEMORY)?;
    pinned.insert(at, bytes);
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
