//! Attributes GPU memory to this run's workers or to other processes.

use crate::policy::room::{CardUse, Holder};
use crate::protocol::control::RungRecord;
use crate::protocol::probe::Gpu;
use std::fs;

/// The keeper's knowledge of the processes on the GPU.
#[derive(Debug, Default)]
pub struct CardUsers {
    /// The newest worker, alive or not.
    worker: Option<u32>,
    /// The driver has named a worker of this run, so it reports memory per process, with ids we can match.
    /// It may not inside a container or under WSL.
    names_ours: bool,
}

impl CardUsers {
    /// Records the start of a worker.
    pub fn started(&mut self, pid: u32) {
        self.worker = Some(pid);
    }

    /// Returns the use of the GPU in a reading; none when the driver does not report it per process.
    pub fn observe(&mut self, gpu: &Gpu, rungs: &[RungRecord]) -> Option<CardUse> {
        self.names_ours |= gpu.vram_worker_bytes.get().is_some();
        if !self.names_ours {
            return None;
        }
        let free = gpu.vram_total_bytes.get()?.checked_sub(gpu.vram_used_bytes.get()?)?;
        let (mut ours, mut holders) = (0_u64, Vec::new());
        for process in gpu.more.processes.value()? {
            let bytes = process.vram_bytes.get()?;
            if Some(process.pid) == self.worker {
                ours = ours.saturating_add(bytes);
            } else {
                holders.push(Holder { pid: process.pid, name: name(process.pid), bytes });
            }
        }
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        let peaks = rungs.iter().map(|rung| rung.vram_bytes.or(rung.planned_bytes)).collect();
        Some(CardUse { ours, free, holders, peaks })
    }
}

fn name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::CardUsers;
    use crate::keeper::status_snapshot::blank_record;
    use crate::protocol::probe::{Gpu, GpuMore, GpuProcess, Metric};

    fn card(processes: &[(u32, Option<u64>)], worker: Option<u64>) -> Gpu {
        let not = || Metric::Not("not asked".to_owned());
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| Metric::Not("not reported".to_owned()), Metric::Is);
        let list = processes.iter().map(|(pid, held)| GpuProcess { pid: *pid, vram_bytes: bytes(*held) }).collect();
        Gpu {
            index: 0,
            name: "a card".to_owned(),
            driver: Metric::Not("not asked".to_owned()),
            vram_total_bytes: Metric::Is(100),
            vram_used_bytes: Metric::Is(70),
            vram_worker_bytes: bytes(worker),
            temperature_c: not(),
            slowdown_c: not(),
            utilisation: not(),
            power_w: not(),
            power_limit_w: not(),
            sm_clock_mhz: Metric::Not("not asked".to_owned()),
            throttle: Metric::Not("not asked".to_owned()),
            more: GpuMore { processes: Metric::Is(list), ..GpuMore::default() },
        }
    }

    #[test]
    fn own_processes_are_distinguished_once_the_driver_has_named_one() {
        let mut users = CardUsers::default();
        users.started(7);
        let mut rung = blank_record("full");
        (rung.vram_bytes, rung.planned_bytes) = (Some(40), Some(60));
        let rungs = [rung];
        assert_eq!(users.observe(&card(&[(9, Some(30))], None), &rungs), None, "it never named us");
        let seen = users.observe(&card(&[(8, Some(20)), (9, Some(30)), (7, Some(40))], Some(40)), &rungs).unwrap();
        assert_eq!((seen.ours, seen.free, seen.peaks), (40, 30, vec![Some(40)]));
        assert_eq!(seen.holders.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [9, 8]);
        let gone = users.observe(&card(&[(9, Some(30))], None), &rungs).unwrap();
        assert_eq!(gone.ours, 0, "our worker is gone from the list");
        assert_eq!(users.observe(&card(&[(9, None)], None), &rungs), None, "an amount is missing");
    }
}
