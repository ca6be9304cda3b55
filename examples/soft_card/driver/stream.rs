//! Streams: a queue of work and the thread that performs it.

use super::abi::Code;
use super::copies::Copy;
use super::device::Device;
use super::event::Event;
use super::handles::Handles;
use super::launch::Launch;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A launch waits while the queue is full, as on a card.
const QUEUE: usize = 1024;

pub static STREAMS: Handles<Stream> = Handles::new();

pub enum Work {
    Launch(Launch),
    Copy(Copy),
    Fill { at: u64, value: u8, bytes: usize },
    Free(u64),
    Reach(Arc<Event>, u64),
    WaitFor(Arc<Event>, u64),
}

pub struct Stream {
    pub device: &'static Device,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    submitted: u64,
    done: u64,
    is_closed: bool,
}

impl Stream {
    pub fn start(device: &'static Device) -> Arc<Stream> {
        let stream = Arc::new(Stream { device, queue: Mutex::default(), changed: Condvar::new() });
        device.add_stream(&stream);
        let performer = Arc::clone(&stream);
        let name = format!("soft-card-{}", device.index);
        // Without its thread, a stream never gets done: the process could not go on in any case.
        let _ = thread::Builder::new().name(name).spawn(move || performer.perform_all());
        stream
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn submit(&self, work: Work) {
        let queue = self.queue();
        let room = self.changed.wait_while(queue, |queue| queue.work.len() >= QUEUE);
        let mut queue = room.unwrap_or_else(PoisonError::into_inner);
        queue.work.push_back(work);
        queue.submitted += 1;
        self.changed.notify_all();
    }

    /// Waits for the work submitted so far.
    pub fn wait(&self) {
        let queue = self.queue();
        let target = queue.submitted;
        let done = self.changed.wait_while(queue, |queue| queue.done < target);
        drop(done.unwrap_or_else(PoisonError::into_inner));
    }

    pub fn synchronize(&self) -> Result<(), Code> {
        self.wait();
        self.device.report()
    }

    pub fn is_idle(&self) -> bool {
        let queue = self.queue();
        queue.done == queue.submitted
    }

    /// Lets the thread end once the queue is empty.
    pub fn close(&self) {
        self.queue().is_closed = true;
        self.changed.notify_all();
    }

    fn perform_all(&self) {
        loop {
            let queue = self.queue();
            let next = self.changed.wait_while(queue, |queue| queue.work.is_empty() && !queue.is_closed);
            let Some(work) = next.unwrap_or_else(PoisonError::into_inner).work.pop_front() else { return };
            self.perform(work);
            self.queue().done += 1;
            self.changed.notify_all();
        }
    }

    /// On a broken device nothing is computed any more, but nobody waits for ever either.
    fn perform(&self, work: Work) {
        let is_broken = self.device.is_broken();
        match work {
            Work::Reach(event, recording) => event.reach(recording),
            Work::WaitFor(event, recording) => event.wait_for(recording),
            Work::Free(at) => drop(self.device.memory.free(at)),
            _ if is_broken => {}
            Work::Launch(launch) => launch.run(self.device),
            Work::Copy(copy) => copy.perform(),
            // SAFETY: the caller promised that the memory stays valid until this is done.
            Work::Fill { at, value, bytes } => unsafe { (at as *mut u8).write_bytes(value, bytes) },
        }
    }
}
