//! The driver: devices, memory, streams, events, kernels.

mod abi;
mod calls_device;
mod calls_kernel;
mod calls_memory;
mod calls_stream;
mod copies;
mod device;
mod event;
mod faults;
mod handles;
mod launch;
mod ledger;
mod memory;
mod module;
mod recording;
mod runtime;
mod signature;
mod stream;
