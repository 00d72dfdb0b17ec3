// The exact fused kernels.
#include "fused_select.cuh"

namespace glq {

Starter select_exact(bool shared_table) {
  return shared_table ? start_fused<ExactTraits<kThreads, true>> : start_fused<ExactTraits<kFallbackThreads, false>>;
}

}  // namespace glq
