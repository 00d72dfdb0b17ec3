// The fused kernels in free order, on the tensor cores.
#include "fused_select.cuh"

namespace glq {
namespace {

template <int STAGES, bool SMALL>
Starter fast(const FusedConfig& config, bool shared_table) {
  constexpr int threads = STAGES == 4 ? 384 : 512;  // the most that do not spill
  if (config.threads == 512) {
    return shared_table ? start_fused<FastTraits<STAGES, SMALL, threads, true>>
                        : start_fused<FastTraits<STAGES, SMALL, kFallbackThreads, false>>;
  }
#if defined(GLQ_FUSED_TUNING)
  if constexpr (STAGES == 2 || SMALL) {
    if (config.threads == 384 && shared_table) return start_fused<FastTraits<STAGES, SMALL, 384, true>>;
  }
#endif
  return nullptr;
}

}  // namespace

Starter select_fast(const FusedConfig& config, int stages, bool small, bool shared_table) {
  switch (stages) {
    case 1: return fast<1, false>(config, shared_table);
    case 2: return fast<2, false>(config, shared_table);
    case 3: return small ? fast<3, true>(config, shared_table) : fast<3, false>(config, shared_table);
    case 4: return fast<4, false>(config, shared_table);
    default: return nullptr;
  }
}

}  // namespace glq
