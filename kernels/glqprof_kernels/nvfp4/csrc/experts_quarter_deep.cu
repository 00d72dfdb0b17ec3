#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Quarter, Deep)

}  // namespace nvfp4
