//! 16 bits: new tensors of this process have another number format. It belongs to the device for as
//! long as the process lives, so each format has a test binary of its own.

use burn::backend::flex::{Flex, FlexDevice};
use burn::tensor::{FloatDType, IntDType, set_default_dtypes};
use std::sync::Once;

/// Makes new tensors those of this format, for the rest of the process.
pub fn prepare(format: FloatDType) {
    static FORMAT: Once = Once::new();
    FORMAT.call_once(|| set_default_dtypes::<Flex>(&FlexDevice, format, IntDType::I32).unwrap());
}
