#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
typedef unsigned int uint;
typedef unsigned char uint8;
typedef unsigned int uint32;

// The wrappers as CubeCL writes them.
inline __device__ void
__mma_m16n8k16___half___half_float(uint32 const &reg_a_0, uint32 const &reg_a_1, uint32 const &reg_a_2, uint32 const &reg_a_3, uint32 const &reg_b_0, uint32 const &reg_b_1, float const &reg_c_0, float const &reg_c_1, float const &reg_c_2, float const &reg_c_3, float &reg_d_0, float &reg_d_1, float &reg_d_2, float &reg_d_3) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
               : "=f"(reg_d_0), "=f"(reg_d_1), "=f"(reg_d_2), "=f"(reg_d_3)
               : "r"(reg_a_0), "r"(reg_a_1), "r"(reg_a_2), "r"(reg_a_3), "r"(reg_b_0), "r"(reg_b_1), "f"(reg_c_0), "f"(reg_c_1), "f"(reg_c_2), "f"(reg_c_3));
    }
inline __device__ void
__mma_m16n8k8_float_float_float(uint32 const &reg_a_0, uint32 const &reg_a_1, uint32 const &reg_a_2, uint32 const &reg_a_3, uint32 const &reg_b_0, uint32 const &reg_b_1, float const &reg_c_0, float const &reg_c_1, float const &reg_c_2, float const &reg_c_3, float &reg_d_0, float &reg_d_1, float &reg_d_2, float &reg_d_3) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
               : "=f"(reg_d_0), "=f"(reg_d_1), "=f"(reg_d_2), "=f"(reg_d_3)
               : "r"(reg_a_0), "r"(reg_a_1), "r"(reg_a_2), "r"(reg_a_3), "r"(reg_b_0), "r"(reg_b_1), "f"(reg_c_0), "f"(reg_c_1), "f"(reg_c_2), "f"(reg_c_3));
    }
inline __device__ void
__ldmatrix_m8n8___half_4x(uint32 &reg_0, uint32 &reg_1, uint32 &reg_2, uint32 &reg_3, void const *row_addr) {
  uint32 addr = static_cast<uint32>(__cvta_generic_to_shared(row_addr));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16"
               " {%0, %1, %2, %3}, [%4];"
               : "=r"(reg_0), "=r"(reg_1), "=r"(reg_2), "=r"(reg_3)
               : "r"(addr));
    }
inline __device__ void
__ldmatrix_m8n8___half_2x_trans(uint32 &reg_0, uint32 &reg_1, void const *row_addr) {
  uint32 addr = static_cast<uint32>(__cvta_generic_to_shared(row_addr));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16"
               " {%0, %1}, [%2];"
               : "=r"(reg_0), "=r"(reg_1)
               : "r"(addr));
    }

// out (16 x 8) = a (16 x 16, by rows) * b (16 x 8, by rows)
extern "C" __global__ void __launch_bounds__(32)mma_half (const __half* a, const __half* b, float* out) {
    extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
    __half* sa = reinterpret_cast<__half*>(&dynamic_shared_mem[0]);
    __half* sb = sa + 256;
    uint l = threadIdx.x;
    for (uint i = l; i < 256; i += 32) sa[i] = a[i];
    for (uint i = l; i < 128; i += 32) sb[i] = b[i];
    __syncthreads();
    uint32 ra[4], rb[2];
    float c[4] = {1, 1, 1, 1};
    __ldmatrix_m8n8___half_4x(ra[0], ra[1], ra[2], ra[3], sa + (l % 16) * 16 + l / 16 * 8);
    __ldmatrix_m8n8___half_2x_trans(rb[0], rb[1], sb + (l % 16) * 8);
    __mma_m16n8k16___half___half_float(ra[0], ra[1], ra[2], ra[3], rb[0], rb[1], c[0], c[1], c[2], c[3], c[0], c[1], c[2], c[3]);
    for (uint i = 0; i < 4; i++) out[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = c[i];
}

// The registers of the PTX manual's table for .tf32 and m16n8k8, filled element by element.
extern "C" __global__ void __launch_bounds__(32)mma_tf32 (const float* a, const float* b, float* out) {
    uint l = threadIdx.x, g = l / 4, t = l % 4;
    float ra[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    float rb[2] = {b[t * 8 + g], b[(t + 4) * 8 + g]};
    float c[4] = {0, 0, 0, 0};
    uint32* ba = reinterpret_cast<uint32*>(ra);
    uint32* bb = reinterpret_cast<uint32*>(rb);
    __mma_m16n8k8_float_float_float(ba[0], ba[1], ba[2], ba[3], bb[0], bb[1], c[0], c[1], c[2], c[3], c[0], c[1], c[2], c[3]);
    for (uint i = 0; i < 4; i++) out[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = c[i];
}

template <class T>
static inline __device__ void multiply(const T* a, const T* b, float* out) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, T, row_major> fa;
    fragment<matrix_b, 16, 16, 16, T, col_major> fb;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    load_matrix_sync(fa, a, 16);
    load_matrix_sync(fb, b, 16);
    mma_sync(sum, fa, fb, sum);
    mma_sync(sum, fa, fb, sum);
    store_matrix_sync(out, sum, 16, mem_row_major);
}
extern "C" __global__ void __launch_bounds__(32)wmma_half (const __half* a, const __half* b, float* out) {
    multiply(a, b, out);
}
extern "C" __global__ void __launch_bounds__(32)wmma_bfloat16 (const __nv_bfloat16* a, const __nv_bfloat16* b, float* out) {
    multiply(a, b, out);
}
