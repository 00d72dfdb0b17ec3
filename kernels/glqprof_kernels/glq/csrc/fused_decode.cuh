// Codewords as 4-bit coordinates: 4 bytes an entry, coordinate k in bits 4k .. 4k+3 as 2c + 8.
//
// The big table holds one of v and -v; a code from T on stands for the negated entry code - T. Negation of all eight
// nibbles at once is one subtraction, since no coordinate is -4 and so no digit borrows. Codes lie in pairs, one word for
// an even block and the odd one after it: rotate_left(even | odd << 16, 2), so that a mask, or a swap of halves and a mask,
// gives four times the code: the entry's place in bytes.
//
// All values are exact: the sign of a zero can differ from an fp16 table's, but no sum that the contract starts at +0 can
// tell, as x + (+-0) = x for every x but -0 and such a sum is never -0.
#pragma once

#include "arithmetic.cuh"
#include "fused_platform.cuh"

namespace glq {

constexpr uint32_t kNegation = 0x11111110u;  // the sum of 16 << 4k over eight nibbles, modulo 2^32

// Four times the code of the even (0) or odd (1) block of a word, and the bits of `window`.
template <int HALF>
__device__ __forceinline__ uint32_t code_bytes(uint32_t word, uint32_t window) {
  return masked_or<0x3FFFCu>(HALF == 0 ? word : swap_halves(word), window);
}

// A nibble n at bit p of a float's mantissa, under an exponent for which bit p is worth 1/2: the float is 2^(22-p) + n/2,
// and c = n/2 - 4. For p = 0, 4, 8, 12, 16 these exponents are handed in from constant memory: as literals they would cost
// an instruction each, since one logic instruction takes one literal.
struct Exponents {
  uint32_t at[5];
};

inline Exponents nibble_exponents() {
  Exponents e;
  for (int k = 0; k < 5; ++k) e.at[k] = static_cast<uint32_t>(127 + 22 - 4 * k) << 23;
  return e;
}

template <int K>
__device__ __forceinline__ float nibble_to_float(uint32_t word, const Exponents& exponents) {
  constexpr float bias = static_cast<float>(1 << (22 - 4 * K)) + 4.0f;
  return sub(__uint_as_float(masked_or<(0xFu << (4 * K))>(word, exponents.at[K])), bias);
}

__device__ __forceinline__ void unpack_nibbles(uint32_t word, const Exponents& exponents, float (&c)[8]) {
  c[0] = nibble_to_float<0>(word, exponents);
  c[1] = nibble_to_float<1>(word, exponents);
  c[2] = nibble_to_float<2>(word, exponents);
  c[3] = nibble_to_float<3>(word, exponents);
  c[4] = nibble_to_float<4>(word, exponents);
  const uint32_t upper = word >> 12;
  c[5] = nibble_to_float<2>(upper, exponents);
  c[6] = nibble_to_float<3>(upper, exponents);
  c[7] = nibble_to_float<4>(upper, exponents);
}

// Where codes are looked up. PLACE, of what follows: where a table in shared memory begins, in bytes from the start of the
// dynamic one; below 0: the table is in global memory.
struct Tables {
  const unsigned char* global;  // the table in global memory; a kernel with it in shared memory does not look
  uint32_t fold_bytes;
  uint32_t window;       // of the shared memory; 0 of a table in global memory
  uint32_t window_fold;  // window + fold_bytes
  Exponents exponents;
};

// The eight nibbles of a word's code of the even (0) or odd (1) block: of the big table, or, of a third stage that is SMALL, of
// the small words behind it.
template <int PLACE, bool SMALL, int HALF>
__device__ __forceinline__ uint32_t entry_of(const Tables& tables, int stage, uint32_t word) {
  const bool small = SMALL && stage == 2;
  const uint32_t bytes = code_bytes<HALF>(word, tables.window);
  if constexpr (PLACE >= 0) {
    if (small) return shared_word<PLACE>(bytes);
    return folded_shared_word<PLACE, kNegation>(bytes, tables.window_fold, tables.fold_bytes);
  }
  const bool negated = !small && bytes >= tables.fold_bytes;
  const uint32_t entry = *reinterpret_cast<const uint32_t*>(tables.global + (small ? bytes : min(bytes, bytes - tables.fold_bytes)));
  return negated ? kNegation - entry : entry;
}

}  // namespace glq
