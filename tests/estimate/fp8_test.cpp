// FP8: every code against its definition written out, rounding between all neighbours, and the
// simulation of a tensor with one scale.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support.h"
#include "weft/core/isa.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"
#include "weft/estimate/fp8.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;
using test::test_seed;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<Fp8> kBoth = {Fp8::kE4m3, Fp8::kE5m2};

// As the tables of the formats read: sign, exponent, fraction.
double defined(int code, Fp8 format) {
  const double sign = code >= 128 ? -1 : 1;
  if (format == Fp8::kE4m3) {
    const int exponent = code / 8 % 16, fraction = code % 8;
    if (exponent == 15 && fraction == 7) return kNan;
    if (exponent == 0) return sign * std::pow(2.0, -6) * fraction / 8;
    return sign * std::pow(2.0, exponent - 7) * (1 + fraction / 8.0);
  }
  const int exponent = code / 4 % 32, fraction = code % 4;
  if (exponent == 31) return fraction == 0 ? sign * kInfinity : kNan;
  if (exponent == 0) return sign * std::pow(2.0, -14) * fraction / 4;
  return sign * std::pow(2.0, exponent - 15) * (1 + fraction / 4.0);
}

// The finite codes from 0 up, of positive sign.
std::vector<int> finite_codes(Fp8 format) {
  std::vector<int> codes;
  for (int code = 0; code < 128; ++code) {
    if (std::isfinite(defined(code, format))) codes.push_back(code);
  }
  return codes;
}

float rounded(float value, Fp8 format) {
  float result = 0;
  round_to_fp8({&value, 1}, format, 1.0f, {&result, 1});
  return result;
}

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST(Fp8Codes, AreAsDefined) {
  for (const Fp8 format : kBoth) {
    for (int code = 0; code < 256; ++code) {
      const auto want = static_cast<float>(defined(code, format));
      const float value = fp8_decode(static_cast<uint8_t>(code), format);
      EXPECT_TRUE(same(value, want)) << fp8_name(format) << " " << code << ": " << value;
      if (std::isfinite(want)) {
        EXPECT_EQ(fp8_encode(want, format), code) << fp8_name(format) << " " << want;
        EXPECT_TRUE(same(rounded(want, format), want)) << fp8_name(format) << " " << want;
      } else {
        EXPECT_TRUE(std::isnan(fp8_decode(fp8_encode(want, format), format)));
      }
    }
    EXPECT_EQ(fp8_largest(format), format == Fp8::kE4m3 ? 448 : 57344);
    EXPECT_EQ(fp8_largest(format), defined(finite_codes(format).back(), format));
  }
}

TEST(Fp8Rounding, IsToTheNearestTiesToEven) {
  for (const Fp8 format : kBoth) {
    const std::vector<int> codes = finite_codes(format);
    for (size_t i = 0; i + 1 < codes.size(); ++i) {
      const auto low = static_cast<float>(defined(codes[i], format));
      const auto high = static_cast<float>(defined(codes[i + 1], format));
      const float middle = (low + high) / 2;  // exact
      const auto expect = [&](float value, int code) {
        for (const int sign : {0, 128}) {
          const float signed_value = sign == 0 ? value : -value;
          EXPECT_EQ(fp8_encode(signed_value, format), code + sign)
              << fp8_name(format) << " " << signed_value;
          EXPECT_TRUE(
              same(rounded(signed_value, format), static_cast<float>(defined(code + sign, format))))
              << fp8_name(format) << " " << signed_value;
        }
      };
      expect(middle, codes[i] % 2 == 0 ? codes[i] : codes[i + 1]);
      expect(std::nextafter(middle, 0.0f), codes[i]);
      expect(std::nextafter(middle, high), codes[i + 1]);
      expect(low + (high - low) / 4, codes[i]);
      expect(std::nextafter(high, 0.0f), codes[i + 1]);
    }
  }
}

TEST(Fp8Rounding, SaturatesAndKeepsWhatIsNotFinite) {
  for (const Fp8 format : kBoth) {
    const float largest = fp8_largest(format);
    for (const float factor : {1.0f, 1.01f, 1.5f, 1e6f}) {
      EXPECT_EQ(rounded(largest * factor, format), largest);
      EXPECT_EQ(fp8_decode(fp8_encode(-largest * factor, format), format), -largest);
    }
    EXPECT_EQ(rounded(std::numeric_limits<float>::max(), format), largest);
    for (const float value : {kNan, -kNan, kInfinity, -kInfinity}) {
      EXPECT_TRUE(std::isnan(rounded(value, format)));
      EXPECT_TRUE(std::isnan(fp8_decode(fp8_encode(value, format), format)));
    }
    EXPECT_TRUE(same(rounded(-0.0f, format), -0.0f));
    EXPECT_TRUE(same(rounded(-1e-30f, format), -0.0f));
    EXPECT_EQ(fp8_encode(std::numeric_limits<float>::denorm_min(), format), 0);
  }
}

// Gaussian numbers times 2^exponent.
std::vector<float> numbers(size_t count, int exponent, uint64_t stream) {
  std::vector<float> values(count);
  const Rng rng(test_seed(), stream);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::ldexp(static_cast<float>(rng.normal(i)), exponent);
  }
  return values;
}

std::vector<float> rounded(const std::vector<float>& values, Fp8 format) {
  std::vector<float> out(values.size(), 7.0f);
  round_to_fp8(values, format, out);
  return out;
}

// From the codes: the nearest of all, of x s with s as in the header.
std::vector<float> naive(const std::vector<float>& values, Fp8 format) {
  float maximum = 0;
  for (const float v : values) {
    if (std::isfinite(v)) maximum = std::max(maximum, std::abs(v));
  }
  std::vector<float> out;
  const float scale =
      maximum == 0 ? 1.0f : std::min(fp8_largest(format) / maximum, std::ldexp(1.0f, 127));
  for (const float v : values) {
    out.push_back(std::isfinite(v) ? fp8_decode(fp8_encode(v * scale, format), format) / scale
                                   : kNan);
  }
  return out;
}

void expect_same(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(same(a[i], b[i])) << i << ": " << a[i] << ", " << b[i];
}

TEST(Fp8Tensor, IsRoundedWithTheScaleOfItsMaximum) {
  for (const Fp8 format : kBoth) {
    for (const size_t count : {0u, 1u, 7u, 8u, 9u, 33u, 16383u, 16384u, 16385u, 50000u}) {
      const std::vector<float> values = numbers(count, -3, count);
      expect_same(rounded(values, format), naive(values, format));
    }
    // In place.
    std::vector<float> values = numbers(1000, 5, 3);
    const std::vector<float> want = naive(values, format);
    round_to_fp8(values, format, values);
    expect_same(values, want);
  }
}

TEST(Fp8Tensor, IsWithinHalfAUnitInTheLastPlace) {
  for (const Fp8 format : kBoth) {
    const std::vector<float> values = numbers(10000, 0, 4);
    const std::vector<float> out = rounded(values, format);
    const double maximum = finite_maximum(values);
    const double bound = format == Fp8::kE4m3 ? 0x1p-4 : 0x1p-3;
    const double normal = (format == Fp8::kE4m3 ? 0x1p-6 : 0x1p-14) / fp8_largest(format) * maximum;
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::abs(values[i]) < normal) continue;
      worst = std::max(worst, std::abs(double{out[i]} - values[i]) / std::abs(double{values[i]}));
    }
    EXPECT_LE(worst, bound);
    EXPECT_GT(worst, 0.8 * bound) << "it does not round at all";
    const auto largest = std::ranges::max_element(values, {}, [](float v) { return std::abs(v); });
    EXPECT_NEAR(out[static_cast<size_t>(largest - values.begin())], *largest,
                1e-6 * std::abs(*largest));
  }
}

TEST(Fp8Tensor, ScalesWithPowersOfTwo) {
  for (const Fp8 format : kBoth) {
    const std::vector<float> values = numbers(1000, 0, 5);
    const std::vector<float> out = rounded(values, format);
    for (const int exponent : {-80, -1, 1, 60, 100}) {
      std::vector<float> scaled = values, want = out;
      for (float& v : scaled) v = std::ldexp(v, exponent);
      for (float& v : want) v = std::ldexp(v, exponent);
      expect_same(rounded(scaled, format), want);
    }
  }
}

TEST(Fp8Tensor, CopesWithZerosAndTinyNumbers) {
  for (const Fp8 format : kBoth) {
    expect_same(rounded(std::vector<float>{0.0f, -0.0f, 0.0f}, format), {0.0f, -0.0f, 0.0f});
    EXPECT_EQ(fp8_scale(0, format), 1);
    // The scale would be infinite.
    for (const float maximum : {1e-36f, 1e-38f, 3e-39f}) {
      EXPECT_EQ(fp8_scale(maximum, format), std::ldexp(1.0f, 127));
      const std::vector<float> out = rounded({maximum, -maximum / 2, 0}, format);
      EXPECT_NEAR(out[0], maximum, maximum / 8);
      EXPECT_NEAR(out[1], -maximum / 2, maximum / 8);
      EXPECT_EQ(out[2], 0);
    }
    const std::vector<float> least(3, std::numeric_limits<float>::denorm_min());
    for (const float v : rounded(least, format)) EXPECT_TRUE(v == 0 || v == least[0]);
  }
}

TEST(Fp8Tensor, KeepsWhatIsNotFiniteToItself) {
  for (const Fp8 format : kBoth) {
    const std::vector<float> values = numbers(100, 0, 6);
    const std::vector<float> want = rounded(values, format);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      std::vector<float> hurt = values;
      hurt.insert(hurt.begin() + 13, bad);
      std::vector<float> out = rounded(hurt, format);
      EXPECT_TRUE(std::isnan(out[13]));
      out.erase(out.begin() + 13);
      expect_same(out, want);
      EXPECT_EQ(finite_maximum(hurt), finite_maximum(values));
    }
    const std::vector<float> all = rounded({kNan, kInfinity}, format);
    EXPECT_TRUE(std::isnan(all[0]) && std::isnan(all[1]));
  }
  EXPECT_EQ(finite_maximum({}), 0);
}

TEST(Fp8Tensor, IsTheSameOnEveryInstructionSetAndAnyThreads) {
  struct Guard {
    int before = threads();
    ~Guard() {
      restore_isa();
      set_threads(before);
    }
  } guard;
  std::vector<float> values = numbers(100001, 0, 7);
  values[5] = kInfinity;
  for (const Fp8 format : kBoth) {
    const std::vector<float> want = naive(values, format);
    for (const std::string& isa : available_isas()) {
      force_isa(isa);
      for (const int count : {1, 2, 3}) {
        set_threads(count);
        expect_same(rounded(values, format), want);
      }
    }
    restore_isa();
  }
}

TEST(Fp8Tensor, RefusesWrongCalls) {
  std::vector<float> in(3), out(4);
  EXPECT_TRUE(contains(message_of([&] { round_to_fp8(in, Fp8::kE4m3, out); }), "3 elements"));
  EXPECT_TRUE(contains(message_of([&] { round_to_fp8(in, Fp8::kE4m3, 0.0f, in); }), "scale 0"));
  EXPECT_TRUE(contains(message_of([&] { fp8_scale(kInfinity, Fp8::kE4m3); }), "inf"));
  EXPECT_TRUE(contains(message_of([&] { fp8_scale(-1, Fp8::kE4m3); }), "-1"));
  EXPECT_EQ(parse_fp8("e4m3"), Fp8::kE4m3);
  EXPECT_EQ(parse_fp8("e5m2"), Fp8::kE5m2);
  EXPECT_TRUE(contains(message_of([&] { parse_fp8("fp8"); }), "e4m3 and e5m2"));
}

}  // namespace
}  // namespace weft
