// The fused kernels in free order, on the tensor cores.
#include "fused_select.cuh"

namespace glq {
namespace {

template <int STAGES, bool SMALL>
Starter fast(bool shared_table) {
  constexpr int threads = STAGES == 4 ? 384 : kThreads;  // the most that do not spill
  return shared_table ? start_fused<FastTraits<STAGES, SMALL, threads, true>>
                      : start_fused<FastTraits<STAGES, SMALL, kFallbackThreads, false>>;
}

}  // namespace

Starter select_fast(int stages, bool small, bool shared_table) {
  switch (stages) {
    case 1: return fast<1, false>(shared_table);
    case 2: return fast<2, false>(shared_table);
    case 3: return small ? fast<3, true>(shared_table) : fast<3, false>(shared_table);
    case 4: return fast<4, false>(shared_table);
    default: return nullptr;
  }
}

}  // namespace glq
