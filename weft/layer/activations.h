// Activations of either type, float or Bf16, as the products of a layer need them: rounded to FP8,
// sampled, widened, compared.
#pragma once

#include <optional>
#include <span>

#include "weft/core/aligned_buffer.h"
#include "weft/core/bf16.h"
#include "weft/estimate/fp8.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// The nearest FP8 numbers, scaled by the largest magnitude (estimate/fp8.h).
AlignedBuffer<float> rounded_to_fp8(const float* x, int64_t size, Fp8 format);
AlignedBuffer<Bf16> rounded_to_fp8(const Bf16* x, int64_t size, Fp8 format);

// g in fp32, valid until the next call on this thread.
const float* as_floats(const float* g, int64_t size);
const float* as_floats(const Bf16* g, int64_t size);

// The sample of g as a dense matrix, for a dense product, in place of its scales (sample_scales). In
// parallel.
AlignedBuffer<float> sampled(const float* g, AlignedBuffer<float> scales,
                             const std::optional<Fp8>& rounding);

// Rounds a sample to the type of the product's other operand.
void round_like(const float* other, std::span<PackedMatrix> packed);
void round_like(const Bf16* other, std::span<PackedMatrix> packed);
AlignedBuffer<float> round_like(const float* other, AlignedBuffer<float> sample);
AlignedBuffer<Bf16> round_like(const Bf16* other, const AlignedBuffer<float>& sample);

// <a, b> / (|a| |b|), summed in double; 1 if one of them is zero. T: double, float or Bf16.
template <typename T>
double cosine(const T* a, const T* b, int64_t size);

}  // namespace weft
