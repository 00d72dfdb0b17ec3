// What the fused kernels need beyond platform.cuh: asynchronous copies, streaming and coherent loads, programmatic
// dependent launch, the int8 tensor-core product. cuda_emulation.h has the same functions for the tests.
#pragma once

#include "platform.cuh"

#if !defined(GLQ_EMULATE)

namespace glq {

// One warp starts a copy of `bytes` (a multiple of 16) into shared memory, the block goes on. `ready`: a barrier in shared
// memory of this copy alone. All threads wait for it, and a barrier of the block stands between its start and their waiting
// and, below sm_90, between that and their reading.
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
  // Every block begins elsewhere, so that they do not ask one slice of L2 for the same lines at once.
  const int piece = (bytes / 16 + 31) / 32 * 16;
  const int first = (lane + static_cast<int>(blockIdx.x)) % 32 * piece;
  const int size = min(piece, bytes - first);
  if (size > 0) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to + first),
                 "l"(static_cast<const char*>(global) + first), "r"(size), "r"(barrier)
                 : "memory");
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

// Read once: not kept in L1.
__device__ __forceinline__ uint4 load_stream(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Written by other thread blocks of this launch: L1 is passed by.
__device__ __forceinline__ float4 load_coherent(const float4* from) { return __ldcg(from); }
__device__ __forceinline__ float load_coherent(const float* from) { return __ldcg(from); }
__device__ __forceinline__ uint16_t load_coherent(const uint16_t* from) {
  return __ldcg(reinterpret_cast<const unsigned short*>(from));
}
__device__ __forceinline__ uint4 load_coherent(const uint4* from) { return __ldcg(from); }

// Everything that this block stored before its last barrier is visible to whoever sees the sum, and the other way round.
__device__ __forceinline__ int add_acquire_release(int* counter, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

// Waits until the counter has reached `value`; what was stored before its additions is visible then.
__device__ __forceinline__ void wait_until_at_least(const int* counter, int value) {
  int now = 0;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  } while (now < value);
}

__device__ __forceinline__ void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

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

// c += a * b: a 16 x 32 int8 by rows, b 32 x 8 int8 by columns, c 16 x 8 int32.
__device__ __forceinline__ void multiply_s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// (word & MASK) | other in one instruction, which the compiler makes two of when it knows `other`.
template <uint32_t MASK>
__device__ __forceinline__ uint32_t masked_or(uint32_t word, uint32_t other) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "n"(MASK), "r"(other));
  return result;
}

__device__ __forceinline__ uint32_t swap_halves(uint32_t word) { return __byte_perm(word, 0, 0x1032); }

}  // namespace glq

#define GLQ_KERNEL_PARAMETER __grid_constant__

#else
#define GLQ_KERNEL_PARAMETER
#endif
