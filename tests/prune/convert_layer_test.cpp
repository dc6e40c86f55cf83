// Every method on whole layers, against inputs that it is measured on anew.
#include "weft/prune/convert_layer.h"
#include "weft/mask/solver.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "tests/prune/layer_cases.h"
#include "weft/checkpoint/dtype.h"
#include "weft/mask/verify.h"
#include "weft/prune/support.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

const std::vector<WeightShape> kShapes = {{16, 32, 1}, {8, 8, 9}, {10, 30, 1}};

LayerProblem problem_of(const LayerCase& layer, std::string_view method, const PatternCase& pattern,
                        std::string_view support = "") {
  LayerProblem problem;
  problem.weights = layer.w.data();
  problem.shape = layer.shape;
  problem.pattern = pattern.pattern;
  problem.transposable = pattern.transposable;
  problem.method = method_of(method, support);
  problem.inputs = &layer.gram;
  return problem;
}

// ‖W'X + change − WX‖² / ‖WX‖² over the samples themselves.
double measured_error(const LayerCase& layer, const Matrix& weights,
                      const std::vector<double>& change = {}) {
  const Matrix before = naive_product(layer.w, turned(layer.x));
  const Matrix after = naive_product(weights, turned(layer.x));
  double off = 0.0, all = 0.0;
  for (int64_t r = 0; r < before.rows; ++r) {
    const double moved = change.empty() ? 0.0 : change[static_cast<size_t>(r)];
    for (int64_t s = 0; s < before.cols; ++s) {
      off += std::pow(after.at(r, s) + moved - before.at(r, s), 2);
      all += std::pow(before.at(r, s), 2);
    }
  }
  return off / all;
}

Matrix weights_of(const LayerCase& layer, const ConvertedLayer& converted) {
  return {layer.shape.outs, layer.shape.cols(), converted.weights};
}

void expect_obeys(const LayerCase& layer, const PatternCase& pattern,
                  const ConvertedLayer& converted) {
  const Matrix x = weights_of(layer, converted);
  EXPECT_EQ(zero_outside_support(x, converted.support), "");
  const Mask nonzero = nonzeros(x.data(), x.rows, x.cols);
  EXPECT_EQ(count_groups_in(nonzero, layer.shape, pattern.pattern).violations, 0);
  if (pattern.transposable) {
    EXPECT_EQ(count_groups_out(nonzero, layer.shape, pattern.pattern).violations, 0);
  }
}

class EveryMethod : public ::testing::TestWithParam<size_t> {
 protected:
  std::string_view name() const { return methods()[GetParam()].name; }
};
INSTANTIATE_TEST_SUITE_P(Table, EveryMethod, ::testing::Range(size_t{0}, methods().size()),
                         [](const auto& info) { return std::string(methods()[info.param].name); });

TEST_P(EveryMethod, ObeysThePatternAndReportsTheErrorThatInputsShow) {
  for (const PatternCase& pattern : kCases) {
    for (const WeightShape& shape : kShapes) {
      SCOPED_TRACE(trace(name(), shape, pattern.pattern, pattern.str(), 110));
      const LayerCase layer = draw_layer(shape, 110);
      const ConvertedLayer converted = convert_layer(problem_of(layer, name(), pattern));
      expect_obeys(layer, pattern, converted);
      EXPECT_GT(converted.support.count(), 0);
      ASSERT_TRUE(converted.error_before && converted.error_after);
      const double before = measured_error(layer, masked(layer.w, converted.support));
      const double after = measured_error(layer, weights_of(layer, converted));
      EXPECT_NEAR(*converted.error_before, before, 1e-9 * before);
      EXPECT_NEAR(*converted.error_after, after, 1e-9 * after);
      EXPECT_TRUE(converted.bias_change.empty());
      const bool solves = name() == "adaprune";
      EXPECT_EQ(converted.solver.has_value(), solves);
      if (solves) {
        EXPECT_LE(*converted.error_after, *converted.error_before);
      }
    }
  }
}

TEST_P(EveryMethod, IsTheSameOnTwoThreads) {
  const ThreadsGuard guard;
  for (const WeightShape& shape : kShapes) {
    const LayerCase layer = draw_layer(shape, 120);
    LayerProblem problem = problem_of(layer, name(), kCases[0]);
    problem.free_bias = name() == "adaprune";
    set_threads(1);
    const ConvertedLayer one = convert_layer(problem);
    set_threads(2);
    const ConvertedLayer two = convert_layer(problem);
    EXPECT_EQ(one.weights, two.weights);
    EXPECT_EQ(one.support, two.support);
    EXPECT_EQ(one.bias_change, two.bias_change);
    EXPECT_EQ(one.error_after, two.error_after);
  }
}

TEST_P(EveryMethod, WeightsAreWhatTheFileCanHoldAndTheErrorIsTheirs) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
    SCOPED_TRACE(fmt::format("{} {}, seed {}", name(), dtype_name(dtype), test_seed()));
    LayerCase layer = draw_layer({16, 32, 1}, 130);
    std::vector<std::byte> bytes(layer.w.values.size() * static_cast<size_t>(dtype_bits(dtype)) /
                                 8);
    const auto rounded = [&](const std::vector<double>& values) {
      round_weights(values, dtype, bytes);
      return with_weights(dtype, bytes,
                          [](auto held) { return std::vector<double>(held.begin(), held.end()); });
    };
    layer.w.values = rounded(layer.w.values);
    LayerProblem problem = problem_of(layer, name(), kCases[0]);
    problem.dtype = dtype;
    const ConvertedLayer converted = convert_layer(problem);
    EXPECT_EQ(converted.weights, rounded(converted.weights));
    const double after = measured_error(layer, weights_of(layer, converted));
    EXPECT_NEAR(*converted.error_after, after, (dtype == Dtype::kF32 ? 1e-6 : 1e-9) * after);
    expect_obeys(layer, kCases[0], converted);
  }
}

TEST_P(EveryMethod, WithoutInputsItRunsOnlyIfItNeedsNone) {
  const LayerCase layer = draw_layer({16, 32, 1}, 140);
  LayerProblem problem = problem_of(layer, name(), kCases[0]);
  problem.inputs = nullptr;
  if (problem.method.needs_inputs()) {
    EXPECT_TRUE(contains(message_of([&] { convert_layer(problem); }), "needs the inputs"));
    return;
  }
  const ConvertedLayer converted = convert_layer(problem);
  EXPECT_EQ(converted.error_before, std::nullopt);
  EXPECT_EQ(converted.error_after, std::nullopt);
  EXPECT_EQ(converted.weights, convert_layer(problem_of(layer, name(), kCases[0])).weights);
}

TEST_P(EveryMethod, RefusesWeightsThatAreNotFinite) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e300}) {
    LayerCase layer = draw_layer({16, 32, 1}, 141);
    layer.w.at(3, 7) = value;
    try {
      convert_layer(problem_of(layer, name(), kCases[0]));
      ADD_FAILURE() << "no error at " << value;
    } catch (const UnusableWeightError& error) {
      EXPECT_EQ(error.weight().row, 3);
      EXPECT_EQ(error.weight().col, 7);
    }
  }
}

TEST_P(EveryMethod, ZerosStayZeroAndASparseLayerStaysAsItIs) {
  LayerCase layer = draw_layer({16, 32, 1}, 142);
  layer.w = weights_of(layer, convert_layer(problem_of(layer, "magnitude", kCases[0])));
  for (size_t i = 0; i < layer.w.values.size(); i += 16) layer.w.values[i] = 0.0;
  const ConvertedLayer converted = convert_layer(problem_of(layer, name(), kCases[0]));
  EXPECT_EQ(converted.weights, layer.w.values);
  EXPECT_EQ(converted.error_after, 0.0);
}

TEST_P(EveryMethod, SamplesThatAreTooFewAreCounted) {
  const Method method = method_of(name());
  const bool solves = name() == "adaprune" || name() == "sparsegpt";
  EXPECT_EQ(samples_needed(method, {3, 32, 1}, Pattern(2, 4)), solves ? 16 : 1);
  EXPECT_EQ(samples_needed(method, {3, 30, 9}, Pattern(2, 4)), solves ? 9 * 16 : 1);
  EXPECT_EQ(samples_needed(method, {3, 29, 1}, Pattern(2, 4)), solves ? 15 : 1);
  EXPECT_EQ(samples_needed(method, {3, 3, 1}, Pattern(4, 8)), solves ? 3 : 1);
  const LayerCase few = draw_layer({16, 32, 1}, 143, 15), enough = draw_layer({16, 32, 1}, 143, 16);
  convert_layer(problem_of(enough, name(), kCases[0]));
  if (!solves) return;
  const std::string message =
      message_of([&] { convert_layer(problem_of(few, name(), kCases[0])); });
  EXPECT_TRUE(contains(message, "15 samples")) << message;
  EXPECT_TRUE(contains(message, "needs 16")) << message;
}

TEST(ConvertLayer, AdapruneIsTheBestOnItsSupport) {
  for (const PatternCase& pattern : kCases) {
    for (const WeightShape& shape : kShapes) {
      SCOPED_TRACE(trace("adaprune", shape, pattern.pattern, pattern.str(), 150));
      const LayerCase layer = draw_layer(shape, 150);
      const auto error = [&](std::string_view method, std::string_view support = "") {
        LayerProblem problem = problem_of(layer, method, pattern, support);
        problem.least_squares = {1e-12, 5000};
        return *convert_layer(problem).error_after;
      };
      EXPECT_LT(error("adaprune", "magnitude"), error("magnitude"));
      EXPECT_LT(error("adaprune", "magnitude"), error("absorption"));
      EXPECT_LT(error("adaprune", "wanda"), error("wanda"));
      EXPECT_LT(error("adaprune", "wanda"), error("absorption", "wanda"));
      EXPECT_LT(error("adaprune", "sparsegpt"), error("sparsegpt"));
      const ConvertedLayer own = convert_layer(problem_of(layer, "sparsegpt", pattern));
      const ConvertedLayer better =
          convert_layer(problem_of(layer, "adaprune", pattern, "sparsegpt"));
      EXPECT_EQ(own.support, better.support);
      EXPECT_EQ(own.error_before, better.error_before);
      const Matrix exact = exact_squares({layer.w, layer.gram, own.support});
      EXPECT_NEAR(error("adaprune", "sparsegpt"), measured_error(layer, exact), 1e-8);
    }
  }
}

// However few steps are allowed: the best of what is at hand stays.
TEST(ConvertLayer, AdapruneIsNeverWorseThanItsStarts) {
  for (const Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16}) {
    for (const double noise : {0.7, 1e-3, 100.0}) {  // 100: nothing to gain
      LayerCase layer = draw_layer({12, 24, 1}, 154);
      layer.x = draw_inputs(500, 24, 155, noise);
      layer.gram = naive_gram(layer.x);
      for (double& value : layer.w.values)
        value =
            std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(value)) & 0xffff0000u);
      for (const std::string support : {"magnitude", "wanda", "sparsegpt"}) {
        SCOPED_TRACE(fmt::format("{} {} noise {}", support, dtype_name(dtype), noise));
        LayerProblem problem = problem_of(layer, "adaprune", kCases[0], support);
        problem.dtype = dtype;
        problem.least_squares = {1e-3, 1};
        const ConvertedLayer converted = convert_layer(problem);
        EXPECT_LE(*converted.error_after, *converted.error_before);
        if (dtype != Dtype::kF64) continue;
        const std::string peer = support == "sparsegpt" ? "sparsegpt" : "absorption";
        EXPECT_LE(
            *converted.error_after,
            *convert_layer(problem_of(layer, peer, kCases[0], peer == "sparsegpt" ? "" : support))
                 .error_after);
      }
    }
  }
}

// Inputs that are alike within a group are what absorption is right for.
TEST(ConvertLayer, AdapruneBeginsWithAbsorptionWhereThatIsBest) {
  LayerCase layer = draw_layer({12, 24, 1}, 156);
  const Matrix own = draw_matrix(Kind::kGaussian, 100, 24, 157);
  const Matrix shared = draw_matrix(Kind::kGaussian, 100, 6, 158);
  for (int64_t s = 0; s < 100; ++s) {
    for (int64_t c = 0; c < 24; ++c) {
      layer.x.at(s, c) =
          (1.0 + static_cast<double>(c / 4)) * shared.at(s, c / 4) + 0.01 * own.at(s, c);
    }
  }
  layer.x = {100, 24, {layer.x.values.begin(), layer.x.values.begin() + 2400}};
  layer.gram = naive_gram(layer.x);
  LayerProblem problem = problem_of(layer, "adaprune", kCases[0], "magnitude");
  problem.least_squares = {1e-3, 1};
  EXPECT_LE(*convert_layer(problem).error_after,
            *convert_layer(problem_of(layer, "absorption", kCases[0])).error_after);
}

TEST(ConvertLayer, AFreeBiasTakesTheChangeOfTheMean) {
  for (const WeightShape& shape : kShapes) {
    for (const std::string support : {"magnitude", "wanda", "sparsegpt"}) {
      SCOPED_TRACE(trace(support, shape, Pattern(2, 4), "", 160));
      const LayerCase layer = draw_layer(shape, 160);
      LayerProblem problem = problem_of(layer, "adaprune", kCases[0], support);
      problem.least_squares = {1e-12, 5000};
      const double fixed = *convert_layer(problem).error_after;
      problem.free_bias = true;
      const ConvertedLayer converted = convert_layer(problem);
      const Matrix x = weights_of(layer, converted);
      ASSERT_EQ(converted.bias_change.size(), static_cast<size_t>(shape.outs));
      for (int64_t r = 0; r < shape.outs; ++r) {
        double expected = 0.0;
        for (int64_t c = 0; c < shape.cols(); ++c) {
          expected += (layer.w.at(r, c) - x.at(r, c)) * layer.gram.mean[static_cast<size_t>(c)];
        }
        EXPECT_NEAR(converted.bias_change[static_cast<size_t>(r)], expected, 1e-12);
      }
      const double before = measured_error(layer, masked(layer.w, converted.support));
      const double after = measured_error(layer, x, converted.bias_change);
      EXPECT_NEAR(*converted.error_before, before, 1e-9 * before);
      EXPECT_NEAR(*converted.error_after, after, 1e-9 * after);
      if (support != "sparsegpt") {
        EXPECT_LT(*converted.error_after, fixed);
      }
      EXPECT_LT(after, measured_error(layer, x)) << "the bias where it was";
    }
  }
}

TEST(ConvertLayer, AFreeBiasNeedsTheMean) {
  LayerCase layer = draw_layer({8, 16, 1}, 161);
  layer.gram.mean.clear();
  LayerProblem problem = problem_of(layer, "adaprune", kCases[0]);
  convert_layer(problem);
  problem.free_bias = true;
  EXPECT_TRUE(contains(message_of([&] { convert_layer(problem); }), "mean"));
}

TEST(ConvertLayer, RefusesInputsOfAnotherLayerAndWeightsTooLargeForTheirType) {
  LayerCase layer = draw_layer({8, 16, 1}, 162);
  const LayerCase other = draw_layer({8, 12, 1}, 163);
  LayerProblem problem = problem_of(layer, "magnitude", kCases[0]);
  problem.inputs = &other.gram;
  const std::string message = message_of([&] { convert_layer(problem); });
  EXPECT_TRUE(contains(message, "12 columns for weights of 16")) << message;
  for (double& weight : layer.w.values) weight = 65504;  // all of a group in half of it
  problem = problem_of(layer, "absorption", kCases[0]);
  problem.dtype = Dtype::kF16;
  EXPECT_TRUE(contains(message_of([&] { convert_layer(problem); }), "too large for F16"));
}

TEST(Methods, AreFoundByNameAndWithASupport) {
  for (const Method& method : methods()) {
    EXPECT_EQ(method_of(method.name).name, method.name);
    const bool chooses = method.name == "adaprune" || method.name == "absorption";
    for (const std::string support : {"magnitude", "wanda", "sparsegpt"}) {
      const std::string message = message_of([&] { method_of(method.name, support); });
      const bool goes = chooses && (method.name == "adaprune" || support != "sparsegpt");
      EXPECT_EQ(message == "(no Error)", goes) << method.name << " " << support << ": " << message;
    }
  }
  EXPECT_EQ(support_name(method_of("adaprune").support), "sparsegpt");
  EXPECT_EQ(support_name(method_of("adaprune", "wanda").support), "wanda");
  EXPECT_EQ(support_name(method_of("absorption").support), "magnitude");
  EXPECT_TRUE(method_of("absorption", "wanda").needs_inputs());
  EXPECT_FALSE(method_of("absorption").needs_inputs());
  EXPECT_TRUE(contains(message_of([] { method_of("obd"); }), "magnitude, wanda, absorption"));
  EXPECT_TRUE(contains(message_of([] { method_of("adaprune", "random"); }), "sparsegpt"));
}

}  // namespace
}  // namespace weft
