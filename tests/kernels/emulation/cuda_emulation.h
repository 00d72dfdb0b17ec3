// Runs CUDA kernels on the CPU, one fiber a thread, so that CI without a GPU executes the device code itself.
//
// Barriers are exact for kernels in which every thread of a barrier's group reaches the same barriers: the threads of a
// block run one after the other up to their next barrier, in ascending, descending or shuffled order. A missing barrier
// therefore shows as bytes that depend on the order. No timing, no memory model, no textures; one block at a time.
#pragma once

#include <csetjmp>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

using cudaStream_t = void*;

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};

#define __device__
#define __host__
#define __global__ static
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One block runs at a time in one OS thread: a static is what its threads share.
#define __shared__ static

namespace emulation {

constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kSharedBytes = 227 * 1024;

enum Order : int { kAscending = 0, kDescending = 1, kShuffled = 2 };

// Entered once through ucontext, which gives it a stack; switched by setjmp after that, which makes no system call.
struct Fiber {
  std::vector<char> stack;
  jmp_buf at;
  bool entered = false;
};

struct Machine {
  dim3 grid, block;
  unsigned int block_index[3] = {0, 0, 0};
  unsigned int thread_index = 0;
  Order order = kAscending;
  uint64_t random_state = 1;
  std::vector<std::string> launches;
  alignas(16) unsigned char shared[kSharedBytes];
  jmp_buf scheduler;
  std::vector<Fiber> fibers;
  std::vector<char> done;
  std::function<void()> body;
};

inline Machine& machine() {
  static Machine m;
  return m;
}

inline void to_scheduler() {
  Machine& m = machine();
  if (_setjmp(m.fibers[m.thread_index].at) == 0) _longjmp(m.scheduler, 1);
}

// A fiber runs one thread of a block to its end, then waits to be the same thread of another block.
inline void fiber_main() {
  for (;;) {
    Machine& m = machine();
    m.body();
    m.done[m.thread_index] = 1;
    to_scheduler();
  }
}

inline void barrier() { to_scheduler(); }

inline void resume(unsigned int thread) {
  Machine& m = machine();
  m.thread_index = thread;
  Fiber& fiber = m.fibers[thread];
  if (_setjmp(m.scheduler) != 0) return;
  if (fiber.entered) _longjmp(fiber.at, 1);
  fiber.entered = true;
  fiber.stack.resize(kStackBytes);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.data();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, fiber_main, 0);
  setcontext(&context);
}

inline void run_block(unsigned int threads) {
  Machine& m = machine();
  // What a previous block left in shared memory must not help this one: fill it with a signalling pattern.
  std::memset(m.shared, 0xA5, sizeof(m.shared));
  if (m.fibers.size() < threads) m.fibers.resize(threads);
  m.done.assign(threads, 0);
  std::vector<unsigned int> sequence(threads);
  for (unsigned int t = 0; t < threads; ++t) sequence[t] = m.order == kDescending ? threads - 1 - t : t;
  unsigned int remaining = threads;
  while (remaining > 0) {
    if (m.order == kShuffled) {
      for (unsigned int i = threads; i > 1; --i) {
        m.random_state = m.random_state * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(sequence[i - 1], sequence[(m.random_state >> 33) % i]);
      }
    }
    for (unsigned int t : sequence) {
      if (m.done[t]) continue;
      resume(t);
      if (m.done[t]) --remaining;
    }
  }
}

inline void launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> body) {
  Machine& m = machine();
  const unsigned int threads = block.x * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.y != 1 || block.z != 1 || shared_bytes > kSharedBytes || grid.x == 0 ||
      grid.y == 0 || grid.z == 0 || grid.y > 65535) {
    throw std::runtime_error(std::string("invalid launch configuration of ") + name);
  }
  m.launches.emplace_back(name);
  m.grid = grid;
  m.block = block;
  m.body = std::move(body);
  for (unsigned int z = 0; z < grid.z; ++z) {
    for (unsigned int y = 0; y < grid.y; ++y) {
      for (unsigned int x = 0; x < grid.x; ++x) {
        m.block_index[0] = x;
        m.block_index[1] = y;
        m.block_index[2] = z;
        run_block(threads);
      }
    }
  }
}

// What threadIdx, blockIdx, blockDim and gridDim read.
struct Index {
  enum What { kThread, kBlock, kBlockDim, kGridDim } what;
  struct Axis {
    What what;
    int axis;
    operator unsigned int() const {
      const Machine& m = machine();
      switch (what) {
        case kThread: return axis == 0 ? m.thread_index : 0;
        case kBlock: return m.block_index[axis];
        case kBlockDim: return axis == 0 ? m.block.x : axis == 1 ? m.block.y : m.block.z;
        default: return axis == 0 ? m.grid.x : axis == 1 ? m.grid.y : m.grid.z;
      }
    }
  } x, y, z;
  explicit constexpr Index(What w) : what(w), x{w, 0}, y{w, 1}, z{w, 2} {}
};

}  // namespace emulation

static const emulation::Index threadIdx(emulation::Index::kThread);
static const emulation::Index blockIdx(emulation::Index::kBlock);
static const emulation::Index blockDim(emulation::Index::kBlockDim);
static const emulation::Index gridDim(emulation::Index::kGridDim);

inline void __syncthreads() { emulation::barrier(); }
inline void __syncwarp(unsigned int = 0xFFFFFFFFu) { emulation::barrier(); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(value)); }
inline unsigned int __float_as_uint(float value) {
  unsigned int bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __uint_as_float(unsigned int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
template <typename T>
inline T __ldg(const T* pointer) {
  return *pointer;
}
template <typename T>
inline T __ldcs(const T* pointer) {
  return *pointer;
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  const unsigned long long old = *address;
  *address = old + value;
  return old;
}

#define GLQ_DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(emulation::machine().shared)
#define GLQ_UNWRAP(...) __VA_ARGS__
#define GLQ_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  ((void)(stream), emulation::launch(#kernel, grid, block, shared_bytes, [&] { GLQ_UNWRAP kernel(__VA_ARGS__); }))

namespace glq {

inline float half_to_float(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}

inline uint16_t float_to_half(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

inline float2 halves_to_floats(uint32_t word) {
  return {half_to_float(static_cast<uint16_t>(word & 0xFFFFu)), half_to_float(static_cast<uint16_t>(word >> 16))};
}

}  // namespace glq
