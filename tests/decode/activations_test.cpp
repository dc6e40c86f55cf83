// What lies between the products: the layer norm and the GELU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/weights.h"
#include "weft/core/isa.h"
#include "weft/core/rng.h"
#include "weft/decode/activations.h"

namespace weft::test {
namespace {

// Also where the variance is not large beside the epsilon, or is nothing beside the mean.
TEST(Activations, LayerNormIsThatOfItsDefinition) {
  const Rng rng(test_seed(), 2000);
  uint64_t drawn = 0;
  const auto normal = [&] { return rng.normal(drawn++); };
  for (const std::string& isa : available_isas()) {
    force_isa(isa);
    for (const size_t width : {1, 2, 7, 8, 9, 16, 33, 100}) {
      for (const auto& [mean, scale] : {std::pair(0.0, 1.0), {0.0, 3e-3}, {100.0, 1.0}}) {
        std::vector<float> x(width), weight(width), bias(width), y(width);
        for (size_t i = 0; i < width; ++i) {
          x[i] = static_cast<float>(mean + scale * normal());
          weight[i] = static_cast<float>(normal());
          bias[i] = static_cast<float>(normal());
        }
        layer_norm(x.data(), weight.data(), bias.data(), static_cast<int64_t>(width), y.data());
        double average = 0, variance = 0;
        for (const float v : x) average += double{v} / static_cast<double>(width);
        for (const float v : x) {
          variance += (double{v} - average) * (double{v} - average) / static_cast<double>(width);
        }
        for (size_t i = 0; i < width; ++i) {
          const double wanted =
              (double{x[i]} - average) / std::sqrt(variance + 1e-5) * double{weight[i]} +
              double{bias[i]};
          // The mean is rounded to a float, 4e-6 off at 100.
          ASSERT_NEAR(double{y[i]}, wanted, mean == 0 ? 3e-6 : 1e-3)
              << isa << ", width " << width << ", mean " << mean << ", scale " << scale << ", "
              << i;
        }
      }
    }
    restore_isa();
  }
}

TEST(Activations, GeluIsThatOfErf) {
  for (const std::string& isa : available_isas()) {
    force_isa(isa);
    std::vector<float> x;
    for (int i = -30000; i <= 30000; ++i) x.push_back(static_cast<float>(i) * 1e-3f);
    for (const float special : {1e-30f, -1e-30f, 1e30f, -1e30f, 0.0f}) x.push_back(special);
    const std::vector<float> before = x;
    gelu(x.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = double{before[i]};
      const double wanted = 0.5 * v * std::erfc(-v / std::sqrt(2.0));
      ASSERT_NEAR(double{x[i]}, wanted, 2e-7 * std::max(1.0, std::abs(v))) << v << ", " << isa;
    }
    restore_isa();
  }
}

}  // namespace
}  // namespace weft::test
