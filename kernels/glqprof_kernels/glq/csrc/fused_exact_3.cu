// The exact fused kernels of matrices with a small third stage.
#include "fused_select.cuh"

namespace glq {

Starter select_exact_3_small(const FusedConfig& config, bool shared_table) {
  if (is_default_exact(config)) return default_exact<3, true>(shared_table);
#if defined(GLQ_FUSED_TUNING)
  if (shared_table) return tuned_exact<3, true>(config);
#endif
  return nullptr;
}

}  // namespace glq
