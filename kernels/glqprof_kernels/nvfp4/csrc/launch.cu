// Shared-memory plan and launches of the NVFP4 kernels.
#include "launch.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "combine.cuh"
#include "experts.cuh"
#include "plan.cuh"

namespace nvfp4 {

#define NVFP4_DECLARE(S)            \
  template <>                       \
  Starters starters<S, Regs>();     \
  template <>                       \
  Starters starters<S, Ring>();     \
  template <>                       \
  Starters starters<S, Deep>();
NVFP4_DECLARE(Base)
NVFP4_DECLARE(Waves)
NVFP4_DECLARE(Half)
NVFP4_DECLARE(Quarter)

namespace {

template <class S>
Starters of_pipeline(int pipeline) {
  switch (pipeline) {
    case kRegs: return starters<S, Regs>();
    case kRing: return starters<S, Ring>();
    case kDeep: return starters<S, Deep>();
    default: throw std::invalid_argument("there is no such NVFP4 pipeline");
  }
}

Starters select(const MoeConfig& config) {
  switch (config.schedule) {
    case kBase: return of_pipeline<Base>(config.pipeline);
    case kWaves: return of_pipeline<Waves>(config.pipeline);
    case kHalf: return of_pipeline<Half>(config.pipeline);
    case kQuarter: return of_pipeline<Quarter>(config.pipeline);
    default: throw std::invalid_argument("there is no such NVFP4 schedule");
  }
}

constexpr int kStageBlocks = 128;
constexpr int kDepths[] = {16, 12, 8, 6, 4};
constexpr int kDeepest = 16;
constexpr size_t kInFlight = 32 * 1024;  // weights that a block should have asked for

int blocks_of(const MoeConfig& config, const DeviceLimits& limits) {
  return config.blocks > 0 ? config.blocks : limits.multiprocessors;
}

// Shared memory of gate-up's block and of down's where both are to be on every multiprocessor, one of each: down asks for more
// than half, so that two never share one; gate-up for less than the rest and, so that the next call's does not come in beside
// it, for more than half of that.
struct Shares {
  size_t gate_up_least, gate_up_most, down;
};

Shares shares(const DeviceLimits& limits) {
  const size_t half = (limits.shared_bytes - 2048) / 2;
  return {limits.shared_bytes / 4, half - 2048, half + 2048};
}

// As many warps as the units need at most; stages that fit. Ring-deep keeps to its share of the shared memory where that holds
// enough, so that down's first weights come while gate-up runs, and takes all of it otherwise; quarter always keeps to it.
Chosen choose_for(const MoeCall& call, const MoeConfig& config, const DeviceLimits& limits, const Starters& kernels, bool down) {
  const Matrix& m = down ? call.down : call.gate_up;
  const Starters::Sizes& sizes = down ? kernels.down : call.gated ? kernels.swiglu : kernels.relu2;
  const int blocks = blocks_of(config, limits);
  const int64_t units = max_items(static_cast<int64_t>(call.tokens) * call.top_k, call.experts, call.item_rows) *
                        (m.columns / sizes.columns);
  int warps = static_cast<int>(std::min<int64_t>((units + blocks - 1) / blocks, kernels.max_warps));
  if (config.warps > 0) warps = std::min(warps, config.warps);
  warps = std::max(warps, 1);
  if (config.pipeline == kRegs) return {warps, 0, 0};
  const bool bulk = config.pipeline == kDeep && NVFP4_BULK && limits.capability >= 90;
  const size_t stage = bulk ? bulk_stage_bytes(sizes.atoms, call.item_rows) : sizes.stage_bytes(call.item_rows);
  const size_t stage_weights = bulk ? kBulkAtoms * kSlotBytes : sizes.stage_weights;
  auto warp_bytes = [&](int depth) { return (bulk ? kBulkHeaderBytes : 0) + depth * stage; };
  const Shares share = shares(limits);
  const size_t own_share = down ? share.down : share.gate_up_most;
  int depth = Ring::kDepth;
  if (config.pipeline == kRing && kernels.deepest_ring > 0) {
    if (config.depth != 0) {
      depth = config.depth;
    } else if (warps * warp_bytes(depth) > own_share && warps * warp_bytes(depth - 1) <= own_share) {
      --depth;
    }
    if (depth < 3 || depth > kernels.deepest_ring) throw std::invalid_argument("a ring of this unit has 3 to 6 stages");
  }
  if (config.pipeline == kDeep) {
    depth = config.depth;
    if (depth == 0) {
      auto deepest = [&](size_t budget) {
        if (bulk) {
          int d = kDeepest;
          while (d > 2 && warps * warp_bytes(d) > budget) --d;
          return d;
        }
        for (int d : kDepths) {
          if (warps * warp_bytes(d) <= budget) return d;
        }
        return kDepths[std::size(kDepths) - 1];
      };
      const size_t budget =
          config.shared_kib > 0 ? std::min(limits.shared_bytes, static_cast<size_t>(config.shared_kib) * 1024) : own_share;
      while (bulk && warps > 8 && warps * warp_bytes(2) > budget) --warps;
      depth = deepest(budget);
      const bool enough = kernels.deepest_ring > 0 || depth >= kDeepest || (depth - 1) * warps * stage_weights >= kInFlight;
      if (!enough && config.shared_kib == 0) depth = deepest(limits.shared_bytes);
    }
  }
  const size_t fitting = limits.shared_bytes / warp_bytes(depth);
  if (fitting == 0) throw std::invalid_argument("a thread block's shared memory does not hold this ring");
  warps = std::min(warps, static_cast<int>(fitting));
  size_t bytes = warps * warp_bytes(depth);
  if (config.dependent && limits.capability >= 90 && blocks <= limits.multiprocessors) {
    bytes = std::max(bytes, down ? share.down : share.gate_up_least);
  }
  return {warps, depth, static_cast<int>(bytes)};
}

}  // namespace

Chosen choose(const MoeCall& call, const MoeConfig& config, const DeviceLimits& limits, bool down) {
  return choose_for(call, config, limits, select(config), down);
}

void launch_moe(const MoeCall& call, const MoeConfig& config, const DeviceLimits& limits, int which, cudaStream_t stream) {
  const Starters kernels = select(config);
  LaunchPlan plan;
  plan.dependent = config.dependent && limits.capability >= 90;
  plan.depth = 0;
  plan.rings = config.pipeline != kRegs;
  if (which & 1) {
    plan.blocks = call.x_given == nullptr ? 1u : 1u + static_cast<unsigned int>(std::min(call.tokens, kStageBlocks));
    plan.threads = kPlanThreads;
    plan.shared_bytes = plan_shared_bytes(call.experts, call.tokens * call.top_k);
    NVFP4_START((nvfp4_plan_kernel), plan, stream, call);
  }
  for (int phase = 0; phase < 2; ++phase) {
    if (!(which & (phase == 0 ? 2 : 4))) continue;
    const Chosen chosen = choose_for(call, config, limits, kernels, phase == 1);
    plan.blocks = static_cast<unsigned int>(blocks_of(config, limits));
    plan.threads = static_cast<unsigned int>(chosen.warps * 32);
    plan.shared_bytes = static_cast<size_t>(chosen.shared_bytes);
    plan.depth = chosen.depth;
    MoeCall given = call;
    given.ahead_bytes = plan.dependent ? config.ahead_kib * 1024 : 0;
    (phase == 1 ? kernels.down : call.gated ? kernels.swiglu : kernels.relu2).start(given, plan, stream);
  }
  if (which & 8) {
    plan.threads = kCombineThreads;
    plan.shared_bytes = 0;
    const unsigned int across = static_cast<unsigned int>((call.down.columns / 4 + kCombineThreads - 1) / kCombineThreads);
    const dim3 grid(across, static_cast<unsigned int>(std::min(call.tokens, 65535)));
#if defined(GLQ_EMULATE)
    GLQ_LAUNCH((nvfp4_combine_kernel), grid, dim3(plan.threads), plan.shared_bytes, stream, call);
#else
    start_kernel(nvfp4_combine_kernel, "launching nvfp4_combine_kernel", grid, plan, stream, call);
#endif
  }
}

}  // namespace nvfp4
