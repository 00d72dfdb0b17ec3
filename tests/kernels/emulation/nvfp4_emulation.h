// What the NVFP4 kernels need beyond cuda_emulation.h: bf16, the bf16 tensor-core product, copies that arrive late.
//
// An asynchronous copy overwrites its destination with a signalling pattern when it is issued and moves its bytes when the
// thread waits for its group: a missing wait, or a stage used again too early, shows in the bytes.
#pragma once

#include "cuda_emulation.h"

#include <deque>

struct alignas(8) int2 {
  int x, y;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline unsigned int __match_any_sync(unsigned int, unsigned int value) {
  const unsigned int mine = value;
  return emulation::exchanged({value}, [&](auto& lanes) {
    unsigned int same = 0;
    for (unsigned int lane = 0; lane < 32; ++lane) same |= static_cast<unsigned int>(lanes[lane][0] == mine) << lane;
    return same;
  });
}

namespace nvfp4 {

inline uint16_t float_to_bf16(float value) {
  if (value != value) return 0x7FFF;
  const uint32_t bits = __float_as_uint(value);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

inline float bf16_to_float(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

inline uint32_t times_2_126(uint32_t pair) {
  uint32_t result = 0;
  for (int half = 0; half < 2; ++half) {
    const float value = bf16_to_float(static_cast<uint16_t>(pair >> (16 * half))) * 0x1p126f;
    result |= static_cast<uint32_t>(float_to_bf16(value)) << (16 * half);
  }
  return result;
}

template <bool HIGH>
inline float2 e4m3_pair(uint32_t word) {
  auto value = [](uint32_t byte) {
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    const float size = exponent == 0 ? mantissa * 0x1p-9f : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
    return byte & 0x80 ? -size : size;
  };
  const uint32_t half = HIGH ? word >> 16 : word & 0xFFFF;
  return {value(half & 0xFF), value(half >> 8)};
}

// The exact sum of products that are exact in binary64, added to +0 and rounded once to binary32: TwoSum keeps what every
// addition loses; the total goes to odd at 53 bits before it is rounded to 24.
inline float sum_once(const double (&terms)[16]) {
  double parts[17];
  int count = 0;
  double plain = 0.0;
  for (const double term : terms) {
    plain += term;
    double carry = term;
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      double large = carry, small = parts[i];
      if (std::fabs(large) < std::fabs(small)) std::swap(large, small);
      const double sum = large + small;
      const double lost = small - (sum - large);
      if (lost != 0.0) parts[kept++] = lost;
      carry = sum;
    }
    parts[kept++] = carry;
    count = kept;
  }
  if (!(std::fabs(plain) < INFINITY)) return static_cast<float>(plain);
  // parts do not overlap and ascend: add from the top until something is lost.
  double total = 0.0, lost = 0.0;
  for (int i = count - 1; i >= 0; --i) {
    if (lost != 0.0) break;
    const double before = total;
    total = before + parts[i];
    lost = parts[i] - (total - before);
  }
  if (lost != 0.0) {
    uint64_t bits;
    std::memcpy(&bits, &total, 8);
    if ((bits & 1) == 0) total = std::nextafter(total, lost > 0 ? INFINITY : -INFINITY);
  }
  return static_cast<float>(total + 0.0);
}

inline void multiply_bf16(float (&p)[4], const uint32_t (&a)[4], const uint2& b) {
  const unsigned int lane = emulation::machine().thread_index % 32;
  emulation::exchanged({a[0], a[1], a[2], a[3], b.x, b.y}, [&](auto& lanes) {
    auto at = [](uint32_t word, unsigned int k) {
      return static_cast<double>(bf16_to_float(static_cast<uint16_t>(word >> (16 * k))));
    };
    for (int i = 0; i < 4; ++i) {
      const unsigned int row = lane / 4, column = lane % 4 * 2 + i % 2;
      double terms[16];
      for (unsigned int k = 0; k < 16; ++k) {
        const unsigned int thread = k % 8 / 2;
        const unsigned int upper = k / 8;
        terms[k] = at(lanes[row * 4 + thread][i / 2 + 2 * upper], k % 2) * at(lanes[column * 4 + thread][4 + upper], k % 2);
      }
      p[i] = sum_once(terms);
    }
    return 0;
  });
}

inline uint32_t rotate_right(uint32_t word, int bits) { return bits == 0 ? word : word >> bits | word << (32 - bits); }
template <uint32_t MASK>
inline uint32_t merge(uint32_t a, uint32_t b) {
  return (a & MASK) | (b & ~MASK);
}

// An offset in the block's shared memory.
using SharedAddress = uint32_t;
inline SharedAddress shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - emulation::machine().shared);
}

// The first thing that hardware would have refused; a thread cannot throw out of its fiber.
inline const char*& fault() {
  static const char* what = nullptr;
  return what;
}
inline void require(bool holds, const char* what) {
  if (!holds && fault() == nullptr) fault() = what;
}

struct Copy {
  SharedAddress to;
  const void* from;
  int bytes;
};
struct CopyGroups {
  std::deque<std::vector<Copy>> groups{1};
};
inline CopyGroups& copy_groups() {
  static std::vector<CopyGroups> of_thread(1024);
  return of_thread[emulation::machine().thread_index];
}
// Whose copy is on its way to 16 bytes of shared memory: what racecheck calls a write-after-write hazard is a fault, equal bytes
// or not.
inline int& copies_to(SharedAddress to) {
  static std::vector<int> owner(emulation::kSharedBytes / 16, -1);
  return owner[to / 16];
}
inline void copy16_group(SharedAddress to, const void* from, int bytes = 16) {
  const bool placed = to % 16 == 0 && to + 16 <= emulation::kSharedBytes && reinterpret_cast<uintptr_t>(from) % 16 == 0;
  require(placed, "a misplaced asynchronous copy");
  if (!placed) return;
  const int thread = static_cast<int>(emulation::machine().thread_index);
  require(copies_to(to) == -1 || copies_to(to) == thread, "two threads copy to one place");
  copies_to(to) = thread;
  std::memset(emulation::machine().shared + to, 0xA5, 16);
  copy_groups().groups.back().push_back({to, from, bytes});
}
inline void copy16_group_if(bool wanted, SharedAddress to, const void* from, int bytes) {
  if (wanted) copy16_group(to, from, bytes);
}
inline void end_copy_group() { copy_groups().groups.emplace_back(); }
template <int PENDING>
inline void wait_copy_groups() {
  auto& groups = copy_groups().groups;
  while (groups.size() > PENDING + 1) {  // the last one is open
    for (const Copy& copy : groups.front()) {
      unsigned char* to = emulation::machine().shared + copy.to;
      std::memset(to, 0, 16);
      std::memcpy(to, copy.from, static_cast<size_t>(copy.bytes));
      copies_to(copy.to) = -1;
    }
    groups.pop_front();
  }
}

// The bulk copy engine: like an asynchronous copy, its bytes move when a thread waits for the barrier's round, which must have
// been asked for and have got what it expects.
struct Barrier {
  bool made = false;
  uint32_t rounds = 0;  // that are complete
  int expected = -1;    // bytes of the round under way; -1: nobody asked yet
  int asked = 0;
  std::vector<Copy> copies;
};
inline Barrier& barrier_at(SharedAddress at) {
  static std::vector<Barrier> all(emulation::kSharedBytes / 8);
  return all[at / 8];
}
inline void init_barrier(SharedAddress at) {
  require(at % 8 == 0, "a misaligned barrier");
  barrier_at(at) = {};
  barrier_at(at).made = true;
}
inline void publish_barriers() {}
inline void expect_bytes(SharedAddress at, int bytes) {
  Barrier& barrier = barrier_at(at);
  require(barrier.made && barrier.expected < 0, "a barrier's round has two arrivals");
  barrier.expected = bytes;
}
inline void bulk_copy(SharedAddress to, const void* from, int bytes, SharedAddress at) {
  const bool placed = to % 16 == 0 && bytes > 0 && bytes % 16 == 0 && to + bytes <= emulation::kSharedBytes &&
                      reinterpret_cast<uintptr_t>(from) % 16 == 0;
  require(placed, "a misplaced bulk copy");
  if (!placed) return;
  std::memset(emulation::machine().shared + to, 0xA5, static_cast<size_t>(bytes));
  barrier_at(at).asked += bytes;
  barrier_at(at).copies.push_back({to, from, bytes});
}
inline void wait_barrier(SharedAddress at, uint32_t parity) {
  Barrier& barrier = barrier_at(at);
  if (barrier.rounds % 2 != parity) return;
  const bool comes = barrier.made && barrier.expected >= 0 && barrier.asked == barrier.expected;
  require(comes, "a barrier's round that never completes");
  for (const Copy& copy : barrier.copies) {
    std::memcpy(emulation::machine().shared + copy.to, copy.from, static_cast<size_t>(copy.bytes));
  }
  const uint32_t rounds = barrier.rounds + 1;
  barrier = {};
  barrier.made = true;
  barrier.rounds = rounds;
}
inline bool elect_lane() { return emulation::machine().thread_index % 32 == 0; }
inline void store_shared8(SharedAddress to, uint2 v) { std::memcpy(emulation::machine().shared + to, &v, 8); }

inline void prefetch_l2(const void*) {}
// Reads what it names, so that a range outside of the weights shows where memory is checked.
inline void prefetch_l2(const void* from, int bytes) {
  require(bytes > 0 && bytes % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0, "a misplaced prefetch");
  std::vector<unsigned char> seen(static_cast<size_t>(bytes));
  std::memcpy(seen.data(), from, seen.size());
}

inline uint4 load_shared16(SharedAddress from) {
  require(from % 16 == 0, "a misaligned shared load");
  uint4 v;
  std::memcpy(&v, emulation::machine().shared + from, 16);
  return v;
}
inline uint2 load_shared8(SharedAddress from) {
  require(from % 8 == 0, "a misaligned shared load");
  uint2 v;
  std::memcpy(&v, emulation::machine().shared + from, 8);
  return v;
}
template <bool KEEP>
inline uint4 load_weights16(const uint8_t* from) {
  return *reinterpret_cast<const uint4*>(from);
}
template <bool KEEP>
inline uint2 load_weights8(const uint8_t* from) {
  return *reinterpret_cast<const uint2*>(from);
}

}  // namespace nvfp4
