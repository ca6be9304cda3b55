//! The device to plan for, and its free memory.

use super::PlanArgs;
use crate::cli::{Failure, devices};
use crate::config::run::Run;
use crate::diagnose::readings::read_gpu;
use crate::protocol::claim::{self, Devices};
use crate::protocol::device::DeviceChoice;
use crate::protocol::plan::Card;
use crate::trainer::Trainer;
use std::path::Path;

/// The device to train on.
pub struct TrainingDevice {
    /// Its name.
    pub device: String,
    /// Its memory, if known; of several cards, that with the least free memory.
    pub card: Option<Card>,
    /// Whether it is a GPU.
    pub gpu: bool,
    /// The devices that a worker there may use.
    pub devices: Devices,
}

impl TrainingDevice {
    /// Finds the device of a run. Reads the memory of its cards.
    pub fn find(args: &PlanArgs, run: &Run, trainer: &dyn Trainer, runs: &Path) -> Result<Self, Failure> {
        if let Some(size) = &args.imagined_gpu() {
            let name = "a GPU of any machine".to_owned();
            let card = Card { name: name.clone(), total_bytes: size.0, free_bytes: None };
            return Ok(Self { device: name, card: Some(card), gpu: true, devices: Devices::Cpu });
        }
        let requested = &args.overrides.device;
        let prospect = trainer.look_ahead(run, requested).map_err(Failure::of)?;
        let device = prospect.device;
        let devices = devices::devices_of_start(run, requested, &device);
        let holds_tensors = match &run.command {
            Some(_) => devices.clone(),
            None if DeviceChoice::names_gpu(&device) => devices::devices_of(&device),
            None => Devices::Cpu,
        };
        let (card, gpu) = match &holds_tensors {
            Devices::Cpu => (host(), false),
            Devices::Cards(cards) => {
                // Without NVML, the trainer's driver still knows the card's memory, but not what others use of it.
                let of_driver = |total_bytes| Card { name: device.clone(), total_bytes, free_bytes: None };
                let of_driver = prospect.memory_bytes.map(of_driver);
                (fullest(cards, |index| card_of(runs, index)).or(of_driver), true)
            }
        };
        Ok(Self { device, card, gpu, devices })
    }
}

/// Returns the GPU index in a device's name; none for the CPU.
pub fn card_index(device: &str) -> Option<u32> {
    DeviceChoice::from_display_name(device)?.gpu_index()
}

/// Returns the card with the least free memory; none if any is unknown, since that one may have less.
fn fullest(cards: &[claim::Card], read: impl Fn(u32) -> Option<Card>) -> Option<Card> {
    let known: Option<Vec<Card>> = cards.iter().map(|card| read(card.index?)).collect();
    known?.into_iter().min_by_key(Card::room)
}

fn card_of(runs: &Path, index: u32) -> Option<Card> {
    let place = if runs.is_dir() { runs } else { Path::new(".") };
    let gpu = read_gpu(place, index).ok()?.gpu.ok()?;
    let (total_bytes, used) = (gpu.vram_total_bytes.get()?, gpu.vram_used_bytes.get());
    Some(Card { name: gpu.name, total_bytes, free_bytes: used.map(|used| total_bytes.saturating_sub(used)) })
}

fn host() -> Option<Card> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let (total_bytes, used) = crate::probe::host::parse_ram(&text)?;
    Some(Card { name: "host memory".to_owned(), total_bytes, free_bytes: Some(total_bytes.saturating_sub(used)) })
}

#[cfg(test)]
mod tests {
    use super::{Card, claim, fullest};

    #[test]
    fn the_card_with_the_least_free_memory_decides_and_an_unknown_one_leaves_it_open() {
        let read = |index: u32| {
            let free = [Some(30), Some(10), None].get(index as usize).copied()?;
            Some(Card { name: index.to_string(), total_bytes: 20, free_bytes: free })
        };
        let card = |index| claim::Card { index, uuid: Some("GPU-1".to_owned()) };
        let name = |indices: &[Option<u32>]| {
            let cards: Vec<claim::Card> = indices.iter().map(|index| card(*index)).collect();
            fullest(&cards, read).map(|card| card.name)
        };
        assert_eq!(name(&[Some(0), Some(1), Some(2)]).as_deref(), Some("1"));
        assert_eq!(name(&[Some(0), Some(2)]).as_deref(), Some("2"));
        assert_eq!(name(&[Some(0), None]), None, "a slice of a card has no index");
        assert_eq!(name(&[Some(0), Some(7)]), None);
        assert_eq!(name(&[]), None);
    }
}
