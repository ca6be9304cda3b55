// Sixteen-bit floats: every operation is done in float and rounded to nearest even, which is exact for + - * /.
#pragma once

namespace soft_card {

struct HalfFormat {
  static unsigned short pack(float value) {
    _Float16 half = _Float16(value);
    unsigned short bits;
    __builtin_memcpy(&bits, &half, 2);
    return bits;
  }
  static float unpack(unsigned short bits) {
    _Float16 half;
    __builtin_memcpy(&half, &bits, 2);
    return float(half);
  }
};

struct Bfloat16Format {
  static unsigned short pack(float value) {
    unsigned bits;
    __builtin_memcpy(&bits, &value, 4);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? 0x7fff : (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  }
  static float unpack(unsigned short bits) {
    unsigned wide = unsigned(bits) << 16;
    float value;
    __builtin_memcpy(&value, &wide, 4);
    return value;
  }
};

// A double or a long integer reaches sixteen bits through a float that is rounded to odd, so it is rounded once.
inline float round_to_odd(double value) {
  float near = float(value);
  if (double(near) == value || near != near || __builtin_isinf(near)) return near;
  unsigned bits;
  __builtin_memcpy(&bits, &near, 4);
  bool is_too_far = (double(near) > value) == (value > 0);
  bits = (is_too_far ? bits - 1 : bits) | 1;
  __builtin_memcpy(&near, &bits, 4);
  return near;
}

template <class Format>
struct Float16 {
  unsigned short bits;

  Float16() = default;
  Float16(float value) : bits(Format::pack(value)) {}
  Float16(double value) : bits(Format::pack(round_to_odd(value))) {}
  Float16(bool value) : Float16(float(value)) {}
  Float16(signed char value) : Float16(float(value)) {}
  Float16(unsigned char value) : Float16(float(value)) {}
  Float16(short value) : Float16(float(value)) {}
  Float16(unsigned short value) : Float16(float(value)) {}
  Float16(int value) : Float16(double(value)) {}
  Float16(unsigned value) : Float16(double(value)) {}
  Float16(long value) : Float16(double(value)) {}
  Float16(unsigned long value) : Float16(double(value)) {}
  Float16(long long value) : Float16(double(value)) {}
  Float16(unsigned long long value) : Float16(double(value)) {}
  template <class Other>
  explicit Float16(Float16<Other> value) : Float16(float(value)) {}

  operator float() const { return Format::unpack(bits); }

  friend Float16 operator+(Float16 a, Float16 b) { return float(a) + float(b); }
  friend Float16 operator-(Float16 a, Float16 b) { return float(a) - float(b); }
  friend Float16 operator*(Float16 a, Float16 b) { return float(a) * float(b); }
  friend Float16 operator/(Float16 a, Float16 b) { return float(a) / float(b); }
  friend Float16 operator-(Float16 a) { return -float(a); }
  Float16& operator+=(Float16 b) { return *this = *this + b; }
  Float16& operator-=(Float16 b) { return *this = *this - b; }
  Float16& operator*=(Float16 b) { return *this = *this * b; }
  Float16& operator/=(Float16 b) { return *this = *this / b; }
  friend bool operator==(Float16 a, Float16 b) { return float(a) == float(b); }
  friend bool operator!=(Float16 a, Float16 b) { return float(a) != float(b); }
  friend bool operator<(Float16 a, Float16 b) { return float(a) < float(b); }
  friend bool operator<=(Float16 a, Float16 b) { return float(a) <= float(b); }
  friend bool operator>(Float16 a, Float16 b) { return float(a) > float(b); }
  friend bool operator>=(Float16 a, Float16 b) { return float(a) >= float(b); }
};

template <class Format>
struct alignas(4) Float16x2 {
  Float16<Format> x, y;


  friend Float16x2 operator+(Float16x2 a, Float16x2 b) { return {a.x + b.x, a.y + b.y}; }
  friend Float16x2 operator-(Float16x2 a, Float16x2 b) { return {a.x - b.x, a.y - b.y}; }
  friend Float16x2 operator*(Float16x2 a, Float16x2 b) { return {a.x * b.x, a.y * b.y}; }
  friend Float16x2 operator/(Float16x2 a, Float16x2 b) { return {a.x / b.x, a.y / b.y}; }
  friend Float16x2 operator-(Float16x2 a) { return {-a.x, -a.y}; }
  friend bool operator==(Float16x2 a, Float16x2 b) { return a.x == b.x && a.y == b.y; }
  friend bool operator!=(Float16x2 a, Float16x2 b) { return !(a == b); }
};

template <class F>
inline Float16<F> fma_(Float16<F> a, Float16<F> b, Float16<F> c) {
  return Float16<F>(double(float(a)) * double(float(b)) + double(float(c)));
}
template <class F>
inline Float16x2<F> fma_(Float16x2<F> a, Float16x2<F> b, Float16x2<F> c) {
  return {fma_(a.x, b.x, c.x), fma_(a.y, b.y, c.y)};
}
template <class F>
inline Float16<F> abs_(Float16<F> a) { return __builtin_fabsf(float(a)); }

}  // namespace soft_card

#define SOFT_CARD_HALF_FUNCTION(name, result)                                                        \
  template <class F>                                                                                 \
  inline soft_card::Float16<F> h##name(soft_card::Float16<F> a) {                                    \
    float x = a;                                                                                     \
    return soft_card::Float16<F>(result);                                                            \
  }                                                                                                  \
  template <class F>                                                                                 \
  inline soft_card::Float16x2<F> h2##name(soft_card::Float16x2<F> a) { return {h##name(a.x), h##name(a.y)}; }
SOFT_CARD_HALF_FUNCTION(ceil, __builtin_ceilf(x))
SOFT_CARD_HALF_FUNCTION(cos, __builtin_cosf(x))
SOFT_CARD_HALF_FUNCTION(exp, __builtin_expf(x))
SOFT_CARD_HALF_FUNCTION(floor, __builtin_floorf(x))
SOFT_CARD_HALF_FUNCTION(log, __builtin_logf(x))
SOFT_CARD_HALF_FUNCTION(rcp, 1.0f / x)
SOFT_CARD_HALF_FUNCTION(rint, __builtin_rintf(x))
SOFT_CARD_HALF_FUNCTION(rsqrt, 1.0f / __builtin_sqrtf(x))
SOFT_CARD_HALF_FUNCTION(sin, __builtin_sinf(x))
SOFT_CARD_HALF_FUNCTION(sqrt, __builtin_sqrtf(x))
SOFT_CARD_HALF_FUNCTION(trunc, __builtin_truncf(x))
#undef SOFT_CARD_HALF_FUNCTION

template <class F>
inline soft_card::Float16<F> __hmin(soft_card::Float16<F> a, soft_card::Float16<F> b) {
  return __builtin_fminf(a, b);
}
template <class F>
inline soft_card::Float16<F> __hmax(soft_card::Float16<F> a, soft_card::Float16<F> b) {
  return __builtin_fmaxf(a, b);
}
template <class F>
inline soft_card::Float16x2<F> __hmin2(soft_card::Float16x2<F> a, soft_card::Float16x2<F> b) {
  return {__hmin(a.x, b.x), __hmin(a.y, b.y)};
}
template <class F>
inline soft_card::Float16x2<F> __hmax2(soft_card::Float16x2<F> a, soft_card::Float16x2<F> b) {
  return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}
template <class F>
inline soft_card::Float16<F> __hfma(soft_card::Float16<F> a, soft_card::Float16<F> b, soft_card::Float16<F> c) {
  return soft_card::fma_(a, b, c);
}
template <class F>
inline soft_card::Float16x2<F> __hfma2(soft_card::Float16x2<F> a, soft_card::Float16x2<F> b,
                                       soft_card::Float16x2<F> c) {
  return soft_card::fma_(a, b, c);
}
template <class F>
inline soft_card::Float16<F> __habs(soft_card::Float16<F> a) { return soft_card::abs_(a); }
template <class F>
inline bool __hisnan(soft_card::Float16<F> a) { return float(a) != float(a); }
template <class F>
inline int __hisinf(soft_card::Float16<F> a) { return __builtin_isinf(float(a)); }
