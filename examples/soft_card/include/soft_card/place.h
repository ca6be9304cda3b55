// Where a thread stands in the grid, and the driver's services to it. `driver/abi.rs` has the same layouts.
#pragma once

namespace soft_card {

struct Place {
  uint3 thread, block, block_dim, grid_dim;
  unsigned char* shared;
};

constexpr unsigned WARP = 32;

// Values that the lanes of a warp show to each other in one step.
struct Exchange {
  unsigned lanes;  // a bit for each lane that took part, also if it has ended since
  alignas(16) unsigned char slots[WARP][64];
};

struct Services {
  // Returns once every live lane of the warp has called it.
  const Exchange* (*exchange)(const void* value, unsigned bytes, unsigned* lane);
  // Returns once every live thread of the block has called it.
  void (*wait_for_block)();
  // Lets the other threads of the block run.
  void (*yield)();
  // Returns once no lane of the warp waits at an earlier place of the kernel's text.
  void (*keep_step)(unsigned place);
  unsigned char* (*shared_memory)();
};

static const Services* services;

}  // namespace soft_card

#define threadIdx soft_card_place.thread
#define blockIdx soft_card_place.block
#define blockDim soft_card_place.block_dim
#define gridDim soft_card_place.grid_dim
static constexpr int warpSize = soft_card::WARP;
