// What the fused kernels need beyond platform.cuh: asynchronous copies, streaming and coherent loads, programmatic
// dependent launch, the int8 tensor-core product. cuda_emulation.h has the same functions for the tests.
#pragma once

#include "platform.cuh"

#if !defined(GLQ_EMULATE)

namespace glq {

// The thread blocks of a cluster, which share one copy from global memory; 1 where there are no clusters.
__device__ __forceinline__ unsigned int cluster_blocks() {
  unsigned int blocks = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  return blocks;
}
__device__ __forceinline__ unsigned int cluster_rank() {
  unsigned int rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// L2 should keep these lines: every layer reads them.
__device__ __forceinline__ uint64_t keep_policy() {
  uint64_t policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// One warp starts a copy of `bytes` (a multiple of 16) into shared memory, the block goes on. `ready`: a barrier in shared
// memory of this copy alone. All threads wait for it, and a barrier of the block stands between its start and their waiting
// and, below sm_90, between that and their reading. In a cluster every block copies its part to all of them; its other warps
// arrive at the cluster's barrier before, and wait there before they end.
__device__ __forceinline__ void start_copy(void* shared, const void* global, int bytes, unsigned long long* ready) {
  const unsigned int to = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
  const int lane = static_cast<int>(threadIdx.x) % 32;
#if __CUDA_ARCH__ >= 900
  const unsigned int barrier = static_cast<unsigned int>(__cvta_generic_to_shared(ready));
  if (lane == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  }
  __syncwarp();
  const unsigned int blocks = cluster_blocks();
  const uint64_t policy = keep_policy();
  // Every block begins elsewhere, so that they do not ask one slice of L2 for the same lines at once.
  const int pieces = 32 * static_cast<int>(blocks);
  const int piece = (bytes / 16 + pieces - 1) / pieces * 16;
  const int turned = (lane + static_cast<int>(blockIdx.x / blocks)) % 32;
  const int first = (turned * static_cast<int>(blocks) + static_cast<int>(cluster_rank())) * piece;
  const int size = min(piece, bytes - first);
  if (blocks == 1) {
    if (size > 0) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
              to + first),
          "l"(static_cast<const char*>(global) + first), "r"(size), "r"(barrier), "l"(policy)
          : "memory");
    }
  } else {
    cluster_arrive();
    cluster_wait();  // every block's barrier is there
    const uint16_t all = static_cast<uint16_t>((1u << blocks) - 1);
    if (size > 0) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1], %2, "
          "[%3], %4, %5;" ::"r"(to + first),
          "l"(static_cast<const char*>(global) + first), "r"(size), "r"(barrier), "h"(all), "l"(policy)
          : "memory");
    }
  }
#else
  for (int at = 16 * lane; at < bytes; at += 16 * 32) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(static_cast<const char*>(global) + at)
                 : "memory");
  }
#endif
}

// May be called again after it returned.
__device__ __forceinline__ void wait_for_copy(unsigned long long* ready) {
#if __CUDA_ARCH__ >= 900
  const unsigned int barrier = static_cast<unsigned int>(__cvta_generic_to_shared(ready));
  unsigned int done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier)
        : "memory");
  }
#else
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t part_of(const uint4& v, int k) { return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w; }

// Read once: not kept in L1.
__device__ __forceinline__ uint4 load_stream(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Read once: not kept in L1, and the first that L2 gives up. On sm_90 the policy is a constant, which takes no registers: what
// createpolicy.fractional.L2::evict_first gives there for all lines.
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
#define GLQ_STREAM "ld.global.nc.L1::no_allocate.L2::cache_hint"
#define GLQ_STREAM_POLICY , "l"(0x12F0000000000000ull)
#define GLQ_STREAM_HINT(n) ", %" #n
#else
#define GLQ_STREAM "ld.global.nc.L1::no_allocate"
#define GLQ_STREAM_POLICY
#define GLQ_STREAM_HINT(n)
#endif
__device__ __forceinline__ uint4 load_codes(const uint4* from) {
  uint4 v;
  asm volatile(GLQ_STREAM ".v4.u32 {%0, %1, %2, %3}, [%4]" GLQ_STREAM_HINT(5) ";"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from) GLQ_STREAM_POLICY);
  return v;
}
#undef GLQ_STREAM
#undef GLQ_STREAM_POLICY
#undef GLQ_STREAM_HINT

// Written by other thread blocks of this launch: L1 is passed by.
__device__ __forceinline__ float4 load_coherent(const float4* from) { return __ldcg(from); }
__device__ __forceinline__ float load_coherent(const float* from) { return __ldcg(from); }
__device__ __forceinline__ uint16_t load_coherent(const uint16_t* from) {
  return __ldcg(reinterpret_cast<const unsigned short*>(from));
}
__device__ __forceinline__ uint4 load_coherent(const uint4* from) { return __ldcg(from); }

// Everything that this block stored before its last barrier is visible to whoever sees the sum, and the other way round. (What the
// SSM kernels count with.)
__device__ __forceinline__ int add_acquire_release(int* counter, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

// Words that one thread block writes and others of this launch read as soon as they are there. A reader knows by the word
// itself: what is not there yet is kMissing. No result of a float operation is this NaN (theirs is 0x7FFFFFFF), nor is a pair
// of fp16 results (round_to_half). Nothing else is ordered by these words, so they need no fence.
constexpr uint32_t kMissing = 0xFFFFFFFFu;

__device__ __forceinline__ uint4 load_words(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ __forceinline__ void store_words(void* to, const uint4& v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_words(float* to, float v) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(v) : "memory");
}

__device__ __forceinline__ bool any_missing(const uint4& v) {
  return v.x == kMissing || v.y == kMissing || v.z == kMissing || v.w == kMissing;
}

// Between two looks at a word that was missing; false: it will never come (the emulation's thread blocks run in turn).
__device__ __forceinline__ bool keep_waiting() { return true; }

__device__ __forceinline__ void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

__device__ __forceinline__ void prefetch_l1(const void* from) { asm volatile("prefetch.global.L1 [%0];" ::"l"(from)); }

// The same value, but nothing that was computed with it before is kept.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// threadIdx.x; what is made of it is not made before all of the kernel, and so takes no registers elsewhere.
__device__ __forceinline__ int own_thread() { return opaque(static_cast<int>(threadIdx.x)); }

// The results of the kernel before this one in the stream are visible after this.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start its thread blocks where there is room.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void read_clocks(unsigned long long* to) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  to[0] = now;
  to[1] = static_cast<unsigned long long>(clock64());
}

// c += a * b: a 16 x 32 uint8 by rows, b 32 x 8 int8 by columns, c 16 x 8 int32.
__device__ __forceinline__ void multiply_u8s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                              uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// sum + the four int8 of a word.
__device__ __forceinline__ int add_bytes(uint32_t word, int sum) { return __dp4a(static_cast<int>(word), 0x01010101, sum); }

// (word & MASK) | other in one instruction, which the compiler makes two of when it knows `other`.
template <uint32_t MASK>
__device__ __forceinline__ uint32_t masked_or(uint32_t word, uint32_t other) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "n"(MASK), "r"(other));
  return result;
}

// The dynamic shared memory's address, less what the system keeps before it (1 KiB since sm_80): the bits that tell the blocks
// of a cluster apart, none of which a place within a block's shared memory has. Elsewhere the kernel ends with an error.
constexpr uint32_t kReservedShared = 1024;
__device__ __forceinline__ uint32_t shared_window(const void* dynamic) {
  const uint32_t window = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic)) - kReservedShared;
  if ((window & 0xFFFFFFu) != 0) __trap();
  return window;
}

// The word `place` (with the window's bits) and PLACE bytes after the start of the dynamic shared memory: an address that
// takes no instruction of its own.
template <uint32_t PLACE>
__device__ __forceinline__ uint32_t shared_word(uint32_t place) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1 + %2];" : "=r"(word) : "r"(place), "n"(PLACE + kReservedShared));
  return word;
}

// The same of place - fold where that is not below the window, and then TOTAL less the word; predicates in place of selections.
template <uint32_t PLACE, uint32_t TOTAL>
__device__ __forceinline__ uint32_t folded_shared_word(uint32_t place, uint32_t window_fold, uint32_t fold) {
  uint32_t word;
  asm volatile(
      "{\n.reg .pred p;\n.reg .u32 a;\n"
      "setp.ge.u32 p, %1, %2;\n"
      "mov.u32 a, %1;\n"
      "@p sub.u32 a, a, %3;\n"
      "ld.shared.u32 %0, [a + %5];\n"
      "@p sub.u32 %0, %4, %0;\n}"
      : "=&r"(word)
      : "r"(place), "r"(window_fold), "r"(fold), "n"(TOTAL), "n"(PLACE + kReservedShared));
  return word;
}

__device__ __forceinline__ uint32_t swap_halves(uint32_t word) { return __byte_perm(word, 0, 0x1032); }

}  // namespace glq

#define GLQ_KERNEL_PARAMETER __grid_constant__

#else
#define GLQ_KERNEL_PARAMETER
#endif
