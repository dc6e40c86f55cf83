// Rounding by addition: for |y| in [2^e, 2^(e+1)), the sum |y| + 2^(e + 23 - mantissa bits) has
// room for just those bits, and the addition itself rounds to the nearest, ties to even. Below the
// smallest normal number e stays, which makes the subnormals.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/estimate/fp8.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/estimate/fp8.h"

#ifndef WEFT_ESTIMATE_FP8_ONCE
#define WEFT_ESTIMATE_FP8_ONCE
namespace weft {
namespace {

struct Format {
  int mantissa_bits;
  int bias;
  float largest;
  uint8_t nan;
};
constexpr Format kFormats[] = {{3, 7, 448.0f, 0x7f}, {2, 15, 57344.0f, 0x7f}};
constexpr const Format& format_of(Fp8 format) { return kFormats[static_cast<size_t>(format)]; }

// Whole lines of cache, and enough of them to be worth a thread.
constexpr size_t kChunk = size_t{1} << 14;

}  // namespace
}  // namespace weft
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::VFromD<DF>;
using VI = hn::VFromD<DI>;

constexpr int32_t kExponents = 0x7f800000;  // the bits of infinity

HWY_INLINE VF RoundVector(VF x, const Format& format, float scale) {
  const DF df;
  const DI di;
  const VF y = hn::Mul(x, hn::Set(df, scale));
  const VF size = hn::Min(hn::Abs(y), hn::Set(df, format.largest));
  const VI lowest = hn::Set(di, (127 + 1 - format.bias) << 23);
  const VI exponent = hn::Max(hn::And(hn::BitCast(di, size), hn::Set(di, kExponents)), lowest);
  const VF room =
      hn::BitCast(df, hn::Add(exponent, hn::Set(di, (23 - format.mantissa_bits) << 23)));
  const VF rounded = hn::CopySign(hn::Sub(hn::Add(size, room), room), y);
  const auto finite = hn::Lt(hn::BitCast(di, hn::Abs(x)), hn::Set(di, kExponents));
  return hn::IfThenElse(hn::RebindMask(df, finite), hn::Div(rounded, hn::Set(df, scale)),
                        hn::Set(df, std::numeric_limits<float>::quiet_NaN()));
}

void RoundChunk(const float* in, size_t count, const Format& format, float scale, float* out) {
  const DF df;
  const size_t lanes = hn::Lanes(df), whole = count / lanes * lanes;
  for (size_t i = 0; i < whole; i += lanes) {
    hn::StoreU(RoundVector(hn::LoadU(df, in + i), format, scale), df, out + i);
  }
  if (whole == count) return;
  HWY_ALIGN float rest[hn::MaxLanes(DF())] = {};
  std::copy_n(in + whole, count - whole, rest);
  hn::Store(RoundVector(hn::Load(df, rest), format, scale), df, rest);
  std::copy_n(rest, count - whole, out + whole);
}

float MaximumOfChunk(const float* in, size_t count) {
  const DF df;
  const DI di;
  const size_t lanes = hn::Lanes(df), whole = count / lanes * lanes;
  VI most = hn::Zero(di);
  for (size_t i = 0; i < whole; i += lanes) {
    const VI bits = hn::BitCast(di, hn::Abs(hn::LoadU(df, in + i)));
    most = hn::Max(most, hn::IfThenElseZero(hn::Lt(bits, hn::Set(di, kExponents)), bits));
  }
  float maximum = hn::GetLane(hn::MaxOfLanes(df, hn::BitCast(df, most)));
  for (size_t i = whole; i < count; ++i) {
    if (std::isfinite(in[i])) maximum = std::max(maximum, std::abs(in[i]));
  }
  return maximum;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(RoundChunk);
HWY_EXPORT(MaximumOfChunk);

namespace {

// Calls body(first element, count) for every chunk, in parallel.
template <typename Body>
void for_each_chunk(size_t size, Body body) {
  parallel_for(static_cast<int64_t>((size + kChunk - 1) / kChunk), [&](int64_t chunk) {
    const size_t first = static_cast<size_t>(chunk) * kChunk;
    body(first, std::min(kChunk, size - first));
  });
}

}  // namespace

Fp8 parse_fp8(std::string_view name) {
  for (const Fp8 format : {Fp8::kE4m3, Fp8::kE5m2}) {
    if (name == fp8_name(format)) return format;
  }
  throw Error(fmt::format("FP8 format '{}': accepted are {} and {}", name, fp8_name(Fp8::kE4m3),
                          fp8_name(Fp8::kE5m2)));
}

std::string_view fp8_name(Fp8 format) { return format == Fp8::kE4m3 ? "e4m3" : "e5m2"; }

float fp8_largest(Fp8 format) { return format_of(format).largest; }

uint8_t fp8_encode(float value, Fp8 format) {
  const Format& f = format_of(format);
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 31 << 7);
  if (!std::isfinite(value)) return sign | f.nan;
  // What is now a float without more bits than the format has, in units of the last of them.
  const float rounded = [&] {
    float one = 0;
    round_to_fp8({&value, 1}, format, 1.0f, {&one, 1});
    return std::abs(one);
  }();
  const int lowest = 1 - f.bias;
  const int exponent = rounded == 0 ? lowest : std::max(std::ilogb(rounded), lowest);
  const auto units = static_cast<int>(std::ldexp(rounded, f.mantissa_bits - exponent));
  return static_cast<uint8_t>(sign | (((exponent - lowest) << f.mantissa_bits) + units));
}

float fp8_decode(uint8_t code, Fp8 format) {
  const Format& f = format_of(format);
  const int field = (code & 0x7f) >> f.mantissa_bits;
  const int fraction = code & ((1 << f.mantissa_bits) - 1);
  const int implicit = field > 0 ? 1 << f.mantissa_bits : 0;
  const float size = std::ldexp(static_cast<float>(implicit + fraction),
                                std::max(field, 1) - f.bias - f.mantissa_bits);
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  if (size <= f.largest) return sign * size;
  const bool infinite = format == Fp8::kE5m2 && fraction == 0;
  return sign * (infinite ? std::numeric_limits<float>::infinity()
                          : std::numeric_limits<float>::quiet_NaN());
}

float finite_maximum(std::span<const float> x) {
  std::vector<float> maxima((x.size() + kChunk - 1) / kChunk);
  for_each_chunk(x.size(), [&](size_t first, size_t count) {
    maxima[first / kChunk] = HWY_DYNAMIC_DISPATCH(MaximumOfChunk)(x.data() + first, count);
  });
  return maxima.empty() ? 0.0f : *std::max_element(maxima.begin(), maxima.end());
}

float fp8_scale(float maximum, Fp8 format) {
  WEFT_CHECK(maximum >= 0 && std::isfinite(maximum),
             "maximum {}: accepted are finite numbers of at least 0", maximum);
  if (maximum == 0) return 1.0f;
  return std::min(fp8_largest(format) / maximum, 0x1p127f);
}

void round_to_fp8(std::span<const float> in, Fp8 format, float scale, std::span<float> out) {
  WEFT_CHECK(in.size() == out.size(), "{} elements to round into {}", in.size(), out.size());
  WEFT_CHECK(scale > 0 && std::isfinite(scale), "scale {}: accepted are positive, finite numbers",
             scale);
  for_each_chunk(in.size(), [&](size_t first, size_t count) {
    HWY_DYNAMIC_DISPATCH(RoundChunk)
    (in.data() + first, count, format_of(format), scale, out.data() + first);
  });
}

void round_to_fp8(std::span<const float> in, Fp8 format, std::span<float> out) {
  round_to_fp8(in, format, fp8_scale(finite_maximum(in), format), out);
}

}  // namespace weft
#endif
