// Mathematical functions, overloaded for float and double as in CUDA C++.
#pragma once

extern "C" int printf(const char*, ...);

// Kernels call these names; a macro keeps g++'s built-in declarations out of the overloads.
#define SOFT_CARD_UNARY(name)                                                        \
  namespace soft_card {                                                              \
  inline float name##_(float x) { return __builtin_##name##f(x); }                   \
  inline double name##_(double x) { return __builtin_##name(x); }                    \
  template <class T> inline double name##_(T x) { return __builtin_##name(double(x)); } \
  }
SOFT_CARD_UNARY(acos)
SOFT_CARD_UNARY(acosh)
SOFT_CARD_UNARY(asin)
SOFT_CARD_UNARY(asinh)
SOFT_CARD_UNARY(atan)
SOFT_CARD_UNARY(atanh)
SOFT_CARD_UNARY(ceil)
SOFT_CARD_UNARY(cos)
SOFT_CARD_UNARY(cosh)
SOFT_CARD_UNARY(erf)
SOFT_CARD_UNARY(exp)
SOFT_CARD_UNARY(floor)
SOFT_CARD_UNARY(log)
SOFT_CARD_UNARY(log1p)
SOFT_CARD_UNARY(rint)
SOFT_CARD_UNARY(round)
SOFT_CARD_UNARY(sin)
SOFT_CARD_UNARY(sinh)
SOFT_CARD_UNARY(sqrt)
SOFT_CARD_UNARY(tan)
SOFT_CARD_UNARY(tanh)
SOFT_CARD_UNARY(trunc)
#undef SOFT_CARD_UNARY

namespace soft_card {
inline float abs_(float x) { return __builtin_fabsf(x); }
inline double abs_(double x) { return __builtin_fabs(x); }
template <class T> inline T abs_(T x) { return x < 0 ? T(-x) : x; }
inline float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma_(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float atan2_(float y, float x) { return __builtin_atan2f(y, x); }
inline double atan2_(double y, double x) { return __builtin_atan2(y, x); }
inline bool isnan_(double x) { return x != x; }
inline bool isinf_(double x) { return __builtin_isinf(x); }
}  // namespace soft_card

#define acos soft_card::acos_
#define acosh soft_card::acosh_
#define asin soft_card::asin_
#define asinh soft_card::asinh_
#define atan soft_card::atan_
#define atanh soft_card::atanh_
#define ceil soft_card::ceil_
#define cos soft_card::cos_
#define cosh soft_card::cosh_
#define erf soft_card::erf_
#define exp soft_card::exp_
#define floor soft_card::floor_
#define log soft_card::log_
#define log1p soft_card::log1p_
#define rint soft_card::rint_
#define round soft_card::round_
#define sin soft_card::sin_
#define sinh soft_card::sinh_
#define sqrt soft_card::sqrt_
#define tan soft_card::tan_
#define tanh soft_card::tanh_
#define trunc soft_card::trunc_
#define abs soft_card::abs_
#define fma soft_card::fma_
#define atan2 soft_card::atan2_
#define isnan soft_card::isnan_
#define isinf soft_card::isinf_
#define hypot __builtin_hypot
#define hypotf __builtin_hypotf
#define pow __builtin_pow
#define powf __builtin_powf

inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline float rhypotf(float x, float y) { return 1.0f / __builtin_hypotf(x, y); }
inline double rhypot(double x, double y) { return 1.0 / __builtin_hypot(x, y); }

// The fast functions are as exact here as the others.
inline float __cosf(float x) { return __builtin_cosf(x); }
inline float __sinf(float x) { return __builtin_sinf(x); }
inline float __expf(float x) { return __builtin_expf(x); }
inline float __logf(float x) { return __builtin_logf(x); }
inline float __tanhf(float x) { return __builtin_tanhf(x); }
inline float __powf(float x, float y) { return __builtin_powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }

// The smaller and the greater of two floats is the one that is not NaN.
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }
#define SOFT_CARD_MIN_MAX(A, B, T)     \
  inline T min(A a, B b) {             \
    T x = a, y = b;                    \
    return y < x ? y : x;              \
  }                                    \
  inline T max(A a, B b) {             \
    T x = a, y = b;                    \
    return x < y ? y : x;              \
  }
SOFT_CARD_MIN_MAX(int, int, int)
SOFT_CARD_MIN_MAX(unsigned, unsigned, unsigned)
SOFT_CARD_MIN_MAX(int, unsigned, unsigned)
SOFT_CARD_MIN_MAX(unsigned, int, unsigned)
SOFT_CARD_MIN_MAX(long, long, long)
SOFT_CARD_MIN_MAX(unsigned long, unsigned long, unsigned long)
SOFT_CARD_MIN_MAX(long long, long long, long long)
SOFT_CARD_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef SOFT_CARD_MIN_MAX

inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned long long __brevll(unsigned long long x) {
  unsigned long long reversed = 0;
  for (int bit = 0; bit < 64; bit++) reversed |= (x >> bit & 1) << (63 - bit);
  return reversed;
}
inline unsigned __brev(unsigned x) { return unsigned(__brevll(x) >> 32); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
