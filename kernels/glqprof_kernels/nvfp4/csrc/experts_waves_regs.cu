#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Waves, Regs)

}  // namespace nvfp4
