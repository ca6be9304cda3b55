// The PTX instructions that kernels contain as `asm`; the compiler of the soft card calls these in their place.
#pragma once

inline size_t __cvta_generic_to_shared(const void* at) {
  return size_t(static_cast<const unsigned char*>(at) - soft_card::services->shared_memory());
}

namespace soft_card {
namespace ptx {

struct f16 { typedef unsigned short Bits; };
struct bf16 { typedef unsigned short Bits; };
struct tf32 { typedef unsigned Bits; };
struct s8 { typedef signed char Bits; };
struct u8 { typedef unsigned char Bits; };

inline float value_of(f16, unsigned short bits) {
  _Float16 value;
  __builtin_memcpy(&value, &bits, 2);
  return float(value);
}
inline float value_of(tf32, unsigned bits) {
  bits &= 0xffffe000u;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
inline float value_of(bf16, unsigned short bits) {
  unsigned wide = unsigned(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, 4);
  return value;
}
inline int value_of(s8, signed char value) { return value; }
inline int value_of(u8, unsigned char value) { return value; }

template <class T>
inline unsigned bits_of(T value) {
  static_assert(sizeof(T) == 4, "registers have 32 bits");
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

// mma.sync.aligned.m16n8kK.row.col: the tables of the PTX manual are one rule. A register holds PACK neighbours
// along k; four lanes cover 4 * PACK of them; registers follow for the lower rows and then for the next part of k.
template <int K, class A, class B, class Sum, class... Register>
inline void mma(Sum& d0, Sum& d1, Sum& d2, Sum& d3, Register... registers) {
  constexpr int PACK = 4 / int(sizeof(typename A::Bits)), PART = 4 * PACK;
  constexpr int A_COUNT = 2 * K / PART, B_COUNT = K / PART;
  static_assert(sizeof...(registers) == A_COUNT + B_COUNT + 4, "the registers of this shape");
  const unsigned all[] = {bits_of(registers)...};
  unsigned lane;
  const Exchange& exchange = *services->exchange(all, 4 * (A_COUNT + B_COUNT), &lane);
  auto element = [&](auto type, int of_lane, int at, int part) {
    typename decltype(type)::Bits bits;
    __builtin_memcpy(&bits, exchange.slots[of_lane] + 4 * at + sizeof bits * part, sizeof bits);
    return value_of(type, bits);
  };
  Sum* const out[] = {&d0, &d1, &d2, &d3};
  for (int i = 0; i < 4; i++) {
    int row = int(lane / 4) + i / 2 * 8, column = int(lane % 4) * 2 + i % 2;
    Sum sum;
    __builtin_memcpy(&sum, &all[A_COUNT + B_COUNT + i], 4);
    for (int k = 0; k < K; k++) {
      int of_k = k % PART / PACK;
      sum += element(A(), row % 8 * 4 + of_k, row / 8 + k / PART * 2, k % PACK)
           * element(B(), column * 4 + of_k, A_COUNT + k / PART, k % PACK);
    }
    *out[i] = sum;
  }
}

// Lane 8 j + r holds the address of row r of matrix j.
template <bool TRANSPOSED, class... Register>
inline void load_matrices(unsigned address, Register&... registers) {
  unsigned lane, *const out[] = {&registers...};
  const Exchange& exchange = *services->exchange(&address, sizeof address, &lane);
  for (unsigned j = 0; j < sizeof...(registers); j++) {
    unsigned halves[2];
    for (unsigned i = 0; i < 2; i++) {
      unsigned along = lane % 4 * 2 + i, across = lane / 4;
      unsigned row = slot_of<unsigned>(exchange, j * 8 + (TRANSPOSED ? along : across));
      unsigned short bits;
      __builtin_memcpy(&bits, services->shared_memory() + row + 2 * (TRANSPOSED ? across : along), 2);
      halves[i] = bits;
    }
    *out[j] = halves[0] | halves[1] << 16;
  }
  wait_for_warp();
}

// ldmatrix.sync.aligned.m8n8.xN
template <bool TRANSPOSED>
inline void ldmatrix(unsigned& r0, unsigned address) { load_matrices<TRANSPOSED>(address, r0); }
template <bool TRANSPOSED>
inline void ldmatrix(unsigned& r0, unsigned& r1, unsigned address) { load_matrices<TRANSPOSED>(address, r0, r1); }
template <bool TRANSPOSED>
inline void ldmatrix(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned address) {
  load_matrices<TRANSPOSED>(address, r0, r1, r2, r3);
}

// cp.async: copies at once, which a card may do too; the rest of the `bytes` becomes zero.
inline void cp_async(unsigned to, unsigned long long from, unsigned bytes, unsigned given) {
  unsigned char* at = services->shared_memory() + to;
  __builtin_memset(at, 0, bytes);
  __builtin_memcpy(at, reinterpret_cast<const void*>(from), given < bytes ? given : bytes);
}
inline void cp_async(unsigned to, unsigned long long from, unsigned bytes) { cp_async(to, from, bytes, bytes); }
// Adds a pending arrival and, the copies being done, arrives: nothing changes.
inline void cp_async_mbarrier_arrive(unsigned) {}

inline int saturate(long long value) {
  return value > 0x7fffffffll ? 0x7fffffff : value < -0x80000000ll ? int(-0x80000000ll) : int(value);
}
inline void add_sat(int& out, int a, int b) { out = saturate((long long)a + b); }
inline void sub_sat(int& out, int a, int b) { out = saturate((long long)a - b); }

}  // namespace ptx
}  // namespace soft_card
