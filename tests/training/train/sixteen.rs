//! 16 bits: new tensors of this process use another number format. The format is a property of the device for
//! the lifetime of the process, so each format has its own test binary.

use burn::backend::flex::{Flex, FlexDevice};
use burn::tensor::{FloatDType, IntDType, set_default_dtypes};
use downshift::burn;
use std::sync::Once;

/// Makes new tensors use this format for the rest of the process.
pub fn prepare(format: FloatDType) {
    static FORMAT: Once = Once::new();
    FORMAT.call_once(|| set_default_dtypes::<Flex>(&FlexDevice, format, IntDType::I32).unwrap());
}
