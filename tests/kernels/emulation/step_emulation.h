// What the step kernels need beyond nvfp4_emulation.h.
#pragma once

#include "nvfp4_emulation.h"

namespace nvfp4 {

inline void store_shared16(SharedAddress to, const uint4& v) {
  require(to % 16 == 0 && to + 16 <= emulation::kSharedBytes, "a misplaced shared store");
  std::memcpy(emulation::machine().shared + to, &v, 16);
}

}  // namespace nvfp4

namespace step {

inline void multiply_add_bf16(float (&c)[4], const uint4& a, const uint2& b) {
  float p[4];
  nvfp4::multiply_bf16(p, {a.x, a.y, a.z, a.w}, b);
  for (int i = 0; i < 4; ++i) c[i] += p[i];
}

// The threads that fill the barrier's round may come later than those that wait for it: the warp looks again until they have.
inline void wait_round(nvfp4::SharedAddress at, uint32_t parity) {
  for (int tries = 0; tries < 10000; ++tries) {
    const nvfp4::Barrier& barrier = nvfp4::barrier_at(at);
    const bool complete = barrier.rounds % 2 != parity;
    const bool ready = complete || (barrier.made && barrier.expected >= 0 && barrier.asked == barrier.expected);
    if (__ballot_sync(0xFFFFFFFFu, ready) == 0xFFFFFFFFu) {
      nvfp4::wait_barrier(at, parity);
      return;
    }
  }
  nvfp4::require(false, "a barrier's round that never completes");
}

inline uint64_t now_ns() {
  static uint64_t reads = 0;
  return ++reads;
}
inline uint32_t multiprocessor() { return emulation::machine().block_index[0]; }

inline float reciprocal_root(float value) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(value))); }
inline float exponential(float value) { return std::exp(value); }

template <typename T>
inline T load_fresh(const T* from) {
  return *from;
}

}  // namespace step
