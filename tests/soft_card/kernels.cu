#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
typedef unsigned int uint;
typedef unsigned char uint8;

extern "C" __global__ void __launch_bounds__(256)scale (const float* __restrict__ in, float* out, const uint count, const float factor) {
    uint i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] * factor;
}

// Six results of a lane: shuffles by index, xor, up and down, then votes.
extern "C" __global__ void __launch_bounds__(64)warp (const int* in, int* out) {
    uint i = threadIdx.x;
    int v = in[i], *to = out + 7 * i;
    to[0] = __shfl_sync(-1, v, v);
    to[1] = __shfl_xor_sync(-1, v, 5);
    to[2] = __shfl_up_sync(-1, v, 3);
    to[3] = __shfl_down_sync(-1, v, 3);
    to[4] = __ballot_sync(-1, v % 3 == 0);
    to[5] = __any_sync(-1, v > 1000);
    to[6] = __all_sync(-1, v < 1000);
}

// Every lane ends right after the last exchange, before others have read its value.
extern "C" __global__ void __launch_bounds__(256)sum_of_warp (const float* in, float* out) {
    uint i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = in[i];
    for (uint offset = 1; offset < 32; offset *= 2) v += __shfl_xor_sync(-1, v, offset);
    out[i] = v;
}

// Lanes from `kept` on end before the exchange.
extern "C" __global__ void __launch_bounds__(64)next_lane (const float* in, float* out, const uint kept) {
    uint i = threadIdx.x;
    if (i % 32 >= kept) return;
    out[i] = __shfl_down_sync(-1, in[i], 1);
}

// Adds up a block's values in shared memory; half of the threads end on the way.
extern "C" __global__ void __launch_bounds__(256)sum_of_block (const float* in, float* out) {
    extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
    float (&sums)[256] = reinterpret_cast<float (&)[256]>(dynamic_shared_mem[0]);
    __shared__ uint rounds;
    uint i = threadIdx.x;
    if (i == 0) rounds = 0;
    sums[i] = in[blockIdx.x * 256 + i];
    __syncthreads();
    for (uint width = 128; width > 0; width /= 2) {
        if (i >= 2 * width) return;
        if (i < width) sums[i] += sums[i + width];
        if (i == 0) rounds += 1;
        __syncthreads();
    }
    if (i == 0) { out[2 * blockIdx.x] = sums[0]; out[2 * blockIdx.x + 1] = float(rounds); }
}

extern "C" __global__ void __launch_bounds__(128)count (const int* in, int* counts, float* sum, const uint repeats) {
    int v = in[blockIdx.x * 128 + threadIdx.x];
    for (uint i = 0; i < repeats; i++) {
        atomicAdd(&counts[0], v);
        atomicAdd(sum, 0.5f);
    }
    atomicMax(&counts[1], v);
    atomicMin(&counts[2], v);
    atomicOr(&counts[3], 1 << v % 31);
    for (int seen = counts[4];;) {
        int old = atomicCAS(&counts[4], seen, seen + 2);
        if (old == seen) break;
        seen = old;
    }
}

// Sums, products, quotients and conversions of sixteen-bit floats, as their bits.
template <class T>
static inline __device__ void compute_small(float a, float b, double wide, unsigned short* to) {
    T x = T(a), y = T(b);
    T results[] = {x, x + y, x - y, x * y, x / y, T(wide), hexp(y), fma(x, y, x)};
    for (int i = 0; i < 8; i++) to[i] = reinterpret_cast<unsigned short&>(results[i]);
}
extern "C" __global__ void __launch_bounds__(128)small_floats (const float* a, const float* b, const double* wide, unsigned short* out) {
    uint i = blockIdx.x * blockDim.x + threadIdx.x;
    compute_small<__half>(a[i], b[i], wide[i], out + 16 * i);
    compute_small<__nv_bfloat16>(a[i], b[i], wide[i], out + 16 * i + 8);
}

// The first warp fills shared memory, the second one waits for it at a barrier object.
extern "C" __global__ void __launch_bounds__(64)barriers (const int* in, int* out) {
    extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
    auto& filled = reinterpret_cast<cuda::barrier<cuda::thread_scope_block>&>(dynamic_shared_mem[0]);
    int* values = reinterpret_cast<int*>(&dynamic_shared_mem[16]);
    uint i = threadIdx.x;
    if (i == 0) init(&filled, 64);
    __syncthreads();
    if (i < 32) {
        cuda::memcpy_async(values + i, in + i, sizeof(int), filled);
        filled.arrive_and_wait();
    } else {
        auto token = filled.arrive();
        filled.wait(std::move(token));
        out[i - 32] = values[63 - i] + [&]() -> int {
            int result;
            asm("add.sat.s32 %0, %1, %2;"
                : "=r"(result)
                : "r"(values[(i - 32)]), "r"(2147483600));
            return result;
        }();
    }
}

// Half of the block waits for a barrier object at which nobody else arrives.
extern "C" __global__ void __launch_bounds__(64)stuck (int* out) {
    extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
    auto& never = reinterpret_cast<cuda::barrier<cuda::thread_scope_block>&>(dynamic_shared_mem[0]);
    if (threadIdx.x == 0) init(&never, 64);
    __syncthreads();
    if (threadIdx.x < 32) never.arrive_and_wait();
    out[threadIdx.x] = 1;
}

// Lanes pass values through shared memory, twice, with no barrier: a warp keeps them in step.
extern "C" __global__ void in_step(const int* input, int* output) {
    extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
    int *shared_memory_0 = reinterpret_cast<int*>(&dynamic_shared_mem[0]);
    int* _tmp_0 = reinterpret_cast<int*>(shared_memory_0);
    __syncthreads();
    _tmp_0[threadIdx.x] = input[threadIdx.x];
    const int turned = shared_memory_0[threadIdx.x ^ 31];
    _tmp_0[threadIdx.x] = turned + 1000;
    output[threadIdx.x] = shared_memory_0[(threadIdx.x + 1) % 32];
}

// The upper half of a warp takes no part in the branches, and does not run ahead of those that do.
extern "C" __global__ void in_step_around_branches(const int* input, int* output) {
    extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
    int *shared_memory_0 = reinterpret_cast<int*>(&dynamic_shared_mem[0]);
    __syncthreads();
    shared_memory_0[threadIdx.x] = input[threadIdx.x];
    if (threadIdx.x < 16) {
    output[threadIdx.x] = shared_memory_0[threadIdx.x + 16];
    }
    shared_memory_0[threadIdx.x] = input[threadIdx.x] + 100;
    if (threadIdx.x < 16) {
    output[threadIdx.x] += shared_memory_0[threadIdx.x + 16];
    }
    shared_memory_0[threadIdx.x] = input[threadIdx.x] + 10000;
    if (threadIdx.x < 16) {
    output[threadIdx.x] += shared_memory_0[threadIdx.x + 16];
    }
}
