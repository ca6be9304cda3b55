// Barriers, shuffles and votes. The mask is ignored: all live lanes take part, as on cards before Volta.
#pragma once

namespace soft_card {

inline unsigned wait_for_warp() {
  unsigned lane;
  services->exchange(nullptr, 0, &lane);
  return lane;
}

// The value of a lane that took no part is undefined on a card. Here all its bits are set, a NaN, so that no
// sum hides it.
template <class T>
inline T slot_of(const Exchange& exchange, unsigned lane) {
  T value;
  if (exchange.lanes >> lane & 1) {
    __builtin_memcpy(&value, exchange.slots[lane], sizeof(T));
  } else {
    __builtin_memset(&value, 0xff, sizeof(T));
  }
  return value;
}

// `source` maps this lane to the one that is read; a lane outside of the warp leaves the value as it is.
template <class T, class Source>
inline T shuffle(T value, Source source) {
  static_assert(sizeof(T) <= sizeof(Exchange::slots[0]), "a shuffled value has at most 64 bytes");
  unsigned lane;
  const Exchange& exchange = *services->exchange(&value, sizeof(T), &lane);
  long from = source(long(lane));
  return from < 0 || from >= long(WARP) ? value : slot_of<T>(exchange, unsigned(from));
}

// A bit for each lane that voted, and whether its vote is `wanted`.
inline unsigned collect_votes(bool vote, bool wanted) {
  unsigned lane, votes = 0;
  const Exchange& exchange = *services->exchange(&vote, sizeof vote, &lane);
  for (unsigned other = 0; other < WARP; other++) {
    bool voted = exchange.lanes >> other & 1;
    votes |= unsigned(voted && bool(exchange.slots[other][0]) == wanted) << other;
  }
  return votes;
}

}  // namespace soft_card

inline void __syncthreads() { soft_card::services->wait_for_block(); }
inline void __syncwarp(unsigned = ~0u) { soft_card::wait_for_warp(); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T>
inline T __shfl_sync(unsigned, T value, int source) {
  return soft_card::shuffle(value, [=](long) { return long(source & 31); });
}
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int mask) {
  return soft_card::shuffle(value, [=](long lane) { return lane ^ long(mask); });
}
template <class T>
inline T __shfl_up_sync(unsigned, T value, unsigned delta) {
  return soft_card::shuffle(value, [=](long lane) { return lane - long(delta); });
}
template <class T>
inline T __shfl_down_sync(unsigned, T value, unsigned delta) {
  return soft_card::shuffle(value, [=](long lane) { return lane + long(delta); });
}
inline unsigned __ballot_sync(unsigned, bool vote) { return soft_card::collect_votes(vote, true); }
inline int __any_sync(unsigned, bool vote) { return soft_card::collect_votes(vote, true) != 0; }
inline int __all_sync(unsigned, bool vote) { return soft_card::collect_votes(vote, false) == 0; }
