#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Waves, Deep)

}  // namespace nvfp4
