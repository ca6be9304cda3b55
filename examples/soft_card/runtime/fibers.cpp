// Runs a block whose threads wait for each other: each thread has a stack and runs until it has to wait.
//
// A warp goes on as far as it can before the next one starts. An exchange between lanes is complete once all lanes
// that have not ended, and do not wait for the block, take part in it. Of the lanes that keep in step, those at the
// earliest place of the kernel's text go on first. This is C++ so that it is optimised in debug builds too; the driver
// compiles it once and hands its services to every kernel.
#include <stddef.h>
#include <sys/mman.h>
#include <soft_card/language.h>
#include <soft_card/place.h>

#ifndef __x86_64__
#error "the soft card switches between stacks on x86_64 only"
#endif

using namespace soft_card;

namespace {

constexpr unsigned THREADS = 1024;
constexpr size_t STACK = 256 << 10;
// Rounds in which threads only give way before the block counts as stuck.
constexpr unsigned PATIENCE = 10000;

enum State : unsigned char { READY, IN_EXCHANGE, AT_BARRIER, GIVES_WAY, KEEPS_STEP, ENDED };

typedef void (*Run)(const Place*, void** arguments);

// A warp's exchanges: one is filled while lanes may still read the other.
struct Warp {
  Exchange exchanges[2];
  unsigned filling;
};

// The threads of the block that runs on this thread of the operating system.
struct Team {
  unsigned char* stacks;
  void* scheduler;
  Run run;
  void** arguments;
  unsigned running, count;
  unsigned end;          // of the warp that runs
  bool has_progressed;  // whether a lane of it did more than give way
  State states[THREADS];
  void* at[THREADS];  // where each thread's stack was left
  unsigned steps[THREADS];  // the place of the kernel where each thread keeps in step
  Place places[THREADS];
  Warp warps[THREADS / WARP];
};

// The model of the variables of a program makes a read one instruction; a library has room for a few of them.
thread_local Team* team __attribute__((tls_model("initial-exec")));

// Saves this stack's pointer and the registers that belong to callers, and goes on with the other stack. It jumps,
// since a processor predicts the target of a `ret` from calls on this stack.
extern "C" void soft_card_switch(void** save, void* to) __attribute__((visibility("hidden")));
asm(R"(
.text
.hidden soft_card_switch
.globl soft_card_switch
.type soft_card_switch, @function
soft_card_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rdx
  jmpq *%rdx
.size soft_card_switch, . - soft_card_switch
)");

// Leaves the running thread, which goes on when it is ready again, for the next lane of its warp, or the scheduler.
void suspend(State state) {
  Team& here = *team;
  unsigned left = here.running, next = left + 1;
  here.states[left] = state;
  here.has_progressed |= state != GIVES_WAY;
  while (next < here.end && here.states[next] != READY) next++;
  here.running = next;
  soft_card_switch(&here.at[left], next < here.end ? here.at[next] : here.scheduler);
}

void begin_thread() {
  team->run(&team->places[team->running], team->arguments);
  for (;;) suspend(ENDED);
}

const Exchange* exchange(const void* value, unsigned bytes, unsigned* lane) {
  unsigned own = team->running % WARP;
  Warp& warp = team->warps[team->running / WARP];
  Exchange& filled = warp.exchanges[warp.filling];
  filled.lanes |= 1u << own;
  *lane = own;
  // Copies of a known size need no call.
  if (bytes == 4) {
    __builtin_memcpy(filled.slots[own], value, 4);
  } else if (bytes > 0) {
    __builtin_memcpy(filled.slots[own], value, bytes);
  }
  suspend(IN_EXCHANGE);
  return &filled;
}

void wait_for_block() { suspend(AT_BARRIER); }
void give_way() { suspend(GIVES_WAY); }
void keep_step(unsigned place) {
  team->steps[team->running] = place;
  suspend(KEEPS_STEP);
}
unsigned char* shared_memory() { return team->places[0].shared; }

bool prepare(Run run, const Place& place, void** arguments) {
  if (!team) {
    void* stacks = mmap(nullptr, STACK * THREADS, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return false;
    team = new Team();
    team->stacks = static_cast<unsigned char*>(stacks);
  }
  team->run = run;
  team->arguments = arguments;
  team->count = place.block_dim.x * place.block_dim.y * place.block_dim.z;
  for (unsigned i = 0; i < team->count; i++) {
    team->states[i] = READY;
    team->places[i] = place;
    team->places[i].thread = {i % place.block_dim.x, i / place.block_dim.x % place.block_dim.y,
                              i / place.block_dim.x / place.block_dim.y};
    // Stacks start at different offsets, or all their first lines would share a few sets of the cache. Below the
    // top lie the address that a switch jumps to, at a multiple of 16 as after a call, and six registers.
    void** top = reinterpret_cast<void**>(team->stacks + STACK * (i + 1) - 64 - i % 32 * 128);
    top[-2] = reinterpret_cast<void*>(begin_thread);
    team->at[i] = top - 8;
  }
  for (unsigned i = 0; i * WARP < team->count; i++) {
    Warp& warp = team->warps[i];
    warp.exchanges[0].lanes = warp.exchanges[1].lanes = warp.filling = 0;
  }
  return true;
}

// Runs the lanes of a warp until all wait for something outside of it. Returns whether one did more than give way.
bool run_warp(unsigned first, unsigned end) {
  Team& here = *team;
  here.end = end;
  here.has_progressed = false;
  for (;;) {
    unsigned ready = first;
    while (ready < end && here.states[ready] != READY) ready++;
    if (ready < end) {
      here.running = ready;
      soft_card_switch(&here.scheduler, here.at[ready]);
    }
    bool in_exchange = false, gives_way = false;
    unsigned earliest = ~0u;
    for (unsigned i = first; i < end; i++) {
      in_exchange |= here.states[i] == IN_EXCHANGE;
      gives_way |= here.states[i] == GIVES_WAY;
      if (here.states[i] == KEEPS_STEP && here.steps[i] < earliest) earliest = here.steps[i];
    }
    if (earliest != ~0u) {
      for (unsigned i = first; i < end; i++)
        if (here.states[i] == KEEPS_STEP && here.steps[i] == earliest) here.states[i] = READY;
      continue;
    }
    if (gives_way || !in_exchange) return here.has_progressed;
    Warp& warp = here.warps[first / WARP];
    warp.filling ^= 1;
    warp.exchanges[warp.filling].lanes = 0;
    for (unsigned i = first; i < end; i++)
      if (here.states[i] == IN_EXCHANGE) here.states[i] = READY;
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const Services soft_card_services = {exchange, wait_for_block,
                                                                                      give_way, keep_step, shared_memory};

// Runs one block, with `place` but for the thread in it. Returns 0, or 1 if its threads wait for each other for ever.
extern "C" __attribute__((visibility("default"))) int soft_card_run_waiting_block(Run run, const Place* place,
                                                                                  void** arguments) {
  if (!prepare(run, *place, arguments)) return 1;
  for (unsigned idle_rounds = 0; idle_rounds <= PATIENCE; idle_rounds++) {
    for (unsigned first = 0; first < team->count; first += WARP) {
      unsigned end = first + WARP < team->count ? first + WARP : team->count;
      if (run_warp(first, end)) idle_rounds = 0;
    }
    unsigned ended = 0, at_barrier = 0;
    for (unsigned i = 0; i < team->count; i++) {
      ended += team->states[i] == ENDED;
      at_barrier += team->states[i] == AT_BARRIER;
    }
    if (ended == team->count) return 0;
    bool is_complete = ended + at_barrier == team->count;
    if (is_complete) idle_rounds = 0;
    for (unsigned i = 0; i < team->count; i++)
      if (team->states[i] == GIVES_WAY || (is_complete && team->states[i] == AT_BARRIER)) team->states[i] = READY;
  }
  return 1;
}
