//! The value of `--device`, and the environment that it means for a command.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// Devices to train on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// CUDA if there is a usable GPU, else the CPU. A command sees every card that its caller sees.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// These GPUs; fails if one is missing.
    Cuda(CardNames),
}

/// At least one card, each named once: all by index, or all by UUID, since CUDA does not mix them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardNames(Vec<CardName>);

/// The name of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CardName {
    /// Its index in the order of PCI addresses, as in `nvidia-smi`.
    Index(u32),
    /// Its UUID or an unambiguous beginning of it: `GPU-…`, or `MIG-…` for a slice of a card.
    Uuid(String),
}

impl CardNames {
    /// Returns the names in the given order.
    #[must_use]
    pub fn names(&self) -> &[CardName] {
        &self.0
    }

    /// Returns the index of the only card.
    ///
    /// # Errors
    /// Returns an error when there are several cards, or the card is named by its UUID.
    pub fn only_index(&self) -> Result<usize, NotOneIndex> {
        match &self.0[..] {
            [CardName::Index(index)] => Ok(*index as usize),
            _ => Err(NotOneIndex(self.to_string())),
        }
    }

    fn parse(list: &str) -> Option<Self> {
        let names: Vec<CardName> = list.split(',').map(CardName::parse).collect::<Option<_>>()?;
        let indices = names.iter().filter(|name| matches!(name, CardName::Index(_))).count();
        let is_mixed = indices != 0 && indices != names.len();
        let repeats = names.iter().enumerate().any(|(place, name)| names[..place].contains(name));
        (!is_mixed && !repeats).then_some(Self(names))
    }

    fn list(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

impl CardName {
    fn parse(text: &str) -> Option<Self> {
        let is_uuid = ["GPU-", "MIG-"].iter().any(|kind| text.strip_prefix(kind).is_some_and(|rest| !rest.is_empty()))
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/".contains(&byte));
        if is_uuid {
            return Some(Self::Uuid(text.to_owned()));
        }
        let is_index = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_index).map(Self::Index)
    }
}

impl fmt::Display for CardName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(formatter, "{index}"),
            Self::Uuid(uuid) => formatter.write_str(uuid),
        }
    }
}

impl fmt::Display for CardNames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cuda:{}", self.list())
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.write_str("auto"),
            Self::Cpu => formatter.write_str("cpu"),
            Self::Cuda(cards) => cards.fmt(formatter),
        }
    }
}

impl DeviceChoice {
    /// Returns the GPU with this index.
    #[must_use]
    pub fn gpu(index: u32) -> Self {
        Self::Cuda(CardNames(vec![CardName::Index(index)]))
    }

    /// Parses the devices at the start of a display name such as `cuda:0 NVIDIA H100`.
    #[must_use]
    pub fn from_display_name(name: &str) -> Option<Self> {
        name.split(' ').next().and_then(|word| word.parse().ok())
    }

    /// Returns the index of the first GPU, if it is named by its index.
    #[must_use]
    pub fn gpu_index(&self) -> Option<u32> {
        match self {
            Self::Cuda(cards) => match cards.0.first() {
                Some(CardName::Index(index)) => Some(*index),
                _ => None,
            },
            Self::Auto | Self::Cpu => None,
        }
    }

    /// Reports whether a display name such as `cuda:0 NVIDIA H100` is that of a GPU.
    #[must_use]
    pub fn names_gpu(name: &str) -> bool {
        matches!(Self::from_display_name(name), Some(Self::Cuda(_)))
    }
}

/// Returns the environment variables that show a command these devices and no others. `auto` leaves its environment
/// as it is.
#[must_use]
pub fn visible_devices(choice: &DeviceChoice) -> Vec<(&'static str, String)> {
    let visible = match choice {
        DeviceChoice::Auto => return Vec::new(),
        // Programs read an empty value as "not set".
        DeviceChoice::Cpu => "-1".to_owned(),
        DeviceChoice::Cuda(cards) => cards.list(),
    };
    vec![("CUDA_VISIBLE_DEVICES", visible), (CUDA_DEVICE_ORDER.0, CUDA_DEVICE_ORDER.1.to_owned())]
}

/// The variable that makes CUDA number the cards as NVML does, and its value. CUDA's default is "fastest first".
pub const CUDA_DEVICE_ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// A value that names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{0}`; use auto, cpu, cuda, cuda:0, cuda:GPU-…, or a list of different cards such as cuda:0,1")]
pub struct UnknownDevice(String);

/// Devices for a task that needs one card, by its index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this task trains on one card: {0} must name one, by its index, such as cuda:0")]
pub struct NotOneIndex(String);

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::gpu(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(CardNames::parse)
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
    use super::{CardName, DeviceChoice, UnknownDevice, visible_devices};

    fn parse(text: &str) -> DeviceChoice {
        text.parse().unwrap()
    }

    #[test]
    fn devices_are_read_and_written_back() {
        for text in
            ["auto", "cpu", "cuda:0", "cuda:3", "cuda:0,1", "cuda:1,0", "cuda:GPU-8f2c,GPU-77", "cuda:MIG-1/2/3"]
        {
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(parse("cuda"), DeviceChoice::gpu(0));
        let DeviceChoice::Cuda(cards) = parse("cuda:GPU-8f,GPU-9") else { panic!("no cards") };
        assert_eq!(cards.names(), [CardName::Uuid("GPU-8f".to_owned()), CardName::Uuid("GPU-9".to_owned())]);
        assert_eq!(DeviceChoice::from_display_name("cuda:2 NVIDIA H100"), Some(DeviceChoice::gpu(2)));
        for name in ["cuda:0", "cuda:0,1 2 × NVIDIA H100", "cuda:GPU-8f"] {
            assert!(DeviceChoice::names_gpu(name), "{name}");
        }
        assert!(!DeviceChoice::names_gpu("cpu") && !DeviceChoice::names_gpu("scripted"));
        for text in [
            "gpu",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:+1",
            "cuda:0,",
            "cuda:0,0",
            "cuda:0,GPU-1",
            "cuda:GPU-",
            "cuda:GPU-1 2",
            "cuda:99999999999",
            "",
        ] {
            assert_eq!(text.parse::<DeviceChoice>(), Err(UnknownDevice(text.to_owned())));
        }
    }

    #[test]
    fn a_task_for_one_card_gets_its_index_or_a_reason() {
        let only = |text: &str| match parse(text) {
            DeviceChoice::Cuda(cards) => cards.only_index(),
            _ => panic!("no cards"),
        };
        assert_eq!(only("cuda:2"), Ok(2));
        for text in ["cuda:0,1", "cuda:GPU-8f"] {
            assert!(only(text).unwrap_err().to_string().contains(text));
        }
        assert_eq!((parse("cuda:3,1").gpu_index(), parse("cuda:GPU-8f").gpu_index()), (Some(3), None));
    }

    #[test]
    fn a_command_sees_its_cards_in_pci_order_and_no_others() {
        let seen = |text: &str| visible_devices(&parse(text));
        let order = || ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
        for (device, visible) in [("cpu", "-1"), ("cuda:1", "1"), ("cuda:2,0", "2,0"), ("cuda:GPU-8f", "GPU-8f")] {
            assert_eq!(seen(device), [("CUDA_VISIBLE_DEVICES", visible.to_owned()), order()], "{device}");
        }
        assert_eq!(seen("auto"), []);
    }
}
