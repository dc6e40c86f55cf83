// Precision: in which numbers the operands of products and the activations between layers are kept.
//
//   fp32   everything in single precision
//   bf16   operands and activations in bfloat16; sums, master weights and the optimiser in single
//
// How a product multiplies is another matter (kernel/kernels.h): bf16 operands may be multiplied in
// fp32 arithmetic, exactly, where the CPU has nothing better.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

enum class Precision : uint8_t { kFp32, kBf16 };
std::string_view precision_name(Precision precision);  // "fp32", "bf16"
Precision parse_precision(std::string_view text);      // Error unless one of these

}  // namespace weft
