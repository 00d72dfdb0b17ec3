// The exact fused kernels of the rarer matrices: one stage, three big ones, four.
#include "fused_select.cuh"

namespace glq {

Starter select_exact_rest(const FusedConfig& config, int stages, bool small, bool shared_table) {
  if (!is_default_exact(config) || small) return nullptr;
  switch (stages) {
    case 1: return default_exact<1, false>(shared_table);
    case 3: return default_exact<3, false>(shared_table);
    case 4: return default_exact<4, false>(shared_table);
    default: return nullptr;
  }
}

}  // namespace glq
