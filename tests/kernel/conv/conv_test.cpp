// The products of a convolution against a direct one in double: six loops that know nothing of
// columns, panels or taps in order. Stride, padding, dilation, groups, odd shapes; every
// instruction set, any number of threads; NaN and infinity. Wrong calls: wrong_conv_calls_test.cpp.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>

#include "tests/conv_terms.h"
#include "tests/products.h"
#include "weft/core/aligned_buffer.h"
#include "weft/kernel/conv/plane_rows.h"
#include "weft/kernel/conv/sparse_conv.h"
#include "weft/plan/timings.h"

namespace weft::test {
namespace {

struct Conv {
  ProductForm form = Product::kForward;
  ConvShape shape;
  Pattern pattern{2, 4};
  PackTile tile{16, 32};
  Precision value_type = Precision::kFp32;
  Data data = Data::kIntegers;
  Fill fill = Fill::kFull;
  bool bias = false;  // of the forward product only
  float beta = 0;
  uint64_t stream = 0;

  std::string str() const {
    const ConvShape& s = shape;
    return fmt::format(
        "{} {} {}, {} x {} x {} x {} to {} channels, kernel {} x {}, stride {} x {}, padding {} x "
        "{}, dilation {} x {}, {} groups, tile {} x {}, {}{}{}{}, seed {} stream {}",
        form.name(), pattern.str(), precision_name(value_type), s.images, s.ins, s.height, s.width,
        s.outs, s.kernel_h, s.kernel_w, s.stride_h, s.stride_w, s.pad_h, s.pad_w, s.dilation_h,
        s.dilation_w, s.groups, tile.depth, tile.width,
        data == Data::kIntegers ? "integers" : "floats", fill == Fill::kFull ? "" : ", not full",
        bias ? ", bias" : "", beta == 0 ? "" : ", beta 1", test_seed(), stream);
  }
};

// [outs, group_ins * taps], N:M along the inputs of each tap, and along the outputs of a group too
// if it is transposable.
Mask draw_filter_mask(const Conv& conv, bool transposable, Dice& dice) {
  const ConvShape& s = conv.shape;
  Mask mask(s.outs, s.weight_shape().cols());
  for (int64_t g = 0; g < s.groups; ++g) {
    for (int64_t tap = 0; tap < s.taps(); ++tap) {
      const Mask part =
          transposable
              ? draw_transposable_mask(s.group_outs(), s.group_ins(), conv.pattern, conv.fill, dice)
              : draw_mask(s.group_outs(), s.group_ins(), conv.pattern, conv.fill, dice);
      for (int64_t o = 0; o < s.group_outs(); ++o) {
        for (int64_t i = 0; i < s.group_ins(); ++i) {
          mask.set(g * s.group_outs() + o, i * s.taps() + tap, part.at(o, i));
        }
      }
    }
  }
  return mask;
}

// [outs, images * positions], N:M along the positions of each image.
Mask draw_gradient_mask(const Conv& conv, Dice& dice) {
  const ConvShape& s = conv.shape;
  const int64_t tokens = s.images * s.positions();
  Mask mask(s.outs, tokens);
  for (int64_t g = 0; g < s.groups; ++g) {
    const Mask part =
        draw_mask(s.group_outs(), tokens, conv.pattern, conv.fill, dice, s.positions());
    for (int64_t o = 0; o < s.group_outs(); ++o) {
      for (int64_t t = 0; t < tokens; ++t) mask.set(g * s.group_outs() + o, t, part.at(o, t));
    }
  }
  return mask;
}

class ConvProblem {
 public:
  explicit ConvProblem(const Conv& conv)
      : conv_(conv),
        dice_(conv.stream),
        mask_(draw_the_mask()),
        sparse_(1, weight_product() ? conv.shape.y_size() : conv.shape.w_size()),
        dense_(1, backward_data() ? conv.shape.y_size() : conv.shape.x_size(), 0, dice_.below(2)),
        bias_(1, conv.shape.outs),
        before_(1, output_elements()) {
    for (int64_t i = 0; i < sparse_.view().cols; ++i) {
      sparse_.at(0, i) = kept(i) ? draw(conv.data, dice_) : NAN;
    }
    dense_.fill(conv.data, dice_);
    bias_.fill(conv.data, dice_);
    if (conv.beta == 0) {
      before_.fill(NAN);
    } else {
      before_.fill(conv.data, dice_);
    }
    repack(conv.tile);
  }

  const Conv& conv() const { return conv_; }
  TestMatrix& dense() { return dense_; }
  const Mask& mask() const { return mask_; }
  const PackedConv& packed() const { return packed_; }
  int64_t dense_size() const { return dense_.view().cols; }
  int64_t output_elements() const {
    return weight_product()  ? conv_.shape.w_size()
           : backward_data() ? conv_.shape.x_size()
                             : conv_.shape.y_size();
  }

  void repack(PackTile tile) {
    PanelOptions options = {conv_.pattern, tile, conv_.value_type};
    switch (conv_.form.product) {
      case Product::kForward:
        packed_ = pack_conv(sparse_.data(), mask_, conv_.shape, options);
        break;
      case Product::kBackwardData:
        options.ragged = conv_.form.ragged;
        if (options.ragged) options.pattern = Pattern(conv_.pattern.keep(), conv_.pattern.group());
        packed_ = pack_conv_transposed(sparse_.data(), mask_, conv_.shape, options);
        break;
      case Product::kBackwardWeight:
        packed_ = pack_conv_gradient(sparse_.data(), mask_, conv_.shape, options);
        break;
    }
  }

  TestMatrix output() const {
    TestMatrix y(1, output_elements(), 0, static_cast<int64_t>(conv_.stream % 2));
    for (int64_t i = 0; i < output_elements(); ++i) y.at(0, i) = before_.at(0, i);
    return y;
  }

  void run(TestMatrix& y) const {
    switch (conv_.form.product) {
      case Product::kForward:
        return sparse_conv_forward(conv_.shape, dense_.data(), packed_,
                                   conv_.bias ? bias_.data() : nullptr, conv_.beta, y.data());
      case Product::kBackwardData:
        return sparse_conv_backward_data(conv_.shape, dense_.data(), packed_, conv_.beta, y.data());
      case Product::kBackwardWeight:
        return sparse_conv_backward_weight(conv_.shape, packed_, dense_.data(), conv_.beta,
                                           y.data());
    }
  }
  std::vector<uint32_t> result() const {
    TestMatrix y = output();
    run(y);
    EXPECT_EQ(y.damage(), "") << conv_.str();
    return y.bits();
  }

  ExpectedMatrix expected() const {
    ExpectedMatrix want(1, output_elements());
    const ConvShape& s = conv_.shape;
    const int64_t cols = s.weight_shape().cols();
    for_each_term(s, [&](const Term& t) {
      if (weight_product()) {
        if (!mask_.at(t.out, t.image * s.positions() + t.position)) return;
        want.add(0, t.weight, value(t.output), dense_.at(0, t.input));
      } else {
        if (!mask_.at(t.out, t.weight % cols)) return;
        if (backward_data()) {
          want.add(0, t.input, value(t.weight), dense_.at(0, t.output));
        } else {
          want.add(0, t.output, value(t.weight), dense_.at(0, t.input));
        }
      }
    });
    for (int64_t i = 0; i < output_elements(); ++i) {
      if (conv_.bias) want.add(0, i, bias_.at(0, i / s.positions() % s.outs), 1);
      if (conv_.beta != 0) want.add(0, i, before_.at(0, i), 1);
    }
    return want;
  }

  std::string input_damage() const { return dense_.damage() + bias_.damage() + sparse_.damage(); }

 private:
  bool weight_product() const { return conv_.form.product == Product::kBackwardWeight; }
  bool backward_data() const { return conv_.form.product == Product::kBackwardData; }

  Mask draw_the_mask() {
    if (weight_product()) return draw_gradient_mask(conv_, dice_);
    return draw_filter_mask(conv_, backward_data() && !conv_.form.ragged, dice_);
  }

  // Of element i of the sparse operand: weights [outs, group_ins, kh, kw] or g [images, outs, h,
  // w].
  bool kept(int64_t i) const {
    const ConvShape& s = conv_.shape;
    if (!weight_product()) return mask_.at(i / mask_.cols(), i % mask_.cols());
    const int64_t image = i / (s.outs * s.positions()), out = i / s.positions() % s.outs;
    return mask_.at(out, image * s.positions() + i % s.positions());
  }
  double value(int64_t i) const {
    const float v = sparse_.at(0, i);
    return conv_.value_type == Precision::kFp32 ? v : bf16_to_float(float_to_bf16(v));
  }

  Conv conv_;
  Dice dice_;
  Mask mask_;
  TestMatrix sparse_;
  TestMatrix dense_;
  TestMatrix bias_;
  TestMatrix before_;
  PackedConv packed_;
};

void expect_right(const ConvProblem& problem) {
  const std::string trace = problem.conv().str();
  const ExpectedMatrix want = problem.expected();
  std::array<std::optional<std::vector<uint32_t>>, 2> first;  // fused or not
  for_each_isa([&](const std::string& isa) {
    TestMatrix y = problem.output();
    problem.run(y);
    ASSERT_EQ(mismatch(y.view(), want, problem.conv().data), "") << trace << ", " << isa;
    ASSERT_EQ(y.damage(), "") << trace << ", " << isa;
    auto& same = first[fused(isa) ? 1 : 0];
    if (!same) same = y.bits();
    ASSERT_EQ(difference(y.bits(), *same, want.cols), "") << trace << ", " << isa;
  });
  ASSERT_EQ(problem.input_damage(), "") << trace;
}

// ---- right

class ConvProducts : public ::testing::TestWithParam<ProductForm> {};

INSTANTIATE_TEST_SUITE_P(All, ConvProducts, ::testing::ValuesIn(kPackedForms),
                         [](const auto& info) { return info.param.name(); });

bool possible(const ConvShape& s) {
  return s.height + 2 * s.pad_h > s.dilation_h * (s.kernel_h - 1) &&
         s.width + 2 * s.pad_w > s.dilation_w * (s.kernel_w - 1);
}

TEST_P(ConvProducts, AreRight) {
  const std::array<std::array<int64_t, 2>, 5> kernels = {{{1, 1}, {3, 3}, {1, 5}, {5, 3}, {2, 2}}};
  const std::array<PackTile, 4> tiles = {{{16, 32}, {5, 16}, {24, 64}, {9, 48}}};
  const std::array<Pattern, 4> patterns = {Pattern(2, 4), Pattern(1, 4), Pattern(2, 4, 2),
                                           Pattern(5, 7)};
  uint64_t stream = 0;
  for (const auto& [kernel_h, kernel_w] : kernels) {
    for (const int64_t groups : {1, 2, 4}) {
      for (const int64_t stride_h : {1, 2, 3}) {
        for (const int64_t stride_w : {1, 2, 3}) {
          Dice dice(++stream);
          Conv conv;
          conv.form = GetParam();
          conv.stream = stream;
          ConvShape& s = conv.shape;
          do {
            s = conv_shape(1 + dice.below(3), groups * (1 + dice.below(11)), 1 + dice.below(9),
                           1 + dice.below(11), groups * (1 + dice.below(10)), kernel_h, kernel_w);
            s.stride_h = stride_h;
            s.stride_w = stride_w;
            s.pad_h = dice.below(3);
            s.pad_w = dice.below(3);
            s.dilation_h = 1 + dice.below(2);
            s.dilation_w = 1 + dice.below(2);
            s.groups = groups;
          } while (!possible(s));
          conv.pattern = patterns[static_cast<size_t>(dice.below(4))];
          conv.tile = tiles[static_cast<size_t>(dice.below(4))];
          conv.value_type = dice.below(4) > 0 ? Precision::kFp32 : Precision::kBf16;
          conv.data = dice.coin() ? Data::kIntegers : Data::kFloats;
          conv.fill = dice.coin() ? Fill::kFull : Fill::kPartly;
          conv.bias = conv.form.product == Product::kForward && dice.coin();
          conv.beta = dice.coin() ? 1.0f : 0.0f;
          expect_right(ConvProblem(conv));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Each of stride, padding and dilation alone, large and different on the two axes, on an image that
// is larger than a stripe.
TEST_P(ConvProducts, AreRightForEveryParameterAlone) {
  uint64_t stream = 1000;
  const ConvShape plain = conv_shape(2, 8, 9, 13, 6, 3, 3);
  std::vector<ConvShape> shapes = {plain};
  const auto with = [&](int64_t ConvShape::*h, int64_t ConvShape::*w, int64_t a, int64_t b) {
    ConvShape s = plain;
    s.*h = a;
    s.*w = b;
    shapes.push_back(s);
  };
  for (const auto& [a, b] : {std::pair<int, int>{1, 2}, {2, 1}, {3, 2}, {4, 7}}) {
    with(&ConvShape::stride_h, &ConvShape::stride_w, a, b);
    with(&ConvShape::pad_h, &ConvShape::pad_w, a, b);
    if (a < 4) with(&ConvShape::dilation_h, &ConvShape::dilation_w, a, b);
  }
  with(&ConvShape::pad_h, &ConvShape::pad_w, 0, 20);  // rows of outputs that see nothing
  with(&ConvShape::pad_h, &ConvShape::pad_w, 12, 0);
  shapes.back().stride_h = 5;
  with(&ConvShape::kernel_h, &ConvShape::kernel_w, 9, 13);  // the whole image: one position
  with(&ConvShape::stride_h, &ConvShape::stride_w, 100, 100);
  for (const ConvShape& shape : shapes) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(2, 4, 2)}) {
      for (const Data data : {Data::kIntegers, Data::kFloats}) {
        Conv conv;
        conv.form = GetParam();
        conv.shape = shape;
        conv.pattern = pattern;
        conv.data = data;
        conv.beta = stream % 2 == 0 ? 1.0f : 0.0f;
        conv.bias = conv.form.product == Product::kForward && stream % 3 == 0;
        conv.stream = ++stream;
        expect_right(ConvProblem(conv));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// More positions than are copied at once, so that the backward product of the weights goes in
// parts.
TEST_P(ConvProducts, AreRightForLargeImages) {
  Conv conv;
  conv.form = GetParam();
  conv.shape = conv_shape(2, 3, 51, 49, 5, 2, 3);
  conv.shape.pad_w = 1;
  conv.tile = {96, 64};
  conv.data = Data::kFloats;
  conv.stream = 2000;
  expect_right(ConvProblem(conv));
}

TEST_P(ConvProducts, AreRightWithoutImages) {
  for (const float beta : {0.0f, 1.0f}) {
    for (const int64_t groups : {1, 2}) {
      Conv conv;
      conv.form = GetParam();
      conv.shape = conv_shape(0, 8, 5, 6, 4, 3, 3);
      conv.shape.groups = groups;
      conv.beta = beta;
      conv.bias = conv.form.product == Product::kForward;
      conv.stream = 3000;
      expect_right(ConvProblem(conv));
    }
  }
}

// ---- the same bits

TEST_P(ConvProducts, DoNotDependOnThreadsOrTiles) {
  const ThreadsGuard guard;
  uint64_t stream = 4000;
  for (const int64_t images : {1, 4}) {
    for (const int64_t groups : {1, 2}) {
      for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(2, 4, 2)}) {
        Conv conv;
        conv.form = GetParam();
        conv.shape = conv_shape(images, 16, 10, 11, 20, 3, 3);
        conv.shape.groups = groups;
        conv.shape.pad_h = conv.shape.pad_w = 1;
        conv.pattern = pattern;
        conv.data = Data::kFloats;
        conv.beta = 1;
        conv.bias = conv.form.product == Product::kForward;
        conv.stream = ++stream;
        ConvProblem problem(conv);
        for_each_isa([&](const std::string& isa) {
          set_threads(1);
          problem.repack(conv.tile);
          const std::vector<uint32_t> want = problem.result();
          for (const int count : {2, 3}) {
            set_threads(count);
            ASSERT_EQ(difference(problem.result(), want, problem.output_elements()), "")
                << conv.str() << ", " << isa << ", " << count << " threads";
          }
          set_threads(1);
          for (const PackTile& tile : {PackTile{7, 16}, PackTile{24, 192}}) {
            problem.repack(tile);
            ASSERT_EQ(difference(problem.result(), want, problem.output_elements()), "")
                << conv.str() << ", " << isa << ", now in tiles of " << tile.depth << " x "
                << tile.width;
          }
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

// ---- NaN and infinity

TEST_P(ConvProducts, CarryNanAndInfinityThroughKeptWeightsOnly) {
  uint64_t stream = 5000;
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(2, 4, 2)}) {
    for (const int64_t stride : {1, 2}) {
      Conv conv;
      conv.form = GetParam();
      conv.shape = conv_shape(2, 16, 5, 6, 12, 3, 3);
      conv.shape.groups = 2;
      conv.shape.pad_h = conv.shape.pad_w = 1;
      conv.shape.stride_h = conv.shape.stride_w = stride;
      conv.pattern = pattern;  // integers: every ninth weight that is kept is zero
      conv.fill = stream % 2 == 0 ? Fill::kFull : Fill::kPartly;
      conv.stream = ++stream;
      ConvProblem problem(conv);
      for_each_isa([&](const std::string& isa) {
        Dice dice(stream);
        for (const float value : {NAN, INFINITY, -INFINITY, NAN}) {
          float& at = problem.dense().at(0, dice.below(problem.dense_size()));
          const float before = std::exchange(at, 0.0f);
          const std::vector<uint32_t> clean = problem.result();
          at = value;
          const ExpectedMatrix want = problem.expected();
          TestMatrix y = problem.output();
          problem.run(y);
          at = before;
          ASSERT_EQ(mismatch(y.view(), want, conv.data), "") << conv.str() << ", " << isa;
          int64_t reached = 0;
          for (int64_t i = 0; i < problem.output_elements(); ++i) {
            if (!std::isfinite(want.at(0, i).value)) {
              ++reached;
            } else {
              ASSERT_EQ(std::bit_cast<uint32_t>(y.at(0, i)), clean[static_cast<size_t>(i)])
                  << conv.str() << ", " << isa << ", at " << i;
            }
          }
          ASSERT_LT(reached, problem.output_elements() / 2) << conv.str();
        }
      });
      if (HasFatalFailure()) return;
    }
  }
}

// Past the caches or not, on a line or not: the same numbers, and nothing beside them.
TEST(PlaneRows, ArePutWhereTheyBelong) {
  constexpr int64_t kRows = 3, kStride = 96;
  AlignedBuffer<float> from(kRows * kStride), to(kRows * 160);
  for (size_t i = 0; i < from.size(); ++i) from.data()[i] = static_cast<float>(i);
  const std::array<float, kRows> bias = {0.5f, -2.0f, 1000.0f};
  for_each_isa([&](const std::string& isa) {
    for (const int64_t count : {1, 15, 16, 17, 48, 96}) {
      for (const int64_t shift : {0, 1, 16}) {
        for (const int64_t step : {128, 131}) {
          for (const bool past : {false, true}) {
            std::fill_n(to.data(), to.size(), NAN);
            put_plane_rows({from.data(), kStride, kRows, count, past ? bias.data() : nullptr,
                            to.data() + shift, step, past});
            std::vector<float> want(to.size(), NAN);
            for (int64_t r = 0; r < kRows; ++r) {
              for (int64_t i = 0; i < count; ++i) {
                want[static_cast<size_t>(shift + r * step + i)] =
                    from.data()[r * kStride + i] + (past ? bias[static_cast<size_t>(r)] : 0.0f);
              }
            }
            ASSERT_EQ(std::memcmp(to.data(), want.data(), want.size() * sizeof(float)), 0)
                << isa << ", " << count << " at " << shift << ", step " << step << ", " << past;
          }
        }
      }
    }
  });
}

// Also where the last block of inputs that share is cut short.
TEST(ConvPacks, ShareInputs) {
  for (const int64_t ins : {12, 16}) {
    Conv conv;
    conv.form = Product::kBackwardData;
    conv.shape = conv_shape(1, ins, 4, 4, 16, 3, 3);
    conv.pattern = Pattern(2, 4, 2);
    const ConvProblem problem(conv);
    EXPECT_EQ(problem.packed().front().pattern().share(), 2);
    expect_right(problem);
  }
}

}  // namespace
}  // namespace weft::test
