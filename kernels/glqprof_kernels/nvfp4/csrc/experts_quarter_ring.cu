#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Quarter, Ring)

}  // namespace nvfp4
