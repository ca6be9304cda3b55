//! CubeCL's CUDA runtime behind a layer of our own, which counts the kernels of a start and can choose among
//! kernels without tuning (`training.autotune: later`).
#![expect(unsafe_code, reason = "a launch is unsafe in CubeCL's interface; this layer passes it on")]

mod first_that_runs;

use cubecl::bytes::Bytes;
use cubecl::client::ComputeClient;
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::device::{DeviceId, DeviceService, ServerUtilitiesHandle};
use cubecl::future::DynFut;
use cubecl::ir::TargetProperties;
use cubecl::profile::ProfileDuration;
use cubecl::server::{
    Binding, ComputeServer, CopyDescriptor, Handle, KernelArguments, MemoryLayout, MemoryLayoutDescriptor,
    MemoryLayoutPolicy, ProfileError, ProfilingToken, ServerCommunication, ServerError, ServerUtilities,
};
use cubecl::stream_id::StreamId;
use cubecl::zspace::{Shape, Strides};
use cubecl::{CubeCount, ExecutionMode, MemoryAllocationMode, MemoryUsage, Runtime};
use cubecl_runtime::id::KernelId;
use cubecl_runtime::kernel::KernelMetadata;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use first_that_runs::{FirstThatRuns, Sample};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

type CudaServer = <CudaRuntime as Runtime>::Server;
type Storage = <CudaServer as ComputeServer>::Storage;

/// Whether choices among kernels are made without tuning.
static UNTUNED: AtomicBool = AtomicBool::new(false);
/// Kernels launched by this process so far, until [`stop_counting`].
static KERNELS: AtomicU64 = AtomicU64::new(0);
static COUNTED: AtomicBool = AtomicBool::new(false);

/// Lets this process take the first of several kernels that runs, instead of tuning. Call before the first use of a device.
pub fn choose_without_tuning() {
    UNTUNED.store(true, Ordering::Relaxed);
}

/// Returns the number of different kernels launched so far.
pub fn count_kernels() -> u64 {
    KERNELS.load(Ordering::Relaxed)
}

/// Ends the count: after the first step, looking at each launch would only cost time.
pub fn stop_counting() {
    COUNTED.store(true, Ordering::Relaxed);
}

/// The CUDA runtime.
#[derive(Debug, Clone)]
pub struct GpuRuntime;

impl Runtime for GpuRuntime {
    type Compiler = <CudaRuntime as Runtime>::Compiler;
    type Server = GpuServer;
    type Device = CudaDevice;

    fn client(device: &CudaDevice) -> ComputeClient<Self> {
        ComputeClient::load(device)
    }

    fn name(_client: &ComputeClient<Self>) -> &'static str {
        "cuda"
    }

    fn require_array_lengths() -> bool {
        CudaRuntime::require_array_lengths()
    }

    fn max_cube_count() -> (u32, u32, u32) {
        CudaRuntime::max_cube_count()
    }

    fn can_read_tensor(shape: &Shape, strides: &Strides) -> bool {
        CudaRuntime::can_read_tensor(shape, strides)
    }

    fn target_properties() -> TargetProperties {
        CudaRuntime::target_properties()
    }

    fn enumerate_devices(type_id: u16, (): &()) -> Vec<DeviceId> {
        CudaRuntime::enumerate_devices(type_id, &())
    }
}

/// The server of one GPU: everything but launches and samples goes straight to CubeCL's.
#[derive(Debug)]
pub struct GpuServer {
    cuda: CudaServer,
    utilities: Arc<ServerUtilities<Self>>,
    untuned: Option<FirstThatRuns>,
    launched: HashSet<KernelId>,
}

impl DeviceService for GpuServer {
    fn init(device: DeviceId) -> Self {
        let cuda = CudaServer::init(device);
        let of_cuda = ComputeServer::utilities(&cuda);
        let (properties, logger) = (of_cuda.properties.clone(), Arc::clone(&of_cuda.logger));
        let utilities = Arc::new(ServerUtilities::new(properties, logger, (), Layout(of_cuda)));
        let untuned = UNTUNED.load(Ordering::Relaxed).then(FirstThatRuns::default);
        Self { cuda, utilities, untuned, launched: HashSet::new() }
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        Arc::<ServerUtilities<Self>>::clone(&self.utilities)
    }
}

/// CubeCL's layout of tensors in memory.
pub struct Layout(Arc<ServerUtilities<CudaServer>>);

impl MemoryLayoutPolicy for Layout {
    fn apply(&self, stream: StreamId, tensors: &[MemoryLayoutDescriptor]) -> (Handle, Vec<MemoryLayout>) {
        self.0.layout_policy.apply(stream, tensors)
    }
}

/// Runs train on one GPU.
impl ServerCommunication for GpuServer {
    const SERVER_COMM_ENABLED: bool = false;
}

impl GpuServer {
    fn count(&mut self, kernel: &<Self as ComputeServer>::Kernel) {
        if !COUNTED.load(Ordering::Relaxed) && self.launched.insert(kernel.id()) {
            KERNELS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl ComputeServer for GpuServer {
    type Kernel = <CudaServer as ComputeServer>::Kernel;
    type Info = ();
    type MemoryLayoutPolicy = Layout;
    type Storage = Storage;

    unsafe fn launch(
        &mut self,
        kernel: Self::Kernel,
        count: CubeCount,
        arguments: KernelArguments,
        mode: ExecutionMode,
        stream: StreamId,
    ) {
        if self.untuned.as_mut().is_none_or(FirstThatRuns::launch) {
            self.count(&kernel);
            // SAFETY: the caller upholds CubeCL's contract, and the call is passed on unchanged.
            unsafe { self.cuda.launch(kernel, count, arguments, mode, stream) }
        }
    }

    fn start_profile(&mut self, stream: StreamId) -> Result<ProfilingToken, ServerError> {
        let Some(untuned) = &mut self.untuned else { return self.cuda.start_profile(stream) };
        untuned.begin_sample();
        match untuned.sample() {
            Sample::Pretended(_) => Ok(ProfilingToken { id: u64::MAX }),
            Sample::Real => self.cuda.start_profile(stream).inspect_err(|_| untuned.end_sample(false)),
        }
    }

    fn end_profile(&mut self, stream: StreamId, token: ProfilingToken) -> Result<ProfileDuration, ProfileError> {
        let Some(untuned) = &mut self.untuned else { return self.cuda.end_profile(stream, token) };
        if let Sample::Pretended(duration) = untuned.sample() {
            untuned.end_sample(true);
            let begin = Instant::now();
            return Ok(ProfileDuration::new_system_time(begin, begin + duration));
        }
        let measured = self.cuda.end_profile(stream, token);
        untuned.end_sample(measured.is_ok());
        measured
    }

    fn flush(&mut self, stream: StreamId) -> Result<(), ServerError> {
        if let Some(untuned) = &mut self.untuned {
            untuned.begin_candidate();
        }
        self.cuda.flush(stream)
    }

    fn utilities(&self) -> Arc<ServerUtilities<Self>> {
        Arc::clone(&self.utilities)
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.cuda.logger()
    }

    fn initialize_memory(&mut self, memory: ManagedMemoryHandle, size: u64, stream: StreamId) {
        self.cuda.initialize_memory(memory, size, stream);
    }

    fn staging(&mut self, sizes: &[usize], stream: StreamId) -> Result<Vec<Bytes>, ServerError> {
        self.cuda.staging(sizes, stream)
    }

    fn read(&mut self, tensors: Vec<CopyDescriptor>, stream: StreamId) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        self.cuda.read(tensors, stream)
    }

    fn write(&mut self, tensors: Vec<(CopyDescriptor, Bytes)>, stream: StreamId) {
        self.cuda.write(tensors, stream);
    }

    fn sync(&mut self, stream: StreamId) -> DynFut<Result<(), ServerError>> {
        self.cuda.sync(stream)
    }

    fn get_resource(
        &mut self,
        binding: Binding,
        stream: StreamId,
    ) -> Result<ManagedResource<<Storage as ComputeStorage>::Resource>, ServerError> {
        self.cuda.get_resource(binding, stream)
    }

    fn memory_usage(&mut self, stream: StreamId) -> Result<MemoryUsage, ServerError> {
        self.cuda.memory_usage(stream)
    }

    fn memory_cleanup(&mut self, stream: StreamId) {
        self.cuda.memory_cleanup(stream);
    }

    fn allocation_mode(&mut self, mode: MemoryAllocationMode, stream: StreamId) {
        self.cuda.allocation_mode(mode, stream);
    }
}
