// Shared-memory plan and launches of the fused kernels.
#include "fused_launch.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "fused_select.cuh"

namespace glq {
namespace {

int round_up(int n, int to) { return (n + to - 1) / to * to; }

int scratch_floats(const FusedCall& call) {
  const FusedMatrix* m = call.matrix;
  return padded(std::max({m[0].rows, m[0].cols, m[1].rows, m[1].cols})) + 1;
}

// Places vectors and scratch behind the table, when that is in shared memory; false when they do not fit.
bool plan_shared(FusedCall& call, size_t shared_bytes, bool table_in_shared) {
  const int scratch = scratch_floats(call);
  const int64_t floats = (static_cast<int64_t>(shared_bytes) - static_cast<int64_t>(sizeof(FusedShared))) / 4;
  call.first_vector = table_in_shared ? call.table_words : 0;
  call.scratch = call.first_vector;
  call.table_in_shared = table_in_shared;
  for (int phase = call.first_phase; phase <= call.last_phase; ++phase) {
    const int columns = round_up(call.matrix[phase].blocks, 32) * 8;
    const int64_t room = (floats - call.first_vector - scratch - 4) / columns;
    call.vector_stride[phase] = columns;
    call.vectors[phase] = static_cast<int>(std::min<int64_t>({room, kFusedVectors, call.tokens * call.top_k}));
    if (call.vectors[phase] < 1) return false;
    call.scratch = std::max(call.scratch, call.first_vector + call.vectors[phase] * columns);
  }
  return true;
}

void launch_phases(FusedCall call, int first_phase, int last_phase, const FusedConfig& config, const DeviceLimits& limits,
                   const LaunchPlan& common, cudaStream_t stream) {
  call.first_phase = first_phase;
  call.last_phase = last_phase;
  if (!plan_shared(call, limits.shared_bytes, true) && !plan_shared(call, limits.shared_bytes, false)) {
    throw std::runtime_error("a thread block's shared memory does not hold one vector of this layer");
  }
  const Starter start = config.fast ? select_fast(call.table_in_shared) : select_exact(call.table_in_shared);
  LaunchPlan plan = common;
  if (!call.table_in_shared) plan.cluster = 1;
  plan.shared_bytes = sizeof(float) * static_cast<size_t>(call.scratch + scratch_floats(call));
  start(call, plan, stream);
}

}  // namespace

void launch_fused(const FusedCall& given, const FusedConfig& config, const DeviceLimits& limits, cudaStream_t stream) {
  FusedCall call = given;
  if (call.tokens * call.top_k > kFusedSlots) throw std::runtime_error("too many (token, expert) slots for one launch");
  if (config.fast) {  // its sums have no prescribed splits; one of 64 blocks needs no more workspace than the matrix's own
    for (FusedMatrix& m : call.matrix) set_sizes(m, m.rows, m.cols, kFastSplitBlocks);
  }
  for (const FusedMatrix& m : call.matrix) {  // costs of units are ints
    if (static_cast<int64_t>(call.tokens) * call.top_k * (m.rows / 16 + 1) * m.blocks >= int64_t{1} << 31) {
      throw std::runtime_error("too large a matrix for so many slots");
    }
  }
  const Exponents exponents = nibble_exponents();
  std::copy(std::begin(exponents.at), std::end(exponents.at), call.exponents);
  LaunchPlan plan;
  plan.blocks = config.blocks > 0 ? config.blocks : limits.multiprocessors;
  for (FusedMatrix& m : call.matrix) set_units(m);
  call.by_top_k = divide_by(call.top_k);
  call.by_thread_blocks = divide_by(plan.blocks);
  call.wide_x = call.element_stride == 1 && reinterpret_cast<uintptr_t>(call.x) % 16 == 0 && call.token_stride % 8 == 0;
  plan.cooperative = config.one_launch && limits.cooperative && plan.blocks <= limits.multiprocessors;
  plan.dependent = config.dependent && limits.capability >= 90;
  call.dependent = plan.dependent;
  plan.cluster = limits.capability == 90 && config.cluster > 1 && plan.blocks % config.cluster == 0 ? config.cluster : 1;
  if (plan.cooperative) {
    launch_phases(call, 0, 1, config, limits, plan, stream);
  } else {
    launch_phases(call, 0, 0, config, limits, plan, stream);
    launch_phases(call, 1, 1, config, limits, plan, stream);
  }
}

}  // namespace glq
