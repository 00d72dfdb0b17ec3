#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Base, Regs)

}  // namespace nvfp4
