// The gradient of a convolution's weights where a mask keeps it: against a direct one in double, for
// stride, padding, dilation, groups and odd shapes; on every instruction set, between guards, with
// any number of threads.
#include "weft/kernel/conv/masked_conv.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "tests/conv_terms.h"
#include "tests/kernel/bf16_matrix.h"
#include "tests/products.h"
#include "tests/support.h"
#include "weft/core/parallel.h"

namespace weft::test {
namespace {

// Each weight with a chance in ten, N:M or not.
Mask any_mask(const ConvShape& s, int64_t chance, Dice& dice) {
  Mask mask(s.outs, s.weight_shape().cols());
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.cols(); ++c) mask.set(r, c, dice.below(10) < chance);
  }
  return mask;
}

struct ConvGradient {
  ConvShape shape;
  Pattern pattern;  // that the blocks are made for
  Mask mask;
  TestMatrix g, x, before;
  Data data;
  float beta;
  std::string trace;

  ConvGradient(const ConvShape& s, const Pattern& pattern, Data data, float beta, uint64_t stream,
               int64_t chance = 5)
      : shape(s),
        pattern(pattern),
        g(1, s.y_size(), 0, static_cast<int64_t>(stream % 3)),
        x(1, s.x_size(), 0, static_cast<int64_t>(stream % 2)),
        before(1, s.w_size(), 0, static_cast<int64_t>(stream % 4)),
        data(data),
        beta(beta),
        trace(fmt::format("{} at {}, beta {}, seed {} stream {}", s.spec(), pattern.str(), beta,
                          test_seed(), stream)) {
    Dice dice(stream);
    mask = any_mask(s, chance, dice);
    g.fill(data, dice);
    x.fill(data, dice);
    if (beta == 0) {
      before.fill(NAN);
    } else {
      before.fill(data, dice);
    }
  }

  TestMatrix result() const {
    TestMatrix dw = before;
    masked_conv_backward_weight(shape, g.data(), x.data(), KeptEntries(mask, pattern, shape.taps()),
                                beta, dw.data());
    EXPECT_EQ(dw.damage() + g.damage() + x.damage(), "") << trace;
    return dw;
  }

  ExpectedMatrix expected() const {
    ExpectedMatrix want(1, shape.w_size());
    for_each_term(shape, [&](const Term& t) {
      if (!mask.at(t.out, t.weight % mask.cols())) return;
      want.add(0, t.weight, g.at(0, t.output), x.at(0, t.input));
    });
    for (int64_t i = 0; beta != 0 && i < shape.w_size(); ++i) want.add(0, i, before.at(0, i), 1);
    return want;
  }

  void expect_right() const {
    const ExpectedMatrix want = expected();
    std::array<std::optional<std::vector<uint32_t>>, 2> first;  // fused or not
    for_each_isa([&](const std::string& isa) {
      const TestMatrix dw = result();
      ASSERT_EQ(mismatch(dw.view(), want, data), "") << trace << ", " << isa;
      auto& same = first[fused(isa) ? 1 : 0];
      if (!same) same = dw.bits();
      ASSERT_EQ(difference(dw.bits(), *same, want.cols), "") << trace << ", " << isa;
    });
  }
};

bool fits(const ConvShape& s) {
  return s.height + 2 * s.pad_h > s.dilation_h * (s.kernel_h - 1) &&
         s.width + 2 * s.pad_w > s.dilation_w * (s.kernel_w - 1);
}

const std::array<Pattern, 4> kPatterns = {Pattern(2, 4), Pattern(1, 4), Pattern(1, 16),
                                          Pattern(5, 7)};

TEST(MaskedConv, IsRightForDrawnShapes) {
  const std::array<std::array<int64_t, 2>, 5> kernels = {{{1, 1}, {3, 3}, {1, 5}, {5, 3}, {2, 2}}};
  uint64_t stream = 0;
  for (const auto& [kernel_h, kernel_w] : kernels) {
    for (const int64_t groups : {1, 2, 3}) {
      for (const int64_t stride_h : {1, 2, 3}) {
        for (const int64_t stride_w : {1, 2, 3}) {
          Dice dice(++stream);
          ConvShape s;
          do {
            s = conv_shape(1 + dice.below(3), groups * (1 + dice.below(35)), 1 + dice.below(9),
                           1 + dice.below(17), groups * (1 + dice.below(9)), kernel_h, kernel_w);
            s.stride_h = stride_h;
            s.stride_w = stride_w;
            s.pad_h = dice.below(4);
            s.pad_w = dice.below(4);
            s.dilation_h = 1 + dice.below(2);
            s.dilation_w = 1 + dice.below(2);
            s.groups = groups;
          } while (!fits(s));
          ConvGradient(s, kPatterns[stream % 4], stream % 2 == 0 ? Data::kIntegers : Data::kFloats,
                       stream % 5 < 2 ? 1.0f : 0.0f, stream)
              .expect_right();
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Positions around those of a stripe and of an image that is cut for itself, with taps that see
// padding; g is read in place where images have a multiple of 16 positions.
TEST(MaskedConv, IsRightAtTheEdgesOfStripes) {
  uint64_t stream = 1000;
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 16)}) {
    const int64_t tokens = KeptEntries(Mask(1, 1), pattern).tokens();
    for (const int64_t width : {tokens / 2 - 16, tokens / 2, tokens - 1, tokens, tokens + 1,
                                tokens + 16, 2 * tokens, 3 * tokens + 5}) {
      for (const int64_t images : {1, 3}) {
        ConvShape s = conv_shape(images, 5, 1, width, 3, 1, 3);
        s.pad_w = 1;
        ++stream;
        ConvGradient(s, pattern, Data::kFloats, static_cast<float>(stream % 2), stream)
            .expect_right();
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Each of stride, padding and dilation alone, large and different on the two axes.
TEST(MaskedConv, IsRightForEveryParameterAlone) {
  uint64_t stream = 2000;
  const ConvShape plain = conv_shape(2, 20, 9, 13, 6, 3, 3);
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
  with(&ConvShape::pad_h, &ConvShape::pad_w, 0, 20);  // columns of outputs that see nothing
  with(&ConvShape::pad_h, &ConvShape::pad_w, 12, 0);
  shapes.back().stride_h = 5;
  with(&ConvShape::kernel_h, &ConvShape::kernel_w, 9, 13);  // the whole image: one position
  with(&ConvShape::stride_h, &ConvShape::stride_w, 100, 100);
  for (const ConvShape& shape : shapes) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 8)}) {
      ++stream;
      ConvGradient(shape, pattern, stream % 2 == 0 ? Data::kIntegers : Data::kFloats,
                   static_cast<float>(stream / 2 % 2), stream)
          .expect_right();
      if (HasFatalFailure()) return;
    }
  }
}

// What an earlier product left behind the last position of a stripe is not multiplied.
TEST(MaskedConv, DoesNotSeeWhatWasThereBefore) {
  const ThreadsGuard guard;
  set_threads(1);
  const auto poison = [](const char* which) {
    ConvGradient before(conv_shape(1, 16, 16, 16, 8, 1, 1), Pattern(2, 4), Data::kFloats, 0, 2900);
    (which[0] == 'g' ? before.g : before.x).fill(NAN);
    before.result();
  };
  ConvShape s = conv_shape(1, 16, 2, 3, 8, 3, 3);
  s.pad_h = s.pad_w = 1;
  const ConvGradient now(s, Pattern(2, 4), Data::kIntegers, 0, 2901);
  const ExpectedMatrix want = now.expected();
  for_each_isa([&](const std::string& isa) {
    for (const char* which : {"g", "x"}) {
      poison(which);
      const TestMatrix dw = now.result();
      EXPECT_EQ(mismatch(dw.view(), want, now.data), "") << which << ", " << isa;
    }
  });
}

// More outputs than a part has, more entries than leave room for several chunks, and few of both.
TEST(MaskedConv, IsRightForManyOutputsAndEntries) {
  ConvGradient(conv_shape(1, 3, 4, 5, 600, 2, 2), Pattern(2, 4), Data::kFloats, 1, 3000)
      .expect_right();
  ConvGradient(conv_shape(2, 130, 3, 4, 500, 3, 3), Pattern(1, 4), Data::kFloats, 0, 3001)
      .expect_right();
}

TEST(MaskedConv, TakesAnyMask) {
  uint64_t stream = 4000;
  for (const int64_t chance : {0, 1, 9, 10}) {
    for (const float beta : {0.0f, 1.0f}) {
      ConvGradient(conv_shape(2, 21, 6, 6, 5, 3, 3), Pattern(2, 4), Data::kFloats, beta, ++stream,
                   chance)
          .expect_right();
    }
  }
}

TEST(MaskedConv, IsRightWithoutImages) {
  for (const float beta : {0.0f, 1.0f}) {
    ConvGradient(conv_shape(0, 8, 5, 6, 4, 3, 3), Pattern(2, 4), Data::kIntegers, beta, 5000)
        .expect_right();
  }
}

TEST(MaskedConv, DoesNotDependOnThreads) {
  const ThreadsGuard guard;
  uint64_t stream = 6000;
  for (const int64_t groups : {1, 2}) {
    for (const int64_t side : {11, 32}) {  // copied, and in place
      ConvShape s = conv_shape(6, 40, side, side, 300, 3, 3);
      s.pad_h = s.pad_w = 1;
      s.groups = groups;
      const ConvGradient problem(s, Pattern(2, 4), Data::kFloats, 1, ++stream);
      set_threads(1);
      const std::vector<uint32_t> alone = problem.result().bits();
      for (const int count : {2, 3, 7}) {
        set_threads(count);
        ASSERT_EQ(difference(problem.result().bits(), alone, s.w_size()), "")
            << problem.trace << ", " << count << " threads";
      }
    }
  }
}

// Of x: to kept entries of its channel only. Of g: to all kept entries of its output.
TEST(MaskedConv, CarriesNanAndInfinityToKeptEntriesOnly) {
  ConvShape s = conv_shape(2, 18, 5, 6, 12, 3, 3);
  s.pad_h = s.pad_w = 1;
  s.groups = 2;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    ConvGradient of_x(s, Pattern(2, 4), Data::kIntegers, 0, 7000);
    of_x.x.at(0, 13) = bad;
    of_x.expect_right();

    ConvGradient of_g(s, Pattern(2, 4), Data::kIntegers, 0, 7001);
    const TestMatrix clean = of_g.result();
    of_g.g.at(0, 3 * s.positions() + 7) = bad;  // output 3 of the first image
    const TestMatrix dw = of_g.result();
    const int64_t cols = of_g.mask.cols();
    for (int64_t i = 0; i < s.w_size(); ++i) {
      const bool reached = i / cols == 3 && of_g.mask.at(3, i % cols);
      if (reached) {
        ASSERT_FALSE(std::isfinite(dw.at(0, i))) << i;
      } else {
        ASSERT_EQ(dw.at(0, i), clean.at(0, i)) << i;
      }
    }
  }
}

TEST(MaskedConv, IsThatOfFloatsInBf16) {
  ConvShape s = conv_shape(2, 20, 7, 7, 12, 3, 3);
  s.stride_h = 2;
  Dice dice(8000);
  TestMatrix g(1, s.y_size()), x(1, s.x_size());
  for (TestMatrix* m : {&g, &x}) {
    m->fill(Data::kFloats, dice);
    round_values(*m);
  }
  const KeptEntries kept(any_mask(s, 5, dice), {2, 4}, s.taps());
  TestMatrix want(1, s.w_size()), got(1, s.w_size());
  masked_conv_backward_weight(s, g.data(), x.data(), kept, 0, want.data());
  masked_conv_backward_weight(s, Bf16Matrix(g).view().data, Bf16Matrix(x).view().data, kept, 0,
                              got.data());
  EXPECT_TRUE(same_bits(got, want));
}

TEST(MaskedConv, SaysWhatIsWrong) {
  const ConvShape s = conv_shape(1, 8, 4, 4, 4, 3, 3);
  TestMatrix g(1, s.y_size()), x(1, s.x_size()), dw(1, s.w_size());
  const auto call = [&](const KeptEntries& kept, const float* from, float beta) {
    return message_of(
        [&] { masked_conv_backward_weight(s, from, x.data(), kept, beta, dw.data()); });
  };
  const KeptEntries right(Mask(4, 72), {2, 4}, 9);
  EXPECT_EQ(call(right, g.data(), 0), "(no Error)");
  EXPECT_EQ(call(right, g.data(), 0.5f), "beta 0.5: accepted are 0 and 1");
  EXPECT_EQ(call(right, nullptr, 0), "g is null");
  EXPECT_TRUE(contains(call(KeptEntries(Mask(4, 72), {2, 4}), g.data(), 0),
                       "entries of 4 x 72 weights of 1 taps for a convolution"));
  EXPECT_TRUE(contains(call(KeptEntries(Mask(5, 72), {2, 4}, 9), g.data(), 0), "5 x 72"));
  EXPECT_EQ(message_of([] {
              KeptEntries(Mask(4, 70), {2, 4}, 9);
            }),
            "a mask of 70 columns for 9 taps");
}

// Found once for a mask, and again for another mask, pattern or kernel.
TEST(KeptOfMask, FollowsTheMask) {
  Mask mask(3, 36);
  mask.set(1, 5, true);
  KeptOfMask kept;
  const auto entries = [&](const Pattern& pattern, int64_t taps) {
    const KeptEntries& found = kept.of(mask, pattern, taps);
    const KeptEntries fresh(mask, pattern, taps);
    EXPECT_EQ(found.size(), fresh.size());
    EXPECT_EQ(found.block(), fresh.block());
    EXPECT_EQ(found.taps(), taps);
    EXPECT_TRUE(std::equal(found.starts(0), found.starts(found.blocks()), fresh.starts(0)));
    EXPECT_TRUE(std::equal(found.index(), found.index() + found.size(), fresh.index()));
    return found.index();
  };
  const uint16_t* first = entries({2, 4}, 9);
  EXPECT_EQ(entries({2, 4}, 9), first);
  mask.set(2, 35, true);
  entries({2, 4}, 9);
  entries({1, 16}, 9);
  entries({1, 16}, 4);
}

}  // namespace
}  // namespace weft::test
