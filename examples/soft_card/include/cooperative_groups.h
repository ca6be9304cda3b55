// Groups of threads, as far as asynchronous copies name them.
#pragma once
#include <stddef.h>

namespace cooperative_groups {

struct thread_block {
  void sync() const { soft_card::services->wait_for_block(); }
};
struct thread_group_of_one {};

inline thread_block this_thread_block() { return {}; }
inline thread_group_of_one this_thread() { return {}; }

// Copies at once, which a card may do too. Threads of a block copy the same bytes, each all of them.
template <class Group, class To, class From>
inline void memcpy_async(const Group&, To* to, const From* from, size_t bytes) {
  __builtin_memcpy(to, from, bytes);
}
inline void wait(const thread_group_of_one&) {}
inline void wait(const thread_block& block) { block.sync(); }

}  // namespace cooperative_groups
