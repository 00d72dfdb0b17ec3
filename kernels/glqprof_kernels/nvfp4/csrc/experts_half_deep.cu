#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Half, Deep)

}  // namespace nvfp4
