// Numbers from bfloat16 to fp32, exactly, and back, to the nearest, ties to even (core/bf16.h):
// fp32 arithmetic on bf16 storage, where the CPU has no arithmetic of bf16. Products that have no
// loop of their own for bf16 expand their operands and round their result.
//
// Cost: one pass at the speed of memory; long ones in parallel. The result does not depend on
// threads or instruction sets.
#pragma once

#include <cstdint>

#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"

namespace weft {

// from, to: [size]; they must not overlap.
void expand(const Bf16* from, int64_t size, float* to);
void round_to_bf16(const float* from, int64_t size, Bf16* to);

// The same for matrices of one size, whose row stride may exceed their row length.
void expand(MatrixView<const Bf16> from, MatrixView<float> to);
void round_to_bf16(MatrixView<const float> from, MatrixView<Bf16> to);

// On the calling thread alone, for a few numbers at a time.
void expand_here(const Bf16* from, int64_t size, float* to);
void round_here(const float* from, int64_t size, Bf16* to);

// Room for fp32 copies of the operands and the result of one product, on a cache line. The thread
// keeps it for the next one: fresh pages cost as much as the copy. What was there is lost.
enum class CopyOf : uint8_t { kFirst, kSecond, kResult };
float* fp32_copy(CopyOf place, int64_t size);

// An operand in fp32, in that room.
const float* expanded(CopyOf place, const Bf16* from, int64_t size);
MatrixView<const float> expanded(CopyOf place, MatrixView<const Bf16> from);

// Calls product(sums) and rounds them into `to`, [size]; unless beta is 0, sums begin as `to`.
template <typename Run>
void rounded_result(Bf16* to, int64_t size, float beta, Run product) {
  float* sums = fp32_copy(CopyOf::kResult, size);
  if (beta != 0) expand(to, size, sums);
  product(sums);
  round_to_bf16(sums, size, to);
}

}  // namespace weft
