#include "experts.cuh"

namespace nvfp4 {

NVFP4_INSTANTIATE(Base, Deep)

}  // namespace nvfp4
