// The exact fused kernels of two-stage matrices.
#include "fused_select.cuh"

namespace glq {

Starter select_exact_2(const FusedConfig& config, bool shared_table) {
  if (is_default_exact(config)) return default_exact<2, false>(shared_table);
#if defined(GLQ_FUSED_TUNING)
  if (shared_table) return tuned_exact<2, false>(config);
#endif
  return nullptr;
}

}  // namespace glq
