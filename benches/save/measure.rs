//! Alternates quiet steps and saves: requests each save, and records the timings.

use downshift::protocol::device::DeviceChoice;
use downshift::protocol::worker::{Event, Order, Saved, Step};
use downshift::train::job::EventSink;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError, mpsc::Sender};
use std::time::Instant;

/// Warm-up steps, not measured.
const WARM_UP: usize = 3;
/// Steps without a save before each save.
const QUIET: usize = 6;
/// Copies made to measure the bandwidth.
const COPIES: usize = 7;

/// The measurements, in seconds; medians for the saves.
pub struct Figures {
    /// Bytes of a checkpoint.
    pub bytes: u64,
    /// Pause in training for a save.
    pub pause_s: f64,
    /// Total extra time of the steps during a save.
    pub slowed_s: f64,
    /// Time from the start of a background save until it is durable.
    pub behind_s: f64,
    /// The same with training waiting.
    pub blocking_s: f64,
    /// Duration of a step without a save.
    pub step_s: f64,
    /// Steps taken while a save is under way.
    pub steps_behind: f64,
}

/// Requests saves and listens to the worker.
pub struct Conductor {
    saves: usize,
    give: Sender<Order>,
    heard: Mutex<Heard>,
}

#[derive(Default)]
struct Heard {
    warm: usize,
    /// Step times: without a save, and during each save.
    quiet: Vec<f64>,
    since_save: usize,
    during: Vec<Vec<f64>>,
    saving: bool,
    stopping: bool,
    saved: Vec<Saved>,
}

impl Conductor {
    /// Plans `saves` background saves, and one that training waits for.
    pub fn new(saves: usize, give: Sender<Order>) -> Self {
        Self { saves, give, heard: Mutex::default() }
    }

    /// Returns the results.
    pub fn figures(&self) -> Result<Figures, String> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(blocking), saves) = (heard.saved.last(), &heard.saved[..heard.saved.len().saturating_sub(1)]) else {
            return Err("nothing was saved".to_owned());
        };
        if saves.is_empty() {
            return Err("ask for at least one save".to_owned());
        }
        let step_s = median(heard.quiet.clone());
        let slowed = |steps: &Vec<f64>| steps.iter().map(|took| took - step_s).sum::<f64>().max(0.0);
        Ok(Figures {
            bytes: blocking.bytes,
            pause_s: median(saves.iter().map(|saved| saved.pause_ms / 1e3).collect()),
            slowed_s: median(heard.during.iter().map(slowed).collect()),
            behind_s: median(saves.iter().map(|saved| saved.total_ms / 1e3).collect()),
            blocking_s: blocking.total_ms / 1e3,
            step_s,
            steps_behind: heard.during.iter().map(Vec::len).sum::<usize>() as f64 / heard.during.len().max(1) as f64,
        })
    }
}

impl Heard {
    fn stepped(&mut self, step: &Step, saves: usize) -> Option<Order> {
        let took = (step.data_wait_ms + step.compute_ms) / 1e3;
        if self.warm < WARM_UP {
            self.warm += 1;
            return None;
        }
        if self.stopping {
            return None;
        }
        if self.saving {
            self.during.last_mut()?.push(took);
            return None;
        }
        self.quiet.push(took);
        self.since_save += 1;
        if self.since_save < QUIET {
            return None;
        }
        self.since_save = 0;
        if self.saved.len() >= saves {
            self.stopping = true;
            return Some(Order::Stop { checkpoint: true });
        }
        self.saving = true;
        self.during.push(Vec::new());
        Some(Order::Checkpoint)
    }
}

impl EventSink for Conductor {
    fn send(&self, event: Event) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Step(step) => {
                if let Some(order) = heard.stepped(&step, self.saves) {
                    self.give.send(order).ok();
                }
            }
            Event::Saved(saved) => {
                println!(
                    "step {}: training paused for {:.3} s, durable after {:.2} s",
                    saved.step,
                    saved.pause_ms / 1e3,
                    saved.total_ms / 1e3
                );
                heard.saving = false;
                heard.saved.push(saved);
            }
            Event::SaveFailed { message, .. } => println!("a save failed: {message}"),
            Event::Note { text, .. } => println!("{text}"),
            _ => {}
        }
    }
}

/// The bandwidth of copying state to host memory.
pub struct Bandwidth {
    pub bytes_per_s: f64,
    /// Source and destination of the copy, for the report.
    pub how: &'static str,
}

/// Copies `bytes` bytes as training does: on the CPU from host memory to fresh host memory.
pub fn bandwidth(bytes: u64, device: &DeviceChoice) -> Result<Bandwidth, String> {
    #[cfg(feature = "cuda")]
    if let DeviceChoice::Cuda(cards) = device {
        return cuda::bandwidth(bytes, cards.only_index().map_err(|error| error.to_string())?);
    }
    if *device != DeviceChoice::Cpu {
        return Err(format!("name the device to measure: cpu, or cuda:0 in a build that has it; not {device}"));
    }
    let source = vec![1_u8; usize::try_from(bytes).map_err(|error| error.to_string())?];
    let mut target = vec![0_u8; source.len()];
    let times = (0..COPIES).map(|_| {
        let begun = Instant::now();
        target.copy_from_slice(black_box(&source));
        black_box(&mut target);
        begun.elapsed().as_secs_f64()
    });
    Ok(Bandwidth { bytes_per_s: bytes as f64 / median(times.collect()), how: "copied within host memory, one thread" })
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{Bandwidth, COPIES, median};
    use burn::backend::cuda::CudaDevice;
    use burn::tensor::{Tensor, backend::Backend};
    use downshift::burn;
    use downshift::train::backends::CudaPlain;
    use std::hint::black_box;
    use std::time::Instant;

    /// Reads a tensor of `bytes` bytes from the device.
    pub fn bandwidth(bytes: u64, index: usize) -> Result<Bandwidth, String> {
        let device = CudaDevice::new(index);
        let numbers = usize::try_from(bytes / 4).map_err(|error| error.to_string())?;
        let tensor = Tensor::<CudaPlain, 1>::ones([numbers], &device);
        let mut times = Vec::new();
        for _ in 0..COPIES {
            CudaPlain::sync(&device).map_err(|error| error.to_string())?;
            let begun = Instant::now();
            black_box(tensor.clone().into_data());
            times.push(begun.elapsed().as_secs_f64());
        }
        Ok(Bandwidth { bytes_per_s: bytes as f64 / median(times), how: "read from the device in one tensor" })
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
