// How the driver calls a kernel. `driver/abi.rs` has the same layout.
#pragma once

namespace soft_card {

struct Kernel {
  unsigned parameter_count;
  const unsigned* parameter_sizes;
  // Threads of this kernel wait for each other: each one needs a stack of its own.
  unsigned has_waits;
  void (*run_thread)(const Place*, void** arguments);
  void (*run_block)(const Place*, void** arguments);
  const Services** services;
};

template <size_t... INDEX> struct Indices {};

template <auto FUNCTION> struct Entry;

template <class... Parameter, void (*FUNCTION)(const Place&, Parameter...)>
struct Entry<FUNCTION> {
  template <size_t... INDEX>
  static inline __attribute__((always_inline)) void call(const Place& place, void** arguments, Indices<INDEX...>) {
    (void)arguments;
    FUNCTION(place, *static_cast<Parameter*>(arguments[INDEX])...);
  }

  static void run_thread(const Place* place, void** arguments) {
    call(*place, arguments, Indices<__integer_pack(sizeof...(Parameter))...>());
  }

  static void run_block(const Place* first, void** arguments) {
    Place place = *first;
    for (place.thread.z = 0; place.thread.z < first->block_dim.z; place.thread.z++)
      for (place.thread.y = 0; place.thread.y < first->block_dim.y; place.thread.y++)
        for (unsigned x = 0; x < first->block_dim.x; x++) {
          place.thread.x = x;
          call(place, arguments, Indices<__integer_pack(sizeof...(Parameter))...>());
        }
  }

  static constexpr unsigned sizes[sizeof...(Parameter) + 1] = {sizeof(Parameter)..., 0};

  static constexpr Kernel describe(unsigned has_waits) {
    return {sizeof...(Parameter), sizes, has_waits, run_thread, run_block, &services};
  }
};

}  // namespace soft_card

#define SOFT_CARD_KERNEL(name, has_waits)                                                       \
  extern "C" __attribute__((visibility("default"))) const soft_card::Kernel soft_card_kernel_##name = \
      soft_card::Entry<&name>::describe(has_waits);
