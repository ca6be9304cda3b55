//! Runs a block whose threads wait for each other: each thread has a stack and runs until it has to wait.
//!
//! A warp goes on as far as it can before the next one starts. An exchange between lanes is complete once all lanes
//! that have not ended, and do not wait for the block, take part in it.

use super::abi::{Exchange, Place, Run, SLOT, Services, Slots, WARP};
use super::memory::map_pages;
use super::switch::{prepare, switch};
use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::ptr;

const THREADS: usize = 1024;
const STACK: usize = 256 << 10;
/// Rounds in which threads only give way before the block counts as stuck.
const PATIENCE: u32 = 10_000;

pub static SERVICES: Services = Services { exchange, wait_for_block, yield_thread, shared_memory };

thread_local! {
    static TEAM: Cell<*mut Team> = const { Cell::new(ptr::null_mut()) };
    static SHARED: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Ready,
    InExchange,
    AtBarrier,
    GivesWay,
    Ended,
}

struct Fiber {
    stack: *mut u8,
    state: State,
    place: Place,
}

/// A warp's exchanges: one is filled while lanes may still read the other.
struct Warp {
    exchanges: [Exchange; 2],
    filling: usize,
}

/// The threads of the block that runs on this thread of the operating system.
pub struct Team {
    stacks: *mut u8,
    fibers: Vec<Fiber>,
    warps: Vec<Warp>,
    scheduler: *mut u8,
    running: usize,
    run: Run,
    arguments: *const *mut c_void,
    block_dim: [u32; 3],
}

pub struct Stuck;

/// Runs one block, with `place` but for the thread in it.
pub fn run_block(run: Run, place: &Place, arguments: *const *mut c_void) -> Result<(), Stuck> {
    SHARED.set(place.shared);
    let mut team = TEAM.get();
    if team.is_null() {
        team = Box::into_raw(Box::new(Team::new(run).ok_or(Stuck)?));
        TEAM.set(team);
    }
    // SAFETY: the team belongs to this thread and lives as long as it; fibers use it only while they run, through
    // the same pointer, and no reference is held across a switch.
    unsafe {
        (*team).start(run, place, arguments);
        schedule(team)
    }
}

pub fn set_shared(shared: *mut u8) {
    SHARED.set(shared);
}

impl Team {
    fn new(run: Run) -> Option<Self> {
        let stacks = map_pages(STACK * THREADS)? as *mut u8;
        let scheduler = ptr::null_mut();
        Some(Self {
            stacks,
            fibers: Vec::with_capacity(THREADS),
            warps: Vec::new(),
            scheduler,
            running: 0,
            run,
            arguments: ptr::null(),
            block_dim: [0; 3],
        })
    }

    fn start(&mut self, run: Run, place: &Place, arguments: *const *mut c_void) {
        (self.run, self.arguments, self.block_dim) = (run, arguments, place.block_dim);
        let [x, y, z] = self.block_dim;
        let count = (x * y * z) as usize;
        self.fibers.clear();
        for index in 0..count {
            let number = index as u32;
            let thread = [number % x, number / x % y, number / x / y];
            // Stacks start at different offsets, or all their first lines would share a few sets of the cache.
            let top = STACK * (index + 1) - 64 - index % 32 * 128;
            // SAFETY: inside of the mapping, and nothing runs on this stack.
            let stack = unsafe { prepare(self.stacks.add(top), begin_thread) };
            self.fibers.push(Fiber { stack, state: State::Ready, place: Place { thread, ..*place } });
        }
        while self.warps.len() < count.div_ceil(WARP) {
            let empty = || Exchange { lanes: 0, slots: Slots([[0; SLOT]; WARP]) };
            self.warps.push(Warp { exchanges: [empty(), empty()], filling: 0 });
        }
        for warp in &mut self.warps {
            warp.exchanges[0].lanes = 0;
            warp.exchanges[1].lanes = 0;
        }
    }

    fn complete_exchange(&mut self, warp: usize, lanes: std::ops::Range<usize>) {
        let warp = &mut self.warps[warp];
        warp.filling ^= 1;
        warp.exchanges[warp.filling].lanes = 0;
        self.replace(lanes, State::InExchange, State::Ready);
    }

    fn replace(&mut self, threads: std::ops::Range<usize>, from: State, to: State) {
        self.fibers[threads].iter_mut().filter(|fiber| fiber.state == from).for_each(|fiber| fiber.state = to);
    }

    fn has(&self, threads: std::ops::Range<usize>, state: State) -> bool {
        self.fibers[threads].iter().any(|fiber| fiber.state == state)
    }
}

/// # Safety
/// The team is this thread's own and its block has been started.
unsafe fn schedule(team: *mut Team) -> Result<(), Stuck> {
    let mut idle_rounds = 0;
    // SAFETY: references to the team end before `run_warp` switches to a fiber.
    unsafe {
        let [x, y, z] = (*team).block_dim;
        let count = (x * y * z) as usize;
        loop {
            let mut has_progressed = false;
            for first in (0..count).step_by(WARP) {
                has_progressed |= run_warp(team, first..count.min(first + WARP));
            }
            let team = &mut *team;
            if team.fibers.iter().all(|fiber| fiber.state == State::Ended) {
                return Ok(());
            }
            let waits = |state| matches!(state, State::Ended | State::AtBarrier);
            if team.fibers.iter().all(|fiber| waits(fiber.state)) {
                team.replace(0..count, State::AtBarrier, State::Ready);
                has_progressed = true;
            }
            team.replace(0..count, State::GivesWay, State::Ready);
            idle_rounds = if has_progressed { 0 } else { idle_rounds + 1 };
            if idle_rounds > PATIENCE {
                return Err(Stuck);
            }
        }
    }
}

/// Runs the lanes of a warp until all wait for something outside of it. Returns whether one did more than give way.
///
/// # Safety
/// As for `schedule`.
unsafe fn run_warp(team: *mut Team, lanes: std::ops::Range<usize>) -> bool {
    let mut has_progressed = false;
    loop {
        for index in lanes.clone() {
            // SAFETY: no reference to the team is alive during the switch; a ready fiber's stack was left by
            // `suspend` or has just been prepared.
            unsafe {
                if (&(*team).fibers)[index].state != State::Ready {
                    continue;
                }
                (*team).running = index;
                let stack = (&(*team).fibers)[index].stack;
                switch(&raw mut (*team).scheduler, stack);
                has_progressed |= (&(*team).fibers)[index].state != State::GivesWay;
            }
        }
        // SAFETY: no fiber runs now.
        let team = unsafe { &mut *team };
        if team.has(lanes.clone(), State::GivesWay) || !team.has(lanes.clone(), State::InExchange) {
            return has_progressed;
        }
        team.complete_exchange(lanes.start / WARP, lanes.clone());
    }
}

/// Leaves the running fiber, which goes on when it is ready again.
fn suspend(state: State) {
    let team = TEAM.get();
    // SAFETY: kernels call this on a fiber of this thread's team; the scheduler's stack was left by `run_warp`.
    unsafe {
        let fiber = &raw mut (&mut (*team).fibers)[(*team).running];
        (*fiber).state = state;
        switch(&raw mut (*fiber).stack, (*team).scheduler);
    }
}

extern "C" fn begin_thread() {
    let team = TEAM.get();
    // SAFETY: as in `suspend`; the place stays where it is while the block runs, and the kernel gets the arguments
    // that its launch copied.
    unsafe {
        let place = &raw const (&(*team).fibers)[(*team).running].place;
        ((*team).run)(place, (*team).arguments);
    }
    loop {
        suspend(State::Ended);
    }
}

extern "C" fn exchange(value: *const c_void, bytes: c_uint, lane_out: *mut c_uint) -> *const Exchange {
    let team = TEAM.get();
    // SAFETY: as in `suspend`; the kernel passes a value of this size, which its header keeps to a slot's, and a
    // pointer to a number of its own.
    unsafe {
        let (warp, lane) = ((*team).running / WARP, (*team).running % WARP);
        let warp = &mut (&mut (*team).warps)[warp];
        let filled = &mut warp.exchanges[warp.filling];
        filled.lanes |= 1 << lane;
        if bytes > 0 {
            filled.slots.0[lane].as_mut_ptr().copy_from(value.cast(), bytes as usize);
        }
        let filled: *const Exchange = filled;
        lane_out.write(lane as c_uint);
        suspend(State::InExchange);
        filled
    }
}

extern "C" fn wait_for_block() {
    suspend(State::AtBarrier);
}

extern "C" fn yield_thread() {
    suspend(State::GivesWay);
}

extern "C" fn shared_memory() -> *mut u8 {
    SHARED.get()
}
