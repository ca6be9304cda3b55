//! NVML's types and codes, as its header defines them.

use std::ffi::{c_uint, c_void};

pub type Code = c_uint;
pub type Device = *mut c_void;

pub const SUCCESS: Code = 0;
pub const INVALID_ARGUMENT: Code = 2;
pub const INSUFFICIENT_SIZE: Code = 7;
pub const VERSION_MISMATCH: Code = 25;
pub const TIMEOUT: Code = 10;
pub const UNKNOWN: Code = 999;
/// The Xid bit in the event type mask.
pub const XID: u64 = 8;
/// Size 40 in the lower bytes, version 2 in the highest.
pub const MEMORY_V2: c_uint = 0x0200_0028;

#[repr(C)]
pub struct MemoryV2 {
    pub version: c_uint,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

#[repr(C)]
pub struct Utilization {
    pub gpu: c_uint,
    pub memory: c_uint,
}

#[repr(C)]
pub struct Process {
    pub pid: c_uint,
    pub used: u64,
    pub gpu_instance: c_uint,
    pub compute_instance: c_uint,
}

#[repr(C)]
pub struct Pci {
    pub legacy: [u8; 16],
    pub domain: c_uint,
    pub bus: c_uint,
    pub device: c_uint,
    pub device_id: c_uint,
    pub subsystem_id: c_uint,
    pub bus_id: [u8; 32],
}

#[repr(C)]
pub struct FieldValue {
    pub field: c_uint,
    pub scope: c_uint,
    pub timestamp: i64,
    pub latency: i64,
    pub kind: c_uint,
    pub code: c_uint,
    pub value: u64,
}

#[repr(C)]
pub struct EventData {
    pub device: Device,
    pub kind: u64,
    pub data: u64,
    pub gpu_instance: c_uint,
    pub compute_instance: c_uint,
}

const _: () = assert!(size_of::<Pci>() == 68 && size_of::<FieldValue>() == 40 && size_of::<EventData>() == 32);
const _: () = assert!(size_of::<MemoryV2>() == 40 && size_of::<Utilization>() == 8 && size_of::<Process>() == 24);
