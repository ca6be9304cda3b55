// Qualifiers and vector types of CUDA C++.
#pragma once

#define __host__
#define __device__
#define __global__
#define __constant__ const
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
// A block runs on one thread of the operating system. `extern __shared__` is rewritten before compilation.
#define __shared__ static thread_local

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#define SOFT_CARD_VECTORS(element, name)                                                                      \
  struct name##1 { element x; };                                                                              \
  struct __align__(2 * sizeof(element)) name##2 { element x, y; };                                            \
  struct name##3 { element x, y, z; };                                                                        \
  struct __align__(sizeof(element) > 4 ? 16 : 4 * sizeof(element)) name##4 { element x, y, z, w; };           \
  inline name##2 make_##name##2(element x, element y) { return {x, y}; }                                      \
  inline name##3 make_##name##3(element x, element y, element z) { return {x, y, z}; }                        \
  inline name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; }

SOFT_CARD_VECTORS(signed char, char)
SOFT_CARD_VECTORS(unsigned char, uchar)
SOFT_CARD_VECTORS(short, short)
SOFT_CARD_VECTORS(unsigned short, ushort)
SOFT_CARD_VECTORS(int, int)
SOFT_CARD_VECTORS(unsigned int, uint)
SOFT_CARD_VECTORS(long, long)
SOFT_CARD_VECTORS(unsigned long, ulong)
SOFT_CARD_VECTORS(long long, longlong)
SOFT_CARD_VECTORS(unsigned long long, ulonglong)
SOFT_CARD_VECTORS(float, float)
SOFT_CARD_VECTORS(double, double)
#undef SOFT_CARD_VECTORS
