// The sparse products of bf16 activations against naive ones in double, and packs of bf16 samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernel/bf16_matrix.h"
#include "tests/linear_problem.h"
#include "weft/estimate/mvue.h"
#include "weft/kernel/panel/panel.h"
#include "weft/kernel/panel/panel_size.h"
#include "weft/kernel/stream/stream.h"
#include "weft/pack/pack.h"

namespace weft::test {
namespace {

// A problem with operands in bf16, and the product of their bits.
class Bf16Problem {
 public:
  explicit Bf16Problem(Linear linear) : problem_(as_bf16(linear)) {
    round_values(problem_.dense());
    bias_.resize(static_cast<size_t>(linear.rows));
    for (size_t i = 0; i < bias_.size(); ++i) bias_[i] = static_cast<float>(i % 5) * 0.75f - 1;
  }

  LinearProblem& problem() { return problem_; }
  bool of_weights() const { return problem_.linear().form.product == Product::kBackwardWeight; }

  ExpectedMatrix expected() const {
    ExpectedMatrix want = problem_.expected();
    if (!has_bias()) return want;
    for (int64_t r = 0; r < want.rows; ++r) {
      for (int64_t c = 0; c < want.cols; ++c) want.add(r, c, bias_[static_cast<size_t>(c)], 1);
    }
    return want;
  }

  // y and dx; dw is fp32.
  Bf16Matrix run() {
    const Bf16Matrix x(problem_.dense());
    Bf16Matrix y(problem_.output());
    const float beta = problem_.linear().beta;
    if (problem_.linear().form.product == Product::kForward) {
      sparse_forward(x.view(), problem_.packed(), has_bias() ? bias_.data() : nullptr, beta,
                     y.view());
    } else {
      sparse_backward_data(x.view(), problem_.packed(), beta, y.view());
    }
    EXPECT_FALSE(x.damaged() || y.damaged());
    return y;
  }
  TestMatrix run_weights() {
    const Bf16Matrix x(problem_.dense());
    TestMatrix dw = problem_.output();
    sparse_backward_weight(problem_.packed(), x.view(), problem_.linear().beta, dw.view());
    EXPECT_EQ(dw.damage(), "");
    return dw;
  }

  std::string mismatch_of_result() {
    const Data data = problem_.linear().data;
    return of_weights() ? mismatch(run_weights().view(), expected(), data)
                        : bf16_mismatch(run(), expected(), data);
  }

 private:
  static Linear as_bf16(Linear linear) {
    linear.value_type = Precision::kBf16;
    linear.bias = false;  // this problem has its own, of floats
    return linear;
  }
  bool has_bias() const {
    return problem_.linear().form.product == Product::kForward && problem_.linear().stream % 2 == 1;
  }

  LinearProblem problem_;
  std::vector<float> bias_;
};

Linear linear_of(const ProductForm& form, const Pattern& pattern, int64_t rows, int64_t depth,
                 int64_t cols, uint64_t stream) {
  Linear l;
  l.form = form;
  l.pattern = pattern;
  l.tile = {16, 32};
  l.rows = rows;
  l.depth = depth;
  l.cols = cols;
  l.data = stream % 3 == 0 ? Data::kFloats : Data::kIntegers;
  l.beta = l.data == Data::kIntegers && stream % 4 < 2 ? 1.0f : 0.0f;
  l.gap = static_cast<int64_t>(stream % 4);
  l.stream = stream;
  return l;
}

TEST(Bf16Sparse, ProductsAreRightAroundTheTile) {
  uint64_t stream = 0;
  for (const ProductForm& form : kPackedForms) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(2, 4, 2)}) {
      for (const int64_t rows : {0, 1, 15, 17}) {
        for (const int64_t depth : {0, 1, 15, 16, 17, 33}) {
          for (const int64_t cols : {0, 1, 31, 32, 33, 65}) {
            Bf16Problem p(linear_of(form, pattern, rows, depth, cols, ++stream));
            ASSERT_EQ(p.mismatch_of_result(), "") << p.problem().linear().str();
          }
        }
      }
    }
  }
}

TEST(Bf16Sparse, EveryPatternOnEveryInstructionSet) {
  uint64_t stream = 10000;
  for (const ProductForm& form : kPackedForms) {
    for (const Pattern& pattern : kProductPatterns) {
      Bf16Problem p(linear_of(form, pattern, 67, 130, 70, ++stream));
      for_each_isa([&](const std::string& isa) {
        ASSERT_EQ(p.mismatch_of_result(), "") << p.problem().linear().str() << ", " << isa;
      });
    }
  }
}

TEST(Bf16Sparse, BitsDoNotDependOnThreads) {
  const ThreadsAsBefore guard;
  for (const ProductForm& form : kPackedForms) {
    Linear l = linear_of(form, {2, 4}, 200, 300, 150, 3);
    Bf16Problem p(l);
    set_threads(1);
    const auto first = p.of_weights() ? std::vector<uint16_t>() : p.run().bits();
    const auto first_weights = p.of_weights() ? p.run_weights().bits() : std::vector<uint32_t>();
    for (const int count : {2, 3, 5}) {
      set_threads(count);
      if (p.of_weights()) {
        EXPECT_EQ(p.run_weights().bits(), first_weights) << count;
      } else {
        EXPECT_EQ(p.run().bits(), first) << form.name() << ", " << count;
      }
    }
  }
}

TEST(Bf16Sparse, NanAndInfinityReachKeptWeightsOnly) {
  for (const ProductForm& form : kPackedForms) {
    for (const float value : {NAN, INFINITY, -INFINITY}) {
      Bf16Problem p(linear_of(form, {2, 4}, 12, 12, 9, 4));
      const auto at = [&](int64_t r, int64_t c) {
        return p.of_weights() ? p.run_weights().at(r, c) : p.run().at(r, c);
      };
      p.problem().dense().at(5, 4) = value;
      for (int64_t r = 0; r < p.problem().output_rows(); ++r) {
        for (int64_t c = 0; c < p.problem().output_cols(); ++c) {
          EXPECT_EQ(std::isfinite(at(r, c)), !p.problem().keeps(r, c, 5, 4))
              << form.name() << " of " << value << " at " << r << ", " << c;
        }
      }
    }
  }
}

// What is finite in fp32 and too large for bf16 is infinite, not the largest number.
TEST(Bf16Sparse, OverflowIsInfinity) {
  Mask mask(1, 4);
  mask.set(0, 0, true);
  const std::vector<float> w = {1.0f, 0, 0, 0};
  const PackedMatrix packed =
      pack_panels({w.data(), 1, 4}, mask, {Pattern(2, 4), {16, 32}, Precision::kBf16});
  const std::vector<Bf16> x(4, Bf16{0x7f7f});
  Bf16 y;
  const float bias = 0x1p119f;  // half a unit of the largest
  sparse_forward(MatrixView<const Bf16>(x.data(), 1, 4), packed, &bias, 0, {&y, 1, 1});
  EXPECT_EQ(y.bits, 0x7f80);
}

TEST(Bf16Sparse, TheLayoutOfFewTokensAgrees) {
  uint64_t stream = 20000;
  for (const int64_t tokens : {0, 1, 3, 4, 5, 17}) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(1, 16)}) {
      Bf16Problem p(linear_of(Product::kForward, pattern, 33, 67, tokens, ++stream));
      p.problem().use(pack_stream(p.problem().sparse().weights.view(), p.problem().sparse().mask,
                                  pattern, Precision::kBf16));
      ASSERT_EQ(p.mismatch_of_result(), "") << p.problem().linear().str();
    }
  }
}

TEST(Bf16Sparse, WrongCallsSayWhatIsWrong) {
  Bf16Problem p(linear_of(Product::kForward, {2, 4}, 8, 12, 5, 1));
  const Bf16Matrix x(5, 11), right(5, 12);
  Bf16Matrix y(5, 8);
  EXPECT_TRUE(contains(
      message_of([&] { sparse_forward(x.view(), p.problem().packed(), nullptr, 0, y.view()); }),
      "x is 5 x 11"));
  EXPECT_TRUE(contains(
      message_of([&] { sparse_forward(right.view(), p.problem().packed(), nullptr, 2, y.view()); }),
      "beta 2"));
}

// ---- packs of samples

TEST(Bf16Pack, RoundsAfterSampling) {
  uint64_t stream = 0;
  for (const char* text : {"2:4", "1:4", "2:4x2", "1:16"}) {
    for (const auto& [tokens, outs] : {std::pair<int64_t, int64_t>{67, 63}, {64, 64}, {3, 0}}) {
      SampleOptions options{Pattern::parse(text)};
      options.key = {test_seed(), ++stream, 2, 3};
      TestMatrix g(tokens, outs);
      Dice dice(stream);
      g.fill(Data::kFloats, dice);
      std::vector<float> kept(static_cast<size_t>(tokens * outs));
      sample_scales(g.view(), options, {kept.data(), tokens, outs});
      Mask mask(tokens, outs);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t o = 0; o < outs; ++o) {
          float& value = kept[static_cast<size_t>(t * outs + o)];
          mask.set(t, o, value != 0);
          value *= g.at(t, o);
        }
      }
      const PackTile tile{32, 16};
      PackedMatrix narrow = pack_panels_transposed({kept.data(), tokens, outs}, mask,
                                                   {options.pattern, tile, Precision::kBf16});
      PanelOptions wide{options.pattern, tile};
      wide.rounded = true;
      const PackedMatrix want = pack_panels_transposed({kept.data(), tokens, outs}, mask, wide);
      PackedMatrix got = pack_panels_sampled(g.view(), options, tile);
      round_packed_to_bf16({&got, 1});
      EXPECT_TRUE(std::ranges::equal(got.bytes(), want.bytes())) << text << " " << tokens;
      EXPECT_EQ(unpack(want).values, unpack(narrow).values);
      EXPECT_TRUE(contains(message_of([&] {
                             round_packed_to_bf16({&narrow, 1});
                           }),
                           "packs of floats"));
    }
  }
}

}  // namespace
}  // namespace weft::test
