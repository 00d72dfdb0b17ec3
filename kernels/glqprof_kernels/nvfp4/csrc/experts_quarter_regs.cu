#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Quarter, Regs)

}  // namespace nvfp4
