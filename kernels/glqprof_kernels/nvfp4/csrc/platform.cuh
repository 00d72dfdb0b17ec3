// What the NVFP4 kernels need beyond GLQ's platform.cuh: bf16, e4m3 scales, the bf16 tensor-core product, copies in
// groups. tests/kernels/emulation/nvfp4_emulation.h has the same functions for the tests.
#pragma once

#include "../../glq/csrc/activation.cuh"
#include "../../glq/csrc/fused_platform.cuh"

#if defined(GLQ_EMULATE)

#include "nvfp4_emulation.h"
#if !defined(NVFP4_BULK)
#define NVFP4_BULK 1
#endif
#define NVFP4_LAUNCH_BOUNDS(threads, blocks)

#else

#include <cuda_bf16.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define NVFP4_BULK 0
#else
#define NVFP4_BULK 1
#endif

#define NVFP4_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)

namespace nvfp4 {

// To nearest even; every NaN becomes 0x7FFF.
__device__ __forceinline__ uint16_t float_to_bf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__device__ __forceinline__ float bf16_to_float(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

// Both halves times 2^126, exact for what decode.cuh gives it; subnormal inputs count, the sign of a zero stays.
__device__ __forceinline__ uint32_t times_2_126(uint32_t pair) {
  uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0x7E807E80u), "r"(0x80008000u));
  return result;
}

// The two e4m3 values in the low (HIGH: high) half of a word, the lower byte first; exact.
template <bool HIGH>
__device__ __forceinline__ float2 e4m3_pair(uint32_t word) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  if (HIGH) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }" : "=r"(halves) : "r"(word));
  } else {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low; }" : "=r"(halves) : "r"(word));
  }
  return glq::halves_to_floats(halves);
#else
  // The byte's fields where binary32 has them, with the exponent's bias 7 for 127: 2^120 is missing. A NaN byte is not one.
  auto value = [](int32_t top) {
    return __fmul_rn(__uint_as_float(static_cast<uint32_t>(top >> 4) & 0x87F00000u), __uint_as_float(0x7B800000u));
  };
  const uint32_t half = HIGH ? word : word << 16;
  return make_float2(value(static_cast<int32_t>(half << 8)), value(static_cast<int32_t>(half)));
#endif
}

// p = a * b from zero: a 16 x 16 by rows, b 16 x 8 by columns, bf16; p 16 x 8 binary32.
__device__ __forceinline__ void multiply_bf16(float (&p)[4], const uint32_t (&a)[4], const uint2& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(p[0]), "=f"(p[1]), "=f"(p[2]), "=f"(p[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "f"(0.0f));
}

__device__ __forceinline__ uint32_t rotate_right(uint32_t word, int bits) { return __funnelshift_r(word, word, bits); }

// (a & MASK) | (b & ~MASK)
template <uint32_t MASK>
__device__ __forceinline__ uint32_t merge(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xE2;" : "=r"(result) : "r"(a), "n"(MASK), "r"(b));
  return result;
}

// 16 bytes from global to shared memory; `bytes` of them are read, the rest become zeros. Addresses as the hardware has them.
using SharedAddress = uint32_t;
__device__ __forceinline__ SharedAddress shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void copy16_group(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy16_group(SharedAddress to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// By a predicate: a branch of some lanes would need a convergence barrier.
__device__ __forceinline__ void copy16_group_if(bool wanted, SharedAddress to, const void* from, int bytes) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p cp.async.cg.shared.global [%0], [%1], 16, %2;\n}" ::"r"(to), "l"(from),
               "r"(bytes), "r"(static_cast<uint32_t>(wanted))
               : "memory");
}
__device__ __forceinline__ void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All of this thread's copy groups but the newest PENDING have arrived.
template <int PENDING>
__device__ __forceinline__ void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#if NVFP4_BULK
// The bulk copy engine: 16-byte pieces, which a barrier in shared memory counts. A barrier has one arrival a round, that of
// expect_bytes; wait_barrier returns when the round of this parity (0 first) has got all it expects.
__device__ __forceinline__ void init_barrier(SharedAddress barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void expect_bytes(SharedAddress barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_copy(SharedAddress to, const void* from, int bytes, SharedAddress barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void wait_barrier(SharedAddress barrier, uint32_t parity) {
  uint32_t done = 0;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}
// True for one lane of the warp.
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}
__device__ __forceinline__ void store_shared8(SharedAddress to, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
#endif

// `bytes`, a multiple of 16, on their way to L2.
__device__ __forceinline__ void prefetch_l2(const void* from, int bytes) {
#if NVFP4_BULK
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

__device__ __forceinline__ uint4 load_shared16(SharedAddress from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from));
  return v;
}
__device__ __forceinline__ uint2 load_shared8(SharedAddress from) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from));
  return v;
}

// Weights: not kept in L1, or kept there for the other warps of the block.
template <bool KEEP>
__device__ __forceinline__ uint4 load_weights16(const uint8_t* from) {
  return KEEP ? __ldg(reinterpret_cast<const uint4*>(from)) : glq::load_stream(reinterpret_cast<const uint4*>(from));
}
template <bool KEEP>
__device__ __forceinline__ uint2 load_weights8(const uint8_t* from) {
  if (KEEP) return __ldg(reinterpret_cast<const uint2*>(from));
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}

}  // namespace nvfp4

#endif
