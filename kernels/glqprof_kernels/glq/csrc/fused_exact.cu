// The exact fused kernels.
#include "fused_select.cuh"

namespace glq {

Starter select_exact(bool shared_table) {
  return shared_table ? start_fused<FusedTraits<false, kThreads, true>> : start_fused<FusedTraits<false, kFallbackThreads, false>>;
}

}  // namespace glq
