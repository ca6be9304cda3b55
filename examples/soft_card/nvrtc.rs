//! The calls of NVRTC that cudarc makes.

use super::build::{compile_cached, digest, kernel_text};
use super::ptx::Ptx;
use super::rewrite::order::in_order;
use super::settings;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{fs, io, ptr};

const SUCCESS: c_int = 0;
const INVALID_INPUT: c_int = 3;
const INVALID_PROGRAM: c_int = 4;
const COMPILATION: c_int = 6;

#[derive(Default)]
struct Program {
    source: CString,
    ptx: CString,
    log: CString,
}

static PROGRAMS: Mutex<BTreeMap<usize, Program>> = Mutex::new(BTreeMap::new());

fn with_program(handle: *mut c_void, act: impl FnOnce(&mut Program) -> c_int) -> c_int {
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    programs.get_mut(&handle.addr()).map_or(INVALID_PROGRAM, act)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    let version = settings::version("NVRTC", (12, 9));
    // SAFETY: the caller passes pointers to two numbers that it owns.
    unsafe {
        *major = version.0;
        *minor = version.1;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        SUCCESS => c"NVRTC_SUCCESS",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcCreateProgram(
    program: *mut *mut c_void,
    source: *const c_char,
    _name: *const c_char,
    _headers: c_int,
    _texts: *const *const c_char,
    _names: *const *const c_char,
) -> c_int {
    if program.is_null() || source.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: the caller passes NUL-terminated text.
    let source = unsafe { CStr::from_ptr(source) }.to_owned();
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = programs.last_key_value().map_or(1, |(last, _)| last + 1);
    programs.insert(handle, Program { source, ..Program::default() });
    // SAFETY: not null, and the caller owns it.
    unsafe { *program = ptr::without_provenance_mut(handle) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcDestroyProgram(program: *mut *mut c_void) -> c_int {
    // SAFETY: the caller passes a pointer to a handle that it owns.
    let handle = unsafe { *program };
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcCompileProgram(program: *mut c_void, count: c_int, options: *const *const c_char) -> c_int {
    // SAFETY: the caller passes this number of NUL-terminated texts.
    let options = unsafe { texts(count, options) };
    let target = options.iter().find_map(|option| target_of(option)).unwrap_or_else(settings::capability);
    // Compiles without the lock: two threads may compile side by side.
    let mut source = None;
    with_program(program, |program| {
        source = Some(program.source.clone());
        SUCCESS
    });
    let Some(source) = source else { return INVALID_PROGRAM };
    let source = source.to_string_lossy();
    if let Some(folder) = settings::setting("SOURCES")
        && let Err(error) = keep_source(Path::new(&folder), &source, &options)
    {
        return refuse(program, &format!("cannot keep a kernel in {folder}: {error}"));
    }
    if !settings::skips_kernels()
        && let Err(error) = compile_cached(&kernel_text(&source, target))
    {
        return refuse(program, &error.to_string());
    }
    with_program(program, |program| {
        program.ptx = CString::new(Ptx::new(&source, target).text()).unwrap_or_default();
        SUCCESS
    })
}

/// Returns the compute capability of `--gpu-architecture=sm_80`.
fn target_of(option: &str) -> Option<(i32, i32)> {
    let digits = option.strip_prefix("--gpu-architecture=sm_")?.trim_end_matches('a');
    let number: i32 = digits.parse().ok()?;
    Some((number / 10, number % 10))
}

fn refuse(program: *mut c_void, log: &str) -> c_int {
    with_program(program, |program| {
        program.log = CString::new(log.replace('\0', " ")).unwrap_or_default();
        COMPILATION
    })
}

/// Returns a list of C texts.
///
/// # Safety
/// `list` has `count` pointers to NUL-terminated texts.
unsafe fn texts(count: c_int, list: *const *const c_char) -> Vec<String> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: this function's contract.
    let text = |index| unsafe { CStr::from_ptr(*list.add(index)) }.to_string_lossy().into_owned();
    (0..count).map(text).collect()
}

/// Writes a kernel to a file of its content and options, for a real NVRTC.
fn keep_source(folder: &Path, source: &str, options: &[String]) -> io::Result<()> {
    let text = format!("// {}\n{}", options.join(" "), in_order(source));
    let name = digest(std::iter::once(text.as_str()));
    fs::create_dir_all(folder)?;
    let partial = folder.join(format!("{name}.{}.partial", std::process::id()));
    fs::write(&partial, text)?;
    fs::rename(partial, folder.join(format!("{name}.cu")))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetPTXSize(program: *mut c_void, size: *mut usize) -> c_int {
    with_program(program, |program| write_size(&program.ptx, size))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetPTX(program: *mut c_void, out: *mut c_char) -> c_int {
    with_program(program, |program| write_text(&program.ptx, out))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLogSize(program: *mut c_void, size: *mut usize) -> c_int {
    with_program(program, |program| write_size(&program.log, size))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLog(program: *mut c_void, out: *mut c_char) -> c_int {
    with_program(program, |program| write_text(&program.log, out))
}

fn write_size(text: &CStr, out: *mut usize) -> c_int {
    // SAFETY: the caller passes a pointer to one number that it owns.
    unsafe { *out = text.to_bytes_with_nul().len() };
    SUCCESS
}

fn write_text(text: &CStr, out: *mut c_char) -> c_int {
    let bytes = text.to_bytes_with_nul();
    // SAFETY: the caller's buffer has the size that it asked for just before.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len()) };
    SUCCESS
}
