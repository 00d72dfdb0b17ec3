// From sizes known at run time to kernels that have them as constants.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "step_call.h"

namespace ssm {

// f(width of the state as an integral_constant, whether it is bf16 as a bool_constant).
template <typename F>
void with_state(const StepCall& call, F f) {
  auto with_size = [&](auto size) {
    if (call.narrow_state) {
      f(size, std::true_type());
    } else {
      f(size, std::false_type());
    }
  };
  switch (call.state_size) {
    case 16: return with_size(std::integral_constant<int, 16>());
    case 32: return with_size(std::integral_constant<int, 32>());
    case 64: return with_size(std::integral_constant<int, 64>());
    case 128: return with_size(std::integral_constant<int, 128>());
    case 256: return with_size(std::integral_constant<int, 256>());
    default: throw std::invalid_argument("the state's width must be 16, 32, 64, 128 or 256");
  }
}

}  // namespace ssm
