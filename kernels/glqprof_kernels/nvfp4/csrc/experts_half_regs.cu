#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Half, Regs)

}  // namespace nvfp4
