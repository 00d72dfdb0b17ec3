// How a fused step is launched: by its sizes and by what the device can.
#include "launch.h"

#include <stdexcept>
#include <string>

namespace ssm {

namespace {

bool fits_cluster(const StepCall& call, const DeviceLimits& limits, int chunks) {
  const int blocks = call.chunks / chunks;
  return call.chunks % chunks == 0 && blocks <= limits.largest_cluster && (blocks & (blocks - 1)) == 0;
}

bool has_clusters(const DeviceLimits& limits) { return limits.capability >= 90; }

}  // namespace

Chosen choose(const StepCall& call, const StepConfig& config, const DeviceLimits& limits) {
  if (config.chunks < 0 || config.chunks > 2 || config.exchange < -1 || config.exchange > kCounter) {
    throw std::invalid_argument("the exchange is -1, 0 or 1 and a block's chunks are 0, 1 or 2");
  }
  if (config.exchange != kCounter && has_clusters(limits)) {
    for (const int chunks : {1, 2}) {
      if ((config.chunks == 0 || config.chunks == chunks) && fits_cluster(call, limits, chunks)) return {kCluster, chunks};
    }
  }
  if (config.exchange == kCluster) {
    throw std::invalid_argument("a group of " + std::to_string(call.chunks) + " chunks makes no cluster on this device");
  }
  if (config.chunks == 2) throw std::invalid_argument("the exchange by counters takes one chunk a block");
  return {kCounter, 1};
}

void launch_fused(const StepCall& call, const StepConfig& config, const DeviceLimits& limits, cudaStream_t stream) {
  const Chosen chosen = choose(call, config, limits);
  const bool dependent = config.dependent && limits.capability >= 90;
  if (chosen.exchange == kCluster) {
    launch_cluster(call, chosen.chunks, dependent, stream);
  } else {
    launch_counter(call, dependent, stream);
  }
}

}  // namespace ssm
