// Atomic operations on global and shared memory; streams run side by side, so these are atomic in fact.
#pragma once

namespace soft_card {

template <unsigned BYTES> struct Word;
template <> struct Word<2> { typedef unsigned short Type; };
template <> struct Word<4> { typedef unsigned int Type; };
template <> struct Word<8> { typedef unsigned long long Type; };

// Replaces the value by `change(old)` and returns the old one.
template <class T, class Change>
inline T update(T* at, Change change) {
  typedef typename Word<sizeof(T)>::Type Bits;
  Bits* word = reinterpret_cast<Bits*>(at);
  Bits seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    T old;
    __builtin_memcpy(&old, &seen, sizeof(T));
    T next = change(old);
    Bits wanted;
    __builtin_memcpy(&wanted, &next, sizeof(T));
    if (__atomic_compare_exchange_n(word, &seen, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return old;
  }
}

template <class T> struct Same { typedef T Type; };

}  // namespace soft_card

#define SOFT_CARD_ATOMIC(name, result)                                                  \
  template <class T>                                                                    \
  inline T name(T* at, typename soft_card::Same<T>::Type value) {                       \
    return soft_card::update(at, [&](T old) { return T(result); });                     \
  }
SOFT_CARD_ATOMIC(atomicAdd, old + value)
SOFT_CARD_ATOMIC(atomicSub, old - value)
SOFT_CARD_ATOMIC(atomicAnd, old & value)
SOFT_CARD_ATOMIC(atomicOr, old | value)
SOFT_CARD_ATOMIC(atomicXor, old ^ value)
SOFT_CARD_ATOMIC(atomicMax, old < value ? value : old)
SOFT_CARD_ATOMIC(atomicMin, value < old ? value : old)
SOFT_CARD_ATOMIC(atomicExch, value)
#undef SOFT_CARD_ATOMIC

template <class T>
inline T atomicCAS(T* at, typename soft_card::Same<T>::Type expected, typename soft_card::Same<T>::Type value) {
  return soft_card::update(at, [&](T old) { return old == expected ? value : old; });
}
