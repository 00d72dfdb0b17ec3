// What the SSM kernels need beyond cuda_emulation.h: bf16, square roots, clusters of thread blocks.
#pragma once

#include "cuda_emulation.h"

namespace ssm {

inline uint16_t float_to_bf16(float value) {
  if (value != value) return 0x7FFF;
  const uint32_t bits = __float_as_uint(value);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}
inline float bf16_to_float(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
inline float square_root(float value) { return std::sqrt(value); }

template <typename T>
inline T load_state(const T* from) {
  return *from;
}

inline void cluster_arrive_relaxed() {}
inline void cluster_arrive() {}
inline void cluster_wait() {
  emulation::barrier(emulation::machine().cluster > 1 ? emulation::Wait::kCluster : emulation::Wait::kBlock);
}
inline void store_in_block(float* shared, int rank, float value) {
  const ptrdiff_t at = reinterpret_cast<unsigned char*>(shared) - emulation::shared_memory();
  *reinterpret_cast<float*>(emulation::shared_memory(static_cast<unsigned int>(rank)) + at) = value;
}

struct Start {
  dim3 grid;
  unsigned int threads;
  size_t shared_bytes;
  unsigned int cluster;
  bool dependent;
};

}  // namespace ssm

#define SSM_START(kernel, start, stream, call)                                                                      \
  do {                                                                                                               \
    const ssm::Start started = start;                                                                                \
    (void)(stream);                                                                                                  \
    emulation::launch(#kernel, started.grid, dim3(started.threads), started.shared_bytes, [&] { GLQ_UNWRAP kernel(call); }, \
                      started.cluster);                                                                              \
  } while (0)
