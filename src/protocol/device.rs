//! The value of `--device`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// Device to train on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// CUDA if there is a usable GPU, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with this CUDA index; fails if it is missing.
    Cuda(usize),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.write_str("auto"),
            Self::Cpu => formatter.write_str("cpu"),
            Self::Cuda(index) => write!(formatter, "cuda:{index}"),
        }
    }
}

impl DeviceChoice {
    /// Parses the device at the start of a display name such as `cuda:0 NVIDIA H100`.
    #[must_use]
    pub fn from_display_name(name: &str) -> Option<Self> {
        name.split(' ').next().and_then(|word| word.parse().ok())
    }

    /// Returns the index of a GPU.
    #[must_use]
    pub fn gpu_index(self) -> Option<usize> {
        match self {
            Self::Cuda(index) => Some(index),
            Self::Auto | Self::Cpu => None,
        }
    }

    /// Reports whether a display name such as `cuda:0 NVIDIA H100` is that of a GPU.
    #[must_use]
    pub fn names_gpu(name: &str) -> bool {
        Self::from_display_name(name).and_then(Self::gpu_index).is_some()
    }
}

/// A value that names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{0}`; use auto, cuda, cuda:0 or cpu")]
pub struct UnknownDevice(String);

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|index| index.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| UnknownDevice(text.to_owned())),
        }
    }
}

impl Serialize for DeviceChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceChoice, UnknownDevice};

    #[test]
    fn devices_are_read_and_written_back() {
        for (text, device) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda:0", DeviceChoice::Cuda(0)),
            ("cuda:3", DeviceChoice::Cuda(3)),
        ] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        assert_eq!(DeviceChoice::from_display_name("cuda:2 NVIDIA H100"), Some(DeviceChoice::Cuda(2)));
        assert!(
            DeviceChoice::names_gpu("cuda:0")
                && !DeviceChoice::names_gpu("cpu")
                && !DeviceChoice::names_gpu("scripted")
        );
        for text in ["gpu", "cuda:", "cuda:x", "cuda:-1", ""] {
            assert_eq!(text.parse::<DeviceChoice>(), Err(UnknownDevice(text.to_owned())));
        }
    }
}
