// The fused kernels in free order, on the tensor cores.
#include "fused_select.cuh"

namespace glq {

Starter select_fast(bool shared_table) {
  return shared_table ? start_fused<FastTraits<kThreads, true>> : start_fused<FastTraits<kFallbackThreads, false>>;
}

}  // namespace glq
