#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Half, Ring)

}  // namespace nvfp4
