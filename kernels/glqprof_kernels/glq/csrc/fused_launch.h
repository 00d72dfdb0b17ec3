// Launch of the fused kernels: plain pointers and sizes, no torch. Throws std::runtime_error, with the reason.
#pragma once

#include "fused_call.h"

namespace glq {

struct DeviceLimits {
  int multiprocessors = 1;
  size_t shared_bytes = 48 * 1024;  // a thread block's, opted in
  int capability = 80;
  bool cooperative = false;         // thread blocks of one launch may wait for each other
};

// The layer in one launch or two. call.table_words is the whole image; the rest of the shared-memory plan and the phases are
// filled in here. The workspace must hold call.tokens * call.top_k <= kFusedSlots slots.
void launch_fused(const FusedCall& call, const FusedConfig& config, const DeviceLimits& limits, cudaStream_t stream);

}  // namespace glq
