//! The real backends whose memory use is modeled.

use burn::tensor::FloatDType;

/// The real backend whose memory behavior is modeled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendModel {
    /// Burn's CPU backend.
    #[default]
    Flex,
    /// Burn's CUDA backend, with the number format of new tensors.
    Cube(FloatDType),
}

impl BackendModel {
    /// Every backend, in the order of [`Self::number`].
    pub(super) const ALL: [Self; 4] =
        [Self::Flex, Self::Cube(FloatDType::F32), Self::Cube(FloatDType::BF16), Self::Cube(FloatDType::F16)];

    /// Returns the backend's index in [`Self::ALL`].
    pub(super) fn number(self) -> u16 {
        Self::ALL.iter().position(|backend| *backend == self).map_or(0, |number| number as u16)
    }

    /// Returns the number format of new tensors.
    pub(super) fn float_dtype(self) -> FloatDType {
        match self {
            Self::Flex => FloatDType::F32,
            Self::Cube(float) => float,
        }
    }
}
