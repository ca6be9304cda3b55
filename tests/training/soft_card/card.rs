//! The soft card, loaded as programs load NVIDIA's libraries.

use crate::libraries::{CACHE, build_libraries, built_library};
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::process::Command;
use std::ptr;

pub type Code = c_int;
pub type Handle = *mut c_void;
type Arguments = *const *const c_void;

const CHILD: &str = "SOFT_CARD_TEST_CHILD";

/// Runs `body` in a process of its own, with these settings of the card.
pub fn on_card(test: &str, settings: &[(&str, &str)], body: impl FnOnce(&Card)) {
    if std::env::var_os(CHILD).is_some() {
        return body(&Card::load());
    }
    build_libraries();
    let done = child(test, settings).output().unwrap();
    let output = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(done.status.success() && output.contains("1 passed"), "{output}");
}

/// Returns the command that runs a test's body.
pub fn child(test: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("soft_card::{test}"), "--exact", "--nocapture", "--include-ignored"]).env(CHILD, "1");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SOFT_CARD_") && name != CHILD) {
        command.env_remove(name);
    }
    command.env("SOFT_CARD_CACHE", CACHE);
    command.envs(settings.iter().map(|(name, value)| (format!("SOFT_CARD_{name}"), *value)));
    command
}

pub struct Card {
    driver: Library,
    compiler: Library,
}

pub struct Launch<'a> {
    pub function: Handle,
    pub blocks: u32,
    pub threads: u32,
    pub shared_bytes: u32,
    pub stream: Handle,
    pub arguments: &'a [Argument<'a>],
}

pub enum Argument<'a> {
    Memory(&'a u64),
    Number(&'a u32),
    Float(&'a f32),
}

/// Calls a function of one of the libraries by its C signature.
macro_rules! call {
    ($library:expr, $name:literal, ($($type:ty),*), $($value:expr),*) => {{
        // SAFETY: the signature is CUDA's, and pointers are to live memory of the test.
        unsafe {
            let function = $library.get::<unsafe extern "C" fn($($type),*) -> Code>($name).unwrap();
            function($($value),*)
        }
    }};
}

impl Card {
    fn load() -> Self {
        let open = |name: &str| {
            let path = built_library(name);
            // SAFETY: our own library, whose initializers are Rust's.
            unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("cargo builds {}: {error}", path.display()))
        };
        let card = Self { driver: open("libsoft_card_driver.so"), compiler: open("libsoft_card_nvrtc.so") };
        assert_eq!(call!(card.driver, b"cuInit", (c_uint), 0), 0);
        card.choose_device(0);
        card
    }

    pub fn choose_device(&self, index: i32) {
        let mut context = ptr::null_mut::<c_void>();
        let retain = call!(self.driver, b"cuDevicePrimaryCtxRetain", (*mut Handle, c_int), &raw mut context, index);
        assert_eq!((retain, call!(self.driver, b"cuCtxSetCurrent", (Handle), context)), (0, 0));
    }

    /// Compiles CUDA C++ and returns the PTX, or the compiler's log.
    pub fn compile(&self, source: &str) -> Result<CString, String> {
        let (text, mut program) = (CString::new(source).unwrap(), ptr::null_mut::<c_void>());
        let (no_text, no_list) = (ptr::null::<c_char>(), ptr::null::<*const c_char>());
        let created = call!(
            self.compiler,
            b"nvrtcCreateProgram",
            (*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char),
            &raw mut program,
            text.as_ptr(),
            no_text,
            0,
            no_list,
            no_list
        );
        assert_eq!(created, 0);
        let code =
            call!(self.compiler, b"nvrtcCompileProgram", (Handle, c_int, *const *const c_char), program, 0, no_list);
        let result = self.text_of(program, code == 0);
        assert_eq!(call!(self.compiler, b"nvrtcDestroyProgram", (*mut Handle), &raw mut program), 0);
        if code == 0 { Ok(result) } else { Err(result.to_string_lossy().into_owned()) }
    }

    fn text_of(&self, program: Handle, is_ptx: bool) -> CString {
        let mut size = 0;
        let code = if is_ptx {
            call!(self.compiler, b"nvrtcGetPTXSize", (Handle, *mut usize), program, &raw mut size)
        } else {
            call!(self.compiler, b"nvrtcGetProgramLogSize", (Handle, *mut usize), program, &raw mut size)
        };
        let mut bytes = vec![0_u8; size];
        let out = bytes.as_mut_ptr().cast::<c_char>();
        let read = if is_ptx {
            call!(self.compiler, b"nvrtcGetPTX", (Handle, *mut c_char), program, out)
        } else {
            call!(self.compiler, b"nvrtcGetProgramLog", (Handle, *mut c_char), program, out)
        };
        assert_eq!((code, read), (0, 0));
        CString::from_vec_with_nul(bytes).unwrap()
    }

    pub fn load_kernel(&self, source: &str, name: &str) -> Handle {
        let ptx = self.compile(source).unwrap_or_else(|log| panic!("{log}"));
        let (mut module, mut function) = (ptr::null_mut::<c_void>(), ptr::null_mut::<c_void>());
        let (out, image) = (&raw mut module, ptx.as_ptr().cast::<c_void>());
        assert_eq!(call!(self.driver, b"cuModuleLoadData", (*mut Handle, *const c_void), out, image), 0);
        let (out, name) = (&raw mut function, CString::new(name).unwrap());
        let code = call!(
            self.driver,
            b"cuModuleGetFunction",
            (*mut Handle, Handle, *const c_char),
            out,
            module,
            name.as_ptr()
        );
        assert_eq!(code, 0, "{name:?}");
        function
    }

    pub fn allocate(&self, bytes: usize) -> Result<u64, Code> {
        let mut at = 0;
        let code = call!(self.driver, b"cuMemAlloc_v2", (*mut u64, usize), &raw mut at, bytes);
        if code == 0 { Ok(at) } else { Err(code) }
    }

    pub fn free(&self, at: u64) -> Code {
        call!(self.driver, b"cuMemFree_v2", (u64), at)
    }

    /// Returns the free bytes and the capacity.
    pub fn memory(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        let code = call!(self.driver, b"cuMemGetInfo_v2", (*mut usize, *mut usize), &raw mut free, &raw mut total);
        assert_eq!(code, 0);
        (free, total)
    }

    /// Allocates memory with these values.
    pub fn put<T: Copy>(&self, values: &[T]) -> u64 {
        let at = self.allocate(size_of_val(values)).unwrap();
        let from = values.as_ptr().cast::<c_void>();
        let code = call!(self.driver, b"cuMemcpyHtoD_v2", (u64, *const c_void, usize), at, from, size_of_val(values));
        assert_eq!(code, 0);
        at
    }

    pub fn read<T: Copy + Default>(&self, at: u64, count: usize) -> Result<Vec<T>, Code> {
        let mut values = vec![T::default(); count];
        let (to, bytes) = (values.as_mut_ptr().cast::<c_void>(), count * size_of::<T>());
        let code = call!(self.driver, b"cuMemcpyDtoH_v2", (*mut c_void, u64, usize), to, at, bytes);
        if code == 0 { Ok(values) } else { Err(code) }
    }

    pub fn get<T: Copy + Default>(&self, at: u64, count: usize) -> Vec<T> {
        self.read(at, count).unwrap()
    }

    pub fn create_stream(&self) -> Handle {
        let mut stream = ptr::null_mut::<c_void>();
        assert_eq!(call!(self.driver, b"cuStreamCreate", (*mut Handle, c_uint), &raw mut stream, 1), 0);
        stream
    }

    pub fn synchronize(&self, stream: Handle) -> Code {
        call!(self.driver, b"cuStreamSynchronize", (Handle), stream)
    }

    pub fn query(&self, stream: Handle) -> Code {
        call!(self.driver, b"cuStreamQuery", (Handle), stream)
    }

    pub fn record(&self, stream: Handle) -> Handle {
        let mut event = ptr::null_mut::<c_void>();
        assert_eq!(call!(self.driver, b"cuEventCreate", (*mut Handle, c_uint), &raw mut event, 0), 0);
        assert_eq!(call!(self.driver, b"cuEventRecord", (Handle, Handle), event, stream), 0);
        event
    }

    pub fn query_event(&self, event: Handle) -> Code {
        call!(self.driver, b"cuEventQuery", (Handle), event)
    }

    pub fn synchronize_event(&self, event: Handle) -> Code {
        call!(self.driver, b"cuEventSynchronize", (Handle), event)
    }

    pub fn wait_for_event(&self, stream: Handle, event: Handle) -> Code {
        call!(self.driver, b"cuStreamWaitEvent", (Handle, Handle, c_uint), stream, event, 0)
    }

    pub fn launch(&self, launch: &Launch) -> Code {
        let pointer = |argument: &Argument| match argument {
            Argument::Memory(at) => ptr::from_ref(*at).cast::<c_void>(),
            Argument::Number(number) => ptr::from_ref(*number).cast(),
            Argument::Float(number) => ptr::from_ref(*number).cast(),
        };
        let arguments: Vec<*const c_void> = launch.arguments.iter().map(pointer).collect();
        call!(
            self.driver,
            b"cuLaunchKernel",
            (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, Arguments, Arguments),
            launch.function,
            launch.blocks,
            1,
            1,
            launch.threads,
            1,
            1,
            launch.shared_bytes,
            launch.stream,
            arguments.as_ptr(),
            ptr::null()
        )
    }

    pub fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, Code> {
        let mut at = ptr::null_mut::<c_void>();
        match call!(self.driver, b"cuMemAllocHost_v2", (*mut Handle, usize), &raw mut at, bytes) {
            0 => Ok(at.cast()),
            code => Err(code),
        }
    }

    pub fn copy_to_host_later(&self, to: *mut u8, from: u64, bytes: usize, stream: Handle) -> Code {
        call!(self.driver, b"cuMemcpyDtoHAsync_v2", (*mut c_void, u64, usize, Handle), to.cast(), from, bytes, stream)
    }

    pub fn copy_to_device_later(&self, to: u64, from: *const u8, bytes: usize, stream: Handle) -> Code {
        call!(self.driver, b"cuMemcpyHtoDAsync_v2", (u64, *const c_void, usize, Handle), to, from.cast(), bytes, stream)
    }

    pub fn device_count(&self) -> i32 {
        let mut count = 0;
        assert_eq!(call!(self.driver, b"cuDeviceGetCount", (*mut c_int), &raw mut count), 0);
        count
    }
}
