// Runs CUDA kernels on the CPU, one fiber a thread, so that CI without a GPU executes the device code itself.
//
// The threads of a block run one after the other up to their next barrier, in ascending, descending or shuffled order; a
// thread goes on when all threads of its warp, or of its block, that still run have reached that barrier. A missing barrier
// therefore shows as bytes that depend on the order. Shuffles and tensor-core products are exchanges between two barriers of
// a warp. No timing, no memory model, no textures. The blocks of a cluster run together, each with a part of the shared memory.
// Clusters (blocks alone, where a launch has none) run one after the other, or, in a cooperative launch, in turn: one goes on
// until its threads wait for another's, and each has its own copy of what is shared.
#pragma once

#include <csetjmp>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using cudaStream_t = void*;
using std::max;
using std::min;

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
struct alignas(8) uint2 {
  unsigned int x, y;
};
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }

#define __device__
#define __host__
#define __global__ static
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One block runs at a time in one OS thread: a static is what its threads share. (Where blocks run in turn, see
// GLQ_STATIC_SHARED.)
#define __shared__ static

namespace emulation {

constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kSharedBytes = 227 * 1024;
constexpr size_t kStaticBytes = 32 * 1024;

enum Order : int { kAscending = 0, kDescending = 1, kShuffled = 2 };

// Entered once through ucontext, which gives it a stack; switched by setjmp after that, which makes no system call.
struct Fiber {
  std::unique_ptr<char[]> stack;  // its pages come as they are touched
  jmp_buf at;
  bool entered = false;
};

// What a thread waits for.
enum class Wait : char { kNothing, kWarp, kBlock, kCluster, kOther };

struct Machine {
  dim3 grid, block;
  unsigned int block_index[3] = {0, 0, 0};
  unsigned int thread_index = 0;
  unsigned int cluster = 1;  // blocks along x that run together
  unsigned int fiber = 0;    // of this thread: (block of the cluster, thread_index)
  Order order = kAscending;
  uint64_t random_state = 1;
  std::vector<std::string> launches;
  alignas(16) unsigned char shared[kSharedBytes];
  std::vector<unsigned char> statics;  // kStaticBytes for each block of the cluster
  jmp_buf scheduler;
  std::vector<Fiber> fibers;
  std::vector<char> done;
  std::vector<Wait> waits;
  std::vector<std::array<uint32_t[8], 32>> exchange;  // of a warp's lanes
  bool cooperative = false;                           // the launch that runs
  bool moved = false;  // a thread came further than to look again at what is missing
  std::function<void()> body;
  std::string failure;  // of a thread: an exception does not leave a fiber
};

inline Machine& machine() {
  static Machine m;
  return m;
}

inline void to_scheduler() {
  Machine& m = machine();
  if (_setjmp(m.fibers[m.fiber].at) == 0) _longjmp(m.scheduler, 1);
}

// A fiber runs one thread of a block to its end, then waits to be the same thread of another block.
inline void fiber_main() {
  for (;;) {
    Machine& m = machine();
    m.body();
    m.done[m.fiber] = 1;
    to_scheduler();
  }
}

inline void barrier(Wait what) {
  Machine& m = machine();
  m.waits[m.fiber] = what;
  to_scheduler();
}

// Lets go on whoever waits for a group that has arrived in full; false when nobody can. `threads`: of a block.
inline bool release(unsigned int threads) {
  Machine& m = machine();
  bool any = false;
  auto group = [&](unsigned int begin, unsigned int end, Wait what) {
    bool arrived = true;
    for (unsigned int t = begin; t < end; ++t) arrived = arrived && (m.done[t] || m.waits[t] == what);
    for (unsigned int t = begin; t < end && arrived; ++t) {
      if (m.done[t]) continue;
      m.waits[t] = Wait::kNothing;
      any = true;
    }
  };
  for (unsigned int block = 0; block < m.cluster * threads; block += threads) {
    const unsigned int end = block + threads;
    for (unsigned int warp = block; warp < end; warp += 32) group(warp, std::min(warp + 32, end), Wait::kWarp);
    group(block, end, Wait::kBlock);
  }
  if (m.cluster > 1) group(0, m.cluster * threads, Wait::kCluster);
  return any;
}

inline void resume(unsigned int index, unsigned int threads) {
  Machine& m = machine();
  m.fiber = index;
  m.thread_index = index % threads;
  m.block_index[0] = m.block_index[0] / m.cluster * m.cluster + index / threads;
  Fiber& fiber = m.fibers[index];
  if (_setjmp(m.scheduler) != 0) return;
  if (fiber.entered) _longjmp(fiber.at, 1);
  fiber.entered = true;
  fiber.stack.reset(new char[kStackBytes]);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, fiber_main, 0);
  setcontext(&context);
}

// A cluster of blocks between two turns.
struct Parked {
  std::vector<Fiber> fibers;
  std::vector<char> done;
  std::vector<Wait> waits;
  std::vector<std::array<uint32_t[8], 32>> exchange;
  std::vector<unsigned char> dynamic, statics;
};

inline void swap_with(Parked& cluster) {
  Machine& m = machine();
  std::swap(cluster.fibers, m.fibers);
  std::swap(cluster.done, m.done);
  std::swap(cluster.waits, m.waits);
  std::swap(cluster.exchange, m.exchange);
  std::swap(cluster.statics, m.statics);
  std::swap_ranges(cluster.dynamic.begin(), cluster.dynamic.end(), m.shared);
}

// What this thread waits for another block will write; false when no block will.
inline bool let_others_run() {
  Machine& m = machine();
  if (!m.cooperative) {
    m.failure = "a thread block waits for one that has not run";
    return false;
  }
  m.waits[m.fiber] = Wait::kOther;
  to_scheduler();
  return m.failure.empty();
}

inline uint64_t random_number() {
  uint64_t& state = machine().random_state;
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return state >> 33;
}

// Before a cluster's first turn; `fibers`: threads of all of its blocks.
inline void begin_cluster(unsigned int fibers) {
  Machine& m = machine();
  // What a previous block left in shared memory must not help this one: fill it with a signalling pattern.
  std::memset(m.shared, 0xA5, sizeof(m.shared));
  m.statics.assign(m.cluster * kStaticBytes, 0xA5);
  if (m.fibers.size() < fibers) m.fibers.resize(fibers);
  if (m.exchange.size() < (fibers + 31) / 32) m.exchange.resize((fibers + 31) / 32);
  m.done.assign(fibers, 0);
  m.waits.assign(fibers, Wait::kNothing);
}

// Runs the cluster of blocks, or the block alone, that block_index is of, until its threads are done, or wait for other
// clusters; whether they are done. `threads`: of a block.
inline bool run_cluster(unsigned int threads) {
  Machine& m = machine();
  const unsigned int fibers = m.cluster * threads;
  std::vector<unsigned int> sequence(fibers);
  for (unsigned int t = 0; t < fibers; ++t) sequence[t] = m.order == kDescending ? fibers - 1 - t : t;
  std::vector<char> looking(fibers, 0);
  for (;;) {
    // A block that waits for one of its own cluster looks again as long as any thread here comes further.
    bool any = false;
    for (unsigned int t = 0; t < fibers; ++t) {
      looking[t] = m.waits[t] == Wait::kOther;
      if (looking[t]) m.waits[t] = Wait::kNothing;
    }
    for (;;) {
      if (m.order == kShuffled) {
        for (unsigned int i = fibers; i > 1; --i) std::swap(sequence[i - 1], sequence[random_number() % i]);
      }
      for (unsigned int t : sequence) {
        if (m.done[t] || m.waits[t] != Wait::kNothing) continue;
        resume(t, threads);
        any = any || looking[t] == 0 || m.waits[t] != Wait::kOther;
      }
      bool done = true, waits = false;
      for (unsigned int t = 0; t < fibers; ++t) {
        done = done && m.done[t];
        waits = waits || (!m.done[t] && m.waits[t] == Wait::kOther);
      }
      m.moved = m.moved || any;
      if (done) return true;
      if (release(threads)) continue;
      if (waits) break;
      throw std::runtime_error("the threads of a block wait at different barriers");
    }
    if (m.cluster == 1 || !any) return false;
  }
}

// All clusters in turn, in an order drawn anew for each round.
inline void run_together(unsigned int clusters, unsigned int threads) {
  Machine& m = machine();
  std::vector<Parked> parked(clusters);
  std::vector<unsigned int> left(clusters);
  for (unsigned int c = 0; c < clusters; ++c) {
    left[c] = c;
    parked[c].dynamic.resize(sizeof(m.shared));
    swap_with(parked[c]);
    begin_cluster(m.cluster * threads);
    swap_with(parked[c]);
  }
  int still = 0;  // rounds without progress; one is none yet, as a thread may look at what has come only in the next
  while (!left.empty()) {
    for (size_t i = left.size(); i > 1; --i) std::swap(left[i - 1], left[random_number() % i]);
    m.moved = false;
    for (size_t i = 0; i < left.size();) {
      m.block_index[0] = left[i] * m.cluster;
      swap_with(parked[left[i]]);
      const bool done = run_cluster(threads);
      swap_with(parked[left[i]]);
      if (done) {
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    still = m.moved ? 0 : still + 1;
    if (still > 1 && !left.empty()) {
      if (!m.failure.empty()) throw std::runtime_error(m.failure);
      m.failure = "thread blocks wait for words that nobody writes";  // let_others_run() gives up, and the blocks end
    }
  }
}

// What was asked for one launch is not for the next; threads that an error stopped in the middle do not go on there.
struct OneLaunch {
  ~OneLaunch() {
    machine().cooperative = false;
    if (std::uncaught_exceptions() > 0) machine().fibers.clear();
  }
};

inline void launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> body,
                   unsigned int cluster = 1) {
  const OneLaunch ends;
  Machine& m = machine();
  const unsigned int threads = block.x * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.y != 1 || block.z != 1 || shared_bytes > kSharedBytes / cluster ||
      grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.x % cluster != 0 || (cluster > 1 && threads % 32 != 0)) {
    throw std::runtime_error(std::string("invalid launch configuration of ") + name);
  }
  m.launches.emplace_back(name);
  m.failure.clear();
  m.grid = grid;
  m.block = block;
  m.body = std::move(body);
  m.cluster = cluster;
  m.block_index[1] = m.block_index[2] = 0;
  if (m.cooperative) run_together(grid.x / cluster, threads);
  for (unsigned int z = 0; z < grid.z && !m.cooperative; ++z) {
    for (unsigned int y = 0; y < grid.y; ++y) {
      for (unsigned int x = 0; x < grid.x; x += cluster) {
        m.block_index[0] = x;
        m.block_index[1] = y;
        m.block_index[2] = z;
        begin_cluster(cluster * threads);
        run_cluster(threads);
      }
    }
  }
  if (!m.failure.empty()) throw std::runtime_error(m.failure);
}

// The shared memory of a block of the cluster: its own part by default.
inline unsigned char* shared_memory(unsigned int rank) {
  Machine& m = machine();
  return m.shared + rank * (kSharedBytes / m.cluster / 256 * 256);
}
inline unsigned char* shared_memory() { return shared_memory(machine().block_index[0] % machine().cluster); }
inline unsigned char* static_memory() {
  Machine& m = machine();
  return m.statics.data() + m.block_index[0] % m.cluster * kStaticBytes;
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

inline void __syncthreads() { emulation::barrier(emulation::Wait::kBlock); }
inline void __syncwarp(unsigned int = 0xFFFFFFFFu) { emulation::barrier(emulation::Wait::kWarp); }

namespace emulation {

// Every lane of the warp gives its words, then read(lanes) sees those of all.
template <typename Read>
inline auto exchanged(std::initializer_list<uint32_t> words, Read read) {
  Machine& m = machine();
  auto& lanes = m.exchange[m.fiber / 32];
  std::copy(words.begin(), words.end(), lanes[m.thread_index % 32]);
  barrier(Wait::kWarp);
  auto result = read(lanes);
  barrier(Wait::kWarp);
  return result;
}

template <typename T>
inline T from_lane(T value, unsigned int source) {
  static_assert(sizeof(T) == 4);
  uint32_t word;
  std::memcpy(&word, &value, 4);
  word = exchanged({word}, [&](auto& lanes) { return lanes[source][0]; });
  std::memcpy(&value, &word, 4);
  return value;
}

}  // namespace emulation

template <typename T>
inline T __shfl_sync(unsigned int, T value, int source) {
  return emulation::from_lane(value, static_cast<unsigned int>(source) % 32);
}
template <typename T>
inline T __shfl_down_sync(unsigned int, T value, unsigned int delta) {
  const unsigned int lane = emulation::machine().thread_index % 32;
  return emulation::from_lane(value, lane + delta < 32 ? lane + delta : lane);
}
template <typename T>
inline T __shfl_xor_sync(unsigned int, T value, int mask) {
  return emulation::from_lane(value, (emulation::machine().thread_index % 32) ^ static_cast<unsigned int>(mask));
}
inline unsigned int __ballot_sync(unsigned int, bool value) {
  return emulation::exchanged({value ? 1u : 0u}, [](auto& lanes) {
    unsigned int set = 0;
    for (unsigned int lane = 0; lane < 32; ++lane) set |= lanes[lane][0] << lane;
    return set;
  });
}
inline int __popc(unsigned int value) { return __builtin_popcount(value); }
inline unsigned int __reduce_max_sync(unsigned int, unsigned int value) {
  return emulation::exchanged({value}, [](auto& lanes) {
    unsigned int largest = 0;
    for (auto& lane : lanes) largest = std::max(largest, lane[0]);
    return largest;
  });
}

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
template <typename T>
inline T __ldcg(const T* pointer) {
  return *pointer;
}
inline void __threadfence() {}
inline int __float2int_rn(float value) { return static_cast<int>(std::nearbyint(value)); }
inline int atomicAdd(int* address, int value) {
  const int old = *address;
  *address = old + value;
  return old;
}
inline unsigned int atomicMax(unsigned int* address, unsigned int value) {
  const unsigned int old = *address;
  *address = std::max(old, value);
  return old;
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  const unsigned long long old = *address;
  *address = old + value;
  return old;
}

#define GLQ_DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(emulation::shared_memory())
// The one object of fixed size that a block's threads share.
#define GLQ_STATIC_SHARED(type, name)                                  \
  static_assert(sizeof(type) <= emulation::kStaticBytes, "too large"); \
  type& name = *reinterpret_cast<type*>(emulation::static_memory())
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

// fused_platform.cuh

inline unsigned int cluster_blocks() { return 1; }
inline void cluster_arrive() {}
inline void cluster_wait() {}
inline void start_copy(void* shared, const void* global, int bytes, unsigned long long*) {
  if (threadIdx.x % 32 == 0) std::memcpy(shared, global, static_cast<size_t>(bytes));
}
inline void wait_for_copy(unsigned long long*) {}
inline uint32_t part_of(const uint4& v, int k) { return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w; }
inline uint4 load_codes(const uint4* from) { return *from; }

inline uint4 load_stream(const uint4* from) { return *from; }
template <typename T>
inline T load_coherent(const T* from) {
  return *from;
}

constexpr uint32_t kMissing = 0xFFFFFFFFu;
inline uint4 load_words(const void* from) {
  uint4 v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
inline void store_words(void* to, const uint4& v) { std::memcpy(to, &v, sizeof(v)); }
inline void store_words(float* to, float v) { std::memcpy(to, &v, sizeof(v)); }
inline bool any_missing(const uint4& v) { return v.x == kMissing || v.y == kMissing || v.z == kMissing || v.w == kMissing; }
inline bool keep_waiting() { return emulation::let_others_run(); }
inline void prefetch_l2(const void*) {}
inline int opaque(int value) { return value; }
inline int own_thread() { return static_cast<int>(threadIdx.x); }
inline void prefetch_l1(const void* from) { static_cast<void>(*static_cast<const volatile uint32_t*>(from)); }
inline int add_acquire_release(int* counter, int value) { return atomicAdd(counter, value); }
inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}
inline void read_clocks(unsigned long long* to) { to[0] = to[1] = 0; }
template <uint32_t MASK>
inline uint32_t masked_or(uint32_t word, uint32_t other) {
  return (word & MASK) | other;
}
inline int add_bytes(uint32_t word, int sum) {
  for (int k = 0; k < 4; ++k) sum += static_cast<int8_t>(word >> (8 * k));
  return sum;
}
inline uint32_t shared_window(const void* dynamic) {
  if (dynamic != emulation::shared_memory()) throw std::runtime_error("the dynamic shared memory does not begin the block's");
  return 0;
}
template <uint32_t PLACE>
inline uint32_t shared_word(uint32_t place) {
  return *reinterpret_cast<const uint32_t*>(emulation::shared_memory() + PLACE + place);
}
template <uint32_t PLACE, uint32_t TOTAL>
inline uint32_t folded_shared_word(uint32_t place, uint32_t window_fold, uint32_t fold) {
  return place >= window_fold ? TOTAL - shared_word<PLACE>(place - fold) : shared_word<PLACE>(place);
}
inline uint32_t swap_halves(uint32_t word) { return word >> 16 | word << 16; }

// mma.m16n8k32, uint8 and int8: lane 4g + t holds rows g and g + 8 of a and c, column g of b; k = 4t .. 4t+3 and 16 + 4t ...
inline void multiply_u8s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const unsigned int lane = emulation::machine().thread_index % 32;
  emulation::exchanged({a0, a1, a2, a3, b0, b1}, [&](auto& lanes) {
    auto at = [](uint32_t word, int k) { return static_cast<int>(static_cast<int8_t>(word >> (8 * k))); };
    for (int i = 0; i < 4; ++i) {
      const unsigned int row = lane / 4, column = lane % 4 * 2 + i % 2;
      for (unsigned int t = 0; t < 4; ++t) {
        for (int k = 0; k < 4; ++k) {
          c[i] += (at(lanes[row * 4 + t][i / 2], k) & 255) * at(lanes[column * 4 + t][4], k);
          c[i] += (at(lanes[row * 4 + t][2 + i / 2], k) & 255) * at(lanes[column * 4 + t][5], k);
        }
      }
    }
    return 0;
  });
}

}  // namespace glq
