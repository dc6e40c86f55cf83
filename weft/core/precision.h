// Precision: the number types of products, in one enum.
//
//   fp32   single precision
//   bf16   bfloat16, the upper half of a single (core/bf16.h)
//
// It says three things, which need not agree: what operands, activations and the values of a pack
// are kept in; and in which arithmetic a kernel multiplies them (kernel/kernels.h): bf16 operands
// may be multiplied in fp32 arithmetic, exactly, where the CPU has nothing better. Sums, master
// weights and the optimiser are fp32 always.
//
// Two enums beside it are about something else. Dtype (checkpoint/dtype.h) lists whatever a tensor in
// a file may hold, U8 and F64 too. Fp8 (estimate/fp8.h) is a grid that numbers are rounded to, which
// are then kept in one of these types.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

// The numbers stand in the headers of packs (docs/format.md).
enum class Precision : uint8_t { kFp32 = 1, kBf16 = 2 };
std::string_view precision_name(Precision precision);  // "fp32", "bf16"
Precision parse_precision(std::string_view text);      // Error unless one of these

}  // namespace weft
