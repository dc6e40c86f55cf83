// Small operations on tensors that both paths of a layer share.
#pragma once

#include <torch/types.h>

#include <string>
#include <type_traits>

#include "weft/core/bf16.h"
#include "weft/core/mask.h"
#include "weft/estimate/fp8.h"

namespace weft {

// Pointer to the elements of a tensor; T is float or Bf16.
template <typename T>
T* data_of(const torch::Tensor& t) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return reinterpret_cast<Bf16*>(t.data_ptr<c10::BFloat16>());
  } else {
    return t.data_ptr<T>();
  }
}

// Calls body with a value of the type of the elements, float or Bf16.
template <typename Body>
void with_type_of(const torch::Tensor& t, Body body) {
  t.scalar_type() == torch::kBFloat16 ? body(Bf16()) : body(float());
}

// For messages: "[8, 15]", "undefined".
std::string sizes_text(const torch::Tensor& t);

// What body returns. An error of libtorch, which has a page of frames, becomes an Error of one line
// that begins with `what`.
[[noreturn]] void throw_first_line(const std::string& what, const c10::Error& error);
template <typename Body>
auto weft_errors(const std::string& what, Body body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw_first_line(what, error);
  }
}

// 1 and 0 in the shape, dtype and device of `like`, which has mask.rows() rows.
torch::Tensor mask_tensor(const Mask& mask, const torch::Tensor& like);

// Between bf16 storage and fp32 arithmetic: fp32 of a bf16 tensor of the CPU, anything else as it
// is. torch's own bf16 products sum in bf16 on a CPU without bf16 arithmetic (libtorch 1.13: a
// thousand ones are 256), forty times slower than fp32.
torch::Tensor for_arithmetic(const torch::Tensor& x);
// fp32 of a bf16 tensor wherever it is, anything else as it is: for means and losses.
torch::Tensor widened(const torch::Tensor& x);

// The nearest FP8 numbers, scaled by the largest magnitude (estimate/fp8.h), as a new tensor.
torch::Tensor rounded_to_fp8(const torch::Tensor& x, Fp8 format);

}  // namespace weft
