#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Waves, Ring)

}  // namespace nvfp4
