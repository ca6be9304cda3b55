//! Memory that is taken in pages.

use std::any::Any;
use std::fmt::Debug;

/// The pages that a backend takes from a device. Tensors are slices of them.
pub trait Pages: Debug + Send {
    /// Ends the allocation of parameters, with which a device begins.
    fn end_parameters(&mut self);

    /// Finds room for a tensor, which lasts until the returned value is dropped.
    fn reserve(&mut self, bytes: u64) -> Box<dyn Any + Send>;

    /// Returns the bytes of all pages taken so far.
    fn taken(&mut self) -> u64;
}
