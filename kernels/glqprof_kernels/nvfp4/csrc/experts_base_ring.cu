#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Base, Ring)

}  // namespace nvfp4
