//! Resolves `--device` to the devices of this machine that a run claims.

use super::Failure;
use crate::config::run::Run;
use crate::diagnose::readings::list_cards;
use crate::protocol::claim::{Card, Devices};
use crate::protocol::device::{CardName, CardNames, DeviceChoice, UnknownDevice};
use crate::trainer;
use clap::Args;

/// The variable that hides cards from a process.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Options for a device that other runs use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Sharing {
    /// Start even if another run is on the same device
    #[arg(long)]
    pub another: bool,
    /// Wait until no other run is on the device, first come, first served; the keeper waits, so the terminal may close
    #[arg(long, conflicts_with = "another")]
    pub wait_for_card: bool,
}

/// Returns the device to start workers with. A task that trains on one card gets its index, also where the user gave
/// its UUID.
///
/// # Errors
/// Returns an error when the text names no device, or several for such a task, or a card that is not there.
pub fn worker_device(run: &Run, device: &str) -> Result<String, Failure> {
    let choice: DeviceChoice = device.parse().map_err(|error: UnknownDevice| Failure::new(2, error.to_string()))?;
    let DeviceChoice::Cuda(names) = &choice else { return Ok(device.to_owned()) };
    if may_use_several(run) {
        return Ok(device.to_owned());
    }
    match (names.names(), names.only_index()) {
        ([CardName::Uuid(uuid)], _) => index_of(uuid, &list_cards()),
        (_, Ok(_)) => Ok(device.to_owned()),
        (_, Err(several)) => Err(Failure::new(2, several.to_string())),
    }
}

fn index_of(uuid: &str, cards: &[Card]) -> Result<String, Failure> {
    match find_card(&CardName::Uuid(uuid.to_owned()), cards).index {
        Some(index) => Ok(DeviceChoice::gpu(index).to_string()),
        None => {
            Err(Failure::new(2, format!("no card of this machine has the UUID {uuid}; `nvidia-smi -L` lists them")))
        }
    }
}

/// Reports whether the run's worker is a program that may use several cards.
fn may_use_several(run: &Run) -> bool {
    trainer::is_elsewhere() || run.command.is_some()
}

/// Returns the devices that a run will use: of those requested, the trainer has found the first.
pub fn devices_of_start(run: &Run, requested: &str, found: &str) -> Devices {
    devices_of_later_start(run, requested, found, visible_here().as_deref())
}

/// Does the same for a start that may see other cards than this process. `visible`: its `CUDA_VISIBLE_DEVICES`.
pub fn devices_of_later_start(run: &Run, requested: &str, found: &str, visible: Option<&str>) -> Devices {
    devices_among(if may_use_several(run) { requested } else { found }, visible)
}

fn visible_here() -> Option<String> {
    std::env::var(VISIBLE).ok()
}

/// Returns the devices behind a name: a value of `--device`, or a display name such as `cuda:0 NVIDIA H100`. Anything
/// else may use every card that this process sees, or the CPU if there is none.
pub fn devices_of(name: &str) -> Devices {
    devices_among(name, visible_here().as_deref())
}

fn devices_among(name: &str, visible: Option<&str>) -> Devices {
    match DeviceChoice::from_display_name(name) {
        Some(DeviceChoice::Cpu) => Devices::Cpu,
        Some(DeviceChoice::Cuda(names)) => named_cards(&names, &list_cards()),
        Some(DeviceChoice::Auto) | None => visible_cards(visible, &list_cards()),
    }
}

fn named_cards(names: &CardNames, cards: &[Card]) -> Devices {
    Devices::Cards(names.names().iter().map(|name| find_card(name, cards)).collect())
}

fn visible_cards(visible: Option<&str>, cards: &[Card]) -> Devices {
    match visible.map(|list| format!("cuda:{list}").parse()) {
        Some(Ok(DeviceChoice::Cuda(names))) => named_cards(&names, cards),
        // Any other list hides every card.
        Some(_) => Devices::Cpu,
        None if cards.is_empty() => Devices::Cpu,
        None => Devices::Cards(cards.to_vec()),
    }
}

/// Returns the card of this name. One that the driver does not list is known by this name alone.
fn find_card(name: &CardName, cards: &[Card]) -> Card {
    let is_it = |card: &&Card| match name {
        CardName::Index(index) => card.index == Some(*index),
        CardName::Uuid(start) => card.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(start)),
    };
    let unlisted = || match name {
        CardName::Index(index) => Card { index: Some(*index), uuid: None },
        CardName::Uuid(uuid) => Card { index: None, uuid: Some(uuid.clone()) },
    };
    cards.iter().find(is_it).cloned().unwrap_or_else(unlisted)
}

#[cfg(test)]
mod tests {
    use super::{CardNames, DeviceChoice, index_of, named_cards, visible_cards};
    use crate::protocol::claim::{Card, Devices};

    fn machine() -> Vec<Card> {
        (0..3).map(|index| Card { index: Some(index), uuid: Some(format!("GPU-{index}abc-1")) }).collect()
    }

    fn names(text: &str) -> CardNames {
        match text.parse() {
            Ok(DeviceChoice::Cuda(names)) => names,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_becomes_a_card_of_the_machine() {
        let cards = machine();
        let only = |indices: &[usize]| Devices::Cards(indices.iter().map(|index| cards[*index].clone()).collect());
        assert_eq!(named_cards(&names("cuda:2,0"), &cards), only(&[2, 0]));
        assert_eq!(named_cards(&names("cuda:GPU-1abc"), &cards), only(&[1]));
        let unlisted = Devices::Cards(vec![Card { index: None, uuid: Some("MIG-7".to_owned()) }]);
        assert_eq!(named_cards(&names("cuda:MIG-7"), &cards), unlisted);
        assert_eq!(named_cards(&names("cuda:1"), &[]), Devices::Cards(vec![Card { index: Some(1), uuid: None }]));
        assert_eq!(index_of("GPU-2", &cards).unwrap(), "cuda:2");
        assert_eq!(index_of("GPU-9", &cards).unwrap_err().code, 2);
    }

    #[test]
    fn without_a_name_the_visible_cards_count() {
        let cards = machine();
        let table = [
            (None, Devices::Cards(cards.clone())),
            (Some("1"), Devices::Cards(vec![cards[1].clone()])),
            (Some("GPU-0abc,GPU-2abc"), Devices::Cards(vec![cards[0].clone(), cards[2].clone()])),
            (Some(""), Devices::Cpu),
            (Some("-1"), Devices::Cpu),
            (Some("NoDevFiles"), Devices::Cpu),
        ];
        for (visible, devices) in table {
            assert_eq!(visible_cards(visible, &cards), devices, "{visible:?}");
        }
        assert_eq!(visible_cards(None, &[]), Devices::Cpu);
    }
}
