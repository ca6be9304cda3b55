// Matrices held by a warp (wmma). How elements spread over lanes is not documented for a card either; here lane l
// holds elements l * N to l * N + N - 1 of the matrix, row by row.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}

template <class Use, int M, int N, int K> struct shape;
template <int M, int N, int K> struct shape<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct shape<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };
template <int M, int N, int K> struct shape<accumulator, M, N, K> { static constexpr int rows = M, columns = N; };

template <class T> struct storage { typedef T type; };
template <> struct storage<precision::tf32> { typedef float type; };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment : shape<Use, M, N, K> {
  typedef typename storage<T>::type element;
  static constexpr int num_elements = fragment::rows * fragment::columns / 32;
  element x[num_elements];
};

inline float __float_to_tf32(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

inline float product_term(float value) { return value; }
inline int product_term(signed char value) { return value; }
inline int product_term(unsigned char value) { return value; }
inline int product_term(char value) { return value; }
inline int product_term(int value) { return value; }

template <class Fragment, class Value>
inline void fill_fragment(Fragment& fragment, Value value) {
  for (auto& element : fragment.x) element = typename Fragment::element(value);
}

// Calls `visit(element, offset)` for each element of this lane, between two barriers of the warp.
template <class Fragment, class Visit>
inline void visit_memory(Fragment& fragment, unsigned stride, bool by_rows, Visit visit) {
  unsigned lane = soft_card::wait_for_warp();
  for (int i = 0; i < Fragment::num_elements; i++) {
    int at = int(lane) * Fragment::num_elements + i;
    unsigned row = at / Fragment::columns, column = at % Fragment::columns;
    visit(fragment.x[i], by_rows ? row * stride + column : column * stride + row);
  }
  soft_card::wait_for_warp();
}

template <class Fragment, class Value>
inline void load(Fragment& fragment, const Value* from, unsigned stride, bool by_rows) {
  static_assert(sizeof(Value) == sizeof(typename Fragment::element), "memory and fragment have one element type");
  visit_memory(fragment, stride, by_rows,
               [=](auto& element, unsigned at) { __builtin_memcpy(&element, from + at, sizeof(Value)); });
}

template <class Use, int M, int N, int K, class T, class Value>
inline void load_matrix_sync(fragment<Use, M, N, K, T, row_major>& out, const Value* from, unsigned stride) {
  load(out, from, stride, true);
}
template <class Use, int M, int N, int K, class T, class Value>
inline void load_matrix_sync(fragment<Use, M, N, K, T, col_major>& out, const Value* from, unsigned stride) {
  load(out, from, stride, false);
}
template <int M, int N, int K, class T, class Value>
inline void load_matrix_sync(fragment<accumulator, M, N, K, T>& out, const Value* from, unsigned stride,
                             layout_t layout) {
  load(out, from, stride, layout == mem_row_major);
}

template <class Value, int M, int N, int K, class T>
inline void store_matrix_sync(Value* to, const fragment<accumulator, M, N, K, T>& from, unsigned stride,
                              layout_t layout) {
  static_assert(sizeof(Value) == sizeof(T), "memory and fragment have one element type");
  visit_memory(from, stride, layout == mem_row_major,
               [=](auto& element, unsigned at) { __builtin_memcpy(to + at, &element, sizeof(Value)); });
}

template <int M, int N, int K, class D, class A, class B, class C, class LayoutA, class LayoutB>
inline void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, A, LayoutA>& a,
                     const fragment<matrix_b, M, N, K, B, LayoutB>& b, const fragment<accumulator, M, N, K, C>& c) {
  struct Shown {
    fragment<matrix_a, M, N, K, A, LayoutA> a;
    fragment<matrix_b, M, N, K, B, LayoutB> b;
  };
  static_assert(sizeof(Shown) <= sizeof(soft_card::Exchange::slots[0]), "both fragments fit into a slot");
  Shown mine = {a, b};
  unsigned lane;
  const soft_card::Exchange& exchange = *soft_card::services->exchange(&mine, sizeof mine, &lane);
  auto shown = [&](int of_lane) -> const Shown& { return *reinterpret_cast<const Shown*>(exchange.slots[of_lane]); };
  for (int i = 0; i < d.num_elements; i++) {
    int at = int(lane) * d.num_elements + i, row = at / N, column = at % N;
    auto sum = product_term(c.x[i]) + 0;
    for (int k = 0; k < K; k++) {
      int in_a = row * K + k, in_b = k * N + column;
      sum += product_term(shown(in_a / a.num_elements).a.x[in_a % a.num_elements])
           * product_term(shown(in_b / b.num_elements).b.x[in_b % b.num_elements]);
    }
    d.x[i] = D(sum);
  }
}

}  // namespace wmma
}  // namespace nvcuda
