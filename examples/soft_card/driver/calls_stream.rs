//! Calls about streams and events.

use super::abi::{Code, Handle, INVALID_VALUE, NOT_READY, code_of, write_out};
use super::device::Device;
use super::event::Event;
use super::handles::Handles;
use super::recording::record;
use super::stream::{STREAMS, Stream, Work};
use crate::trace::Call;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

static EVENTS: Handles<Event> = Handles::new();

/// Returns the stream of a handle; small numbers are the default streams. A stream and an event know their device:
/// only for default streams must a context be current.
pub fn stream_of(handle: Handle) -> Result<Arc<Stream>, Code> {
    if handle.addr() <= 2 {
        return Ok(Device::current()?.default_stream());
    }
    let stream = STREAMS.get(handle)?;
    stream.device.working()?;
    Ok(stream)
}

fn event_of(handle: Handle) -> Result<Arc<Event>, Code> {
    let event = EVENTS.get(handle)?;
    event.device.working()?;
    Ok(event)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(out: *mut Handle, _flags: c_uint) -> Code {
    // SAFETY: the caller passes a pointer to one handle that it owns; so it is in all calls here.
    code_of(Device::current().and_then(|device| unsafe { write_out(out, STREAMS.insert(Stream::start(device))) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(out: *mut Handle, flags: c_uint, _priority: c_int) -> Code {
    cuStreamCreate(out, flags)
}

/// The work that the stream still has is done before its thread ends.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    code_of(STREAMS.remove(stream).map(|stream| stream.close()))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    let wait = |stream: Arc<Stream>| {
        record(|| Call::Wait);
        stream.synchronize()
    };
    code_of(stream_of(stream).and_then(wait))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: Handle) -> Code {
    code_of(stream_of(stream).and_then(|stream| if stream.is_idle() { stream.device.report() } else { Err(NOT_READY) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> Code {
    let wait = || {
        let (stream, event) = (stream_of(stream)?, EVENTS.get(event)?);
        let recording = event.last_recording();
        stream.submit(Work::WaitFor(event, recording));
        Ok(())
    };
    code_of(wait())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(out: *mut Handle, _flags: c_uint) -> Code {
    let create = |device| EVENTS.insert(Arc::new(Event::new(device)));
    // SAFETY: as above.
    code_of(Device::current().and_then(|device| unsafe { write_out(out, create(device)) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    code_of(EVENTS.remove(event).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    let record = || {
        let (stream, event) = (stream_of(stream)?, EVENTS.get(event)?);
        let recording = event.record();
        stream.submit(Work::Reach(event, recording));
        Ok(())
    };
    code_of(record())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    let wait = |event: Arc<Event>| {
        record(|| Call::Wait);
        event.wait_for(event.last_recording());
        event.device.report()
    };
    code_of(event_of(event).and_then(wait))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> Code {
    let query = |event: Arc<Event>| if event.is_reached() { event.device.report() } else { Err(NOT_READY) };
    code_of(event_of(event).and_then(query))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(out: *mut f32, from: Handle, to: Handle) -> Code {
    let measure = || {
        let (from, to) = (EVENTS.get(from)?, EVENTS.get(to)?);
        if !from.is_reached() || !to.is_reached() {
            return Err(NOT_READY);
        }
        let (from, to) = (from.reached_at().ok_or(INVALID_VALUE)?, to.reached_at().ok_or(INVALID_VALUE)?);
        // SAFETY: as above.
        unsafe { write_out(out, to.saturating_duration_since(from).as_secs_f32() * 1000.0) }
    };
    code_of(measure())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(out: *mut f32, from: Handle, to: Handle) -> Code {
    cuEventElapsedTime(out, from, to)
}
