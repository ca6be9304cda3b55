//! The pages in which CubeCL takes the memory of a GPU: its own bookkeeping, with pages that are only numbers.

use super::shape_backend::Pages;
use cubecl::ir::MemoryDeviceProperties;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{
    MemoryAllocationMode, MemoryConfiguration, MemoryManagement, MemoryManagementOptions,
};
use cubecl_runtime::server::IoError;
use cubecl_runtime::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

/// The alignment that cubecl-cuda gives to tensors.
const ALIGNMENT: u64 = 512;
/// cubecl-cuda allows a page of this part of the GPU's memory, and no larger tensor.
const PAGES_PER_GPU: u64 = 4;

/// The pages of a GPU that does not exist.
#[derive(Debug)]
pub struct GpuPages {
    manager: MemoryManagement<PagesOnPaper>,
    /// The least memory of a GPU on which the largest tensor so far has a page.
    least_memory: u64,
}

impl GpuPages {
    /// Returns the pages of a GPU with this many bytes, none of them taken. Parameters have memory of their own if kernels are
    /// not fused: Burn asks for it, but fused operations run when it no longer does.
    #[must_use]
    pub fn new(memory_bytes: u64, fused_kernels: bool) -> Self {
        let properties = MemoryDeviceProperties { max_page_size: memory_bytes / PAGES_PER_GPU, alignment: ALIGNMENT };
        let mut manager = MemoryManagement::from_configuration(
            PagesOnPaper::default(),
            &properties,
            MemoryConfiguration::default(),
            Arc::new(ServerLogger::default()),
            MemoryManagementOptions::new("plan"),
        );
        // Later tensors of such a size get the same.
        if !fused_kernels {
            manager.mode(MemoryAllocationMode::Persistent);
        }
        Self { manager, least_memory: 0 }
    }
}

impl Pages for GpuPages {
    fn end_parameters(&mut self) {
        self.manager.mode(MemoryAllocationMode::Auto);
    }

    fn reserve(&mut self, bytes: u64) -> Box<dyn Any + Send> {
        let slice = self.manager.reserve(bytes).ok();
        if slice.is_none() {
            self.least_memory = self.least_memory.max(bytes * PAGES_PER_GPU);
        }
        Box::new(slice)
    }

    fn taken(&mut self) -> u64 {
        self.manager.storage().pages.values().sum::<u64>().max(self.least_memory)
    }
}

#[derive(Debug, Default)]
struct PagesOnPaper {
    pages: HashMap<StorageId, u64>,
}

impl ComputeStorage for PagesOnPaper {
    type Resource = ();

    fn alignment(&self) -> usize {
        ALIGNMENT as usize
    }

    fn get(&mut self, _page: &StorageHandle) {}

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        let id = StorageId::new();
        self.pages.insert(id, size);
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    fn dealloc(&mut self, id: StorageId) {
        self.pages.remove(&id);
    }

    fn flush(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn tensors_share_a_page_and_leave_their_room_to_others() {
        let mut pages = GpuPages::new(1024 * MIB, true);
        let one = pages.reserve(5 * MIB);
        let taken = pages.taken();
        assert!(taken > 5 * MIB && taken <= 64 * MIB, "{taken}");
        let other = pages.reserve(5 * MIB);
        assert_eq!(pages.taken(), taken, "there is room left in the page");
        drop((one, other));
        let again: Vec<_> = (0..2).map(|_| pages.reserve(5 * MIB)).collect();
        assert_eq!(pages.taken(), taken, "freed room is used again");
        drop(again);
        assert_eq!(pages.taken(), taken, "pages are kept");
    }

    #[test]
    fn parameters_and_tensors_of_their_size_have_memory_of_their_own() {
        let mut pages = GpuPages::new(1024 * MIB, false);
        let parameter = pages.reserve(5 * MIB);
        pages.end_parameters();
        drop(pages.reserve(5 * MIB));
        let moment = pages.reserve(5 * MIB);
        assert_eq!(pages.taken(), 10 * MIB);
        drop((parameter, moment));
    }

    #[test]
    fn a_tensor_larger_than_any_page_needs_a_larger_gpu() {
        let mut pages = GpuPages::new(1024 * MIB, false);
        let parameter = pages.reserve(301 * MIB);
        assert_eq!(pages.taken(), 301 * MIB, "a parameter needs no page");
        drop(parameter);
        pages.end_parameters();
        pages.reserve(300 * MIB);
        assert_eq!(pages.taken(), 1200 * MIB);
    }
}
