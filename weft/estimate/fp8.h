// FP8, the two 8-bit floats of training: rounding to them, and back.
//
//   e4m3  s eeee mmm   bias 7,  largest 448,   no infinity, NaN is s 1111 111
//   e5m2  s eeeee mm   bias 15, largest 57344, infinity s 11111 00, NaN above it
//
// Exponent 0 has the subnormals, multiples of 2^-9 and 2^-16. Rounding is to the nearest, ties to
// even; a finite number that is too large becomes the largest. What is not finite becomes NaN: an
// overflow must not pass for a number.
//
// round_to_fp8 simulates a tensor that is kept in FP8 with one scale, from its current maximum:
//
//   s = largest / max |x|        out = fp8(x s) / s
//
// so what comes out are the dequantised values, floats again. The maximum is that of the finite
// elements; others come out as NaN and touch no neighbour. If all are zero, all stay zero. s is at
// most 2^127: tensors whose maximum is below 2^-118 (e4m3) or 2^-111 (e5m2) use less than the
// whole range of the format, and only those below about 2^-137 and 2^-144 lose all.
//
// Cost: two passes, in parallel; the result does not depend on threads or instruction sets. `out`
// may be `in`.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace weft {

enum class Fp8 : uint8_t { kE4m3, kE5m2 };

// "e4m3", "e5m2"; throws Error that names them.
Fp8 parse_fp8(std::string_view name);
std::string_view fp8_name(Fp8 format);

float fp8_largest(Fp8 format);  // 448, 57344
uint8_t fp8_encode(float value, Fp8 format);
float fp8_decode(uint8_t code, Fp8 format);

// The largest |x| of the finite elements; 0 if there are none.
float finite_maximum(std::span<const float> x);
// s for a maximum; 1 if it is 0.
float fp8_scale(float maximum, Fp8 format);

void round_to_fp8(std::span<const float> in, Fp8 format, std::span<float> out);
// With a given scale, as for a tensor in several parts; positive and finite.
void round_to_fp8(std::span<const float> in, Fp8 format, float scale, std::span<float> out);

}  // namespace weft
