// The launches that the extension makes.
#pragma once

#include "../../glq/csrc/platform.cuh"
#include "calls.h"

namespace step {

void launch_embed(const EmbedCall& call, int batch, bool dependent, cudaStream_t stream);
void launch_add_rms_norm(const NormCall& call, int batch, bool dependent, cudaStream_t stream);
void launch_route(const RouteCall& call, bool dependent, cudaStream_t stream);
void launch_attend(const AttendCall& call, bool dependent, cudaStream_t stream);
// These fill in m.ring; std::invalid_argument where eight rows do not fit in a block's shared memory.
void launch_linear(LinearCall call, const Tuning& tuning, const DeviceLimits& limits, cudaStream_t stream);
void launch_head_argmax(HeadCall call, const Tuning& tuning, const DeviceLimits& limits, cudaStream_t stream);

}  // namespace step
