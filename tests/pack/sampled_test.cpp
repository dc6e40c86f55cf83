// Gradients that are sampled while they are packed, against sampling, multiplying and packing one
// after the other: the same bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/products.h"
#include "weft/estimate/fp8.h"
#include "weft/estimate/kept_sample.h"
#include "weft/estimate/mvue.h"
#include "weft/kernel/conv/sparse_conv.h"

namespace weft::test {
namespace {

const std::vector<std::string> kPatterns = {
    "1:2",   "2:4",   "1:4",   "3:4",   "4:8",    "2:8",   "5:7",   "1:16",  "3:64",  "4:4",
    "2:4x2", "1:4x4", "2:8x2", "3:5x8", "2:4x32", "1:4x2", "1:8x2", "7:9x2", "31:64", "4:4x2"};

struct ThreadsGuard {
  int before = threads();
  ~ThreadsGuard() { set_threads(before); }
};

SampleOptions options_of(const std::string& text, uint64_t step) {
  SampleOptions options{Pattern::parse(text)};
  options.key = {test_seed(), step, 2, 3};
  options.first_group = static_cast<int64_t>(step % 7);
  return options;
}

// Of which one in sixteen entries of a gradient that is not tame is made.
const std::vector<float> kExtremes = {
    std::numeric_limits<float>::quiet_NaN(),  -std::numeric_limits<float>::infinity(),
    std::numeric_limits<float>::max(),        -std::numeric_limits<float>::min(),
    std::numeric_limits<float>::denorm_min(), -3 * std::numeric_limits<float>::denorm_min()};

// Floats of both signs, with whole stretches of zeros, as behind a ReLU.
TestMatrix draw_gradient(int64_t tokens, int64_t outs, int64_t gap, uint64_t stream,
                         bool tame = true) {
  TestMatrix g(tokens, outs, gap);
  Dice dice(stream);
  g.fill(Data::kFloats, dice);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t o = 0; o < outs; ++o) {
      if (dice.below(3) == 0) g.at(t, o) = dice.coin() ? 0.0f : -0.0f;
      if (!tame && dice.below(16) == 0) {
        g.at(t, o) = kExtremes[static_cast<size_t>(dice.below(int64_t(kExtremes.size())))];
      }
    }
  }
  return g;
}

// What is kept of g, and its mask; rounded to FP8 if that is wanted.
struct Sampled {
  std::vector<float> values;
  Mask mask;
};
Sampled sample(MatrixView<const float> g, const SampleOptions& options,
               std::optional<Fp8> rounding) {
  Sampled s{std::vector<float>(static_cast<size_t>(g.rows * g.cols)), Mask(g.rows, g.cols)};
  sample_scales(g, options, {s.values.data(), g.rows, g.cols});
  for (int64_t t = 0; t < g.rows; ++t) {
    for (int64_t o = 0; o < g.cols; ++o) {
      float& value = s.values[static_cast<size_t>(t * g.cols + o)];
      s.mask.set(t, o, value != 0);
      value = value == 0 ? 0 : g.at(t, o) * value;
    }
  }
  if (rounding) round_to_fp8(s.values, *rounding, s.values);
  return s;
}

// In whose place two packs differ first; empty if they do not.
std::string difference_of(const PackedMatrix& a, const PackedMatrix& b) {
  if (a.bytes().size() != b.bytes().size()) {
    return fmt::format("{} bytes, {} bytes", a.bytes().size(), b.bytes().size());
  }
  for (size_t i = 0; i < a.bytes().size(); ++i) {
    if (a.bytes()[i] != b.bytes()[i]) return fmt::format("byte {} of {}", i, a.bytes().size());
  }
  return "";
}

TEST(PackedSample, IsThePackOfTheSample) {
  const ThreadsGuard guard;
  uint64_t stream = 0;
  PackedMatrix reused;
  for (const std::string& text : kPatterns) {
    const Pattern pattern = Pattern::parse(text);
    const int64_t group = pattern.group(), block = pattern.block();
    for (const auto& [tokens, outs] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 3},
                                                  {3, 0},
                                                  {1, 1},
                                                  {group - 1, 3},
                                                  {group + 1, 65},
                                                  {3 * group, block},
                                                  {64, 64},
                                                  {67, 63},
                                                  {130, block + 1},
                                                  {97, 2 * block - 1},
                                                  {8 * group + 1, 3 * block + group / 2}}) {
      for (const PackTile tile : {PackTile{32, 16}, tile_for(pattern), PackTile{7, 32}}) {
        const SampleOptions options = options_of(text, ++stream);
        const TestMatrix g = draw_gradient(tokens, outs, 5, stream, stream % 2 == 0);
        std::optional<Fp8> rounding;
        if (stream % 3 == 1) rounding = stream % 2 == 0 ? Fp8::kE4m3 : Fp8::kE5m2;
        const Sampled want = sample(g.view(), options, rounding);
        const PackedMatrix packed =
            pack_panels_transposed({want.values.data(), tokens, outs}, want.mask, {pattern, tile});
        for (const int count : {1, 2}) {
          set_threads(count);
          reused = pack_panels_sampled(g.view(), options, tile, rounding, std::move(reused));
          ASSERT_EQ(difference_of(reused, packed), "")
              << text << " of " << tokens << " x " << outs << ", tile " << tile.depth << " x "
              << tile.width << ", " << count << " threads, seed " << test_seed() << " stream "
              << stream;
        }
      }
    }
  }
}

TEST(PackedSample, IsTheSameOnEveryInstructionSet) {
  for (const std::string& text : kPatterns) {
    for (const bool tame : {true, false}) {
      const SampleOptions options = options_of(text, 5);
      const TestMatrix g = draw_gradient(150, 140, 0, 5, tame);
      PackedMatrix first;
      for_each_isa([&](const std::string& isa) {
        PackedMatrix packed = pack_panels_sampled(g.view(), options, {40, 16}, Fp8::kE5m2);
        if (first.bytes().empty())
          first = std::move(packed);
        else
          ASSERT_EQ(difference_of(packed, first), "") << text << " on " << isa;
      });
    }
  }
}

TEST(PackedSample, TakesTheTwoDrawSampler) {
  SampleOptions options = options_of("2:4", 4);
  options.sampler = Sampler::kTwoDraw;
  for (const std::string text : {"2:4", "2:4x2", "2:4x4"}) {
    for (const PackTile tile : {PackTile{32, 16}, PackTile{7, 16}}) {
      for (const bool tame : {true, false}) {
        options.pattern = Pattern::parse(text);
        const TestMatrix g = draw_gradient(67, 29, 0, 4, tame);
        const Sampled want = sample(g.view(), options, {});
        EXPECT_EQ(difference_of(pack_panels_sampled(g.view(), options, tile),
                                pack_panels_transposed({want.values.data(), 67, 29}, want.mask,
                                                       {options.pattern, tile})),
                  "")
            << text << ", tile of " << tile.depth;
      }
    }
  }
  const TestMatrix g = draw_gradient(8, 8, 0, 4);
  options.pattern = Pattern(1, 4);
  EXPECT_TRUE(contains(message_of([&] {
                         pack_panels_sampled(g.view(), options, {32, 16});
                       }),
                       "2:4 only"));
}

TEST(PackedSample, RefusesWrongCalls) {
  const TestMatrix g = draw_gradient(8, 8, 0, 3);
  const SampleOptions options = options_of("2:4", 3);
  const auto message = [&](auto change) {
    Gradient gradient;
    gradient.data = g.data();
    gradient.positions = gradient.outs = gradient.position_step = 8;
    change(gradient);
    return message_of([&] { pack_gradient_sampled(gradient, options, {32, 16}); });
  };
  EXPECT_EQ(message([](Gradient&) {}), "(no Error)");
  EXPECT_TRUE(contains(message([](Gradient& g) { g.data = nullptr; }), "null"));
  EXPECT_TRUE(contains(message([](Gradient& g) { g.position_step = 7; }), "overlap"));
  EXPECT_TRUE(contains(message([](Gradient& g) { g.out_step = 0; }), "overlap"));
  // Images of one position, as a convolution down to one pixel has them, need no position step.
  EXPECT_EQ(message([](Gradient& g) {
              g.images = 8, g.image_step = 8;
              g.positions = g.position_step = 1;
            }),
            "(no Error)");
  EXPECT_TRUE(contains(message([](Gradient& g) { g.images = -1; }), "-1 images"));
  EXPECT_TRUE(contains(message([](Gradient& g) { g.images = INT64_MAX; }), "images"));
  EXPECT_TRUE(contains(message_of([&] {
                         pack_panels_sampled(g.view(), options, {32, 17});
                       }),
                       "multiple of 16"));
  PackedMatrix stream = pack_stream(g.view(), Mask(8, 8), Pattern(2, 4), Precision::kFp32);
  EXPECT_TRUE(contains(message_of([&] {
                         round_packed_to_fp8({&stream, 1}, Fp8::kE4m3);
                       }),
                       "only panel packs"));
}

TEST(KeptSample, IsForOneSizeOfTile) {
  const TestMatrix g = draw_gradient(8, 8, 0, 3);
  const SampleOptions options = options_of("2:4x2", 3);
  KeptSample sample(options.pattern, 8, 8);
  EXPECT_EQ(sample.cells(), 4);
  sample.draw(g.view().rows_from(0, 7), options);
  EXPECT_EQ(sample.slots(), 4);
  EXPECT_TRUE(contains(message_of([&] { sample.draw(g.view().cols_from(0, 7), options); }),
                       "a tile of 8 x 7 for 2:4x2, made for 8 x 8"));
  EXPECT_TRUE(contains(message_of([&] { sample.draw(g.view(), options_of("2:4", 3)); }),
                       "made for 8 x 8 and 2:4x2"));
}

// dW = Gᵀ X on average.
TEST(PackedSample, HasTheGradientOfTheWeightsAsItsMean) {
  constexpr int64_t kTokens = 40, kOuts = 12, kIns = 17;
  constexpr int kDraws = 2000;
  const TestMatrix g = draw_gradient(kTokens, kOuts, 0, 6);
  TestMatrix x(kTokens, kIns);
  Dice dice(7);
  x.fill(Data::kFloats, dice);
  TestMatrix sum(kOuts, kIns);
  sum.fill(0);
  PackedMatrix packed;
  for (int draw = 0; draw < kDraws; ++draw) {
    const SampleOptions options = options_of("2:4", static_cast<uint64_t>(draw));
    packed =
        pack_panels_sampled(g.view(), options, tile_for(options.pattern), {}, std::move(packed));
    sparse_backward_weight(packed, x.view(), 1, sum.view());
  }
  double error = 0, size = 0;
  for (int64_t o = 0; o < kOuts; ++o) {
    for (int64_t i = 0; i < kIns; ++i) {
      double exact = 0;
      for (int64_t t = 0; t < kTokens; ++t) exact += double{g.at(t, o)} * x.at(t, i);
      error += std::pow(sum.at(o, i) / kDraws - exact, 2);
      size += exact * exact;
    }
  }
  // One draw is about as far from the gradient as the gradient is large.
  EXPECT_LT(std::sqrt(error / size), 3 / std::sqrt(kDraws));
}

// NaN and infinity reach every weight of their output, in the plain pack and in the rounded one.
TEST(PackedSample, ShowsWhatIsNotFinite) {
  for (const std::string text : {"2:4", "1:4", "5:7", "2:4x2"}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const std::optional<Fp8> rounding : {std::optional<Fp8>(), std::optional(Fp8::kE5m2)}) {
        TestMatrix g = draw_gradient(33, 20, 0, 8);
        g.at(14, 3) = bad;
        const SampleOptions options = options_of(text, 8);
        TestMatrix x(33, 4), dw(20, 4);
        x.fill(1.0f);
        const PackTile tile = tile_for(options.pattern);
        sparse_backward_weight(pack_panels_sampled(g.view(), options, tile, rounding), x.view(), 0,
                               dw.view());
        for (int64_t o = 0; o < 20; ++o) {
          ASSERT_EQ(std::isfinite(dw.at(o, 1)), o != 3) << text << ", output " << o;
        }
      }
    }
  }
}

// ---- convolutions

ConvShape conv_of(int64_t images, int64_t outs, int64_t height, int64_t width, int64_t groups) {
  ConvShape shape;
  shape.images = images;
  shape.ins = groups;
  shape.outs = outs;
  shape.height = height;
  shape.width = width;
  shape.groups = groups;
  return shape;
}

TEST(PackedConvSample, IsThePackOfTheSample) {
  const ThreadsGuard guard;
  uint64_t stream = 1000;
  PackedConv reused;
  for (const std::string& text : kPatterns) {
    for (const ConvShape& shape :
         {conv_of(0, 4, 3, 3, 1), conv_of(1, 1, 1, 1, 1), conv_of(3, 12, 7, 7, 1),
          conv_of(2, 66, 4, 4, 3), conv_of(2, 70, 8, 8, 2), conv_of(3, 40, 5, 13, 4)}) {
      for (const PackTile tile : {PackTile{32, 16}, tile_for(Pattern::parse(text))}) {
        const SampleOptions options = options_of(text, ++stream);
        const TestMatrix g = draw_gradient(1, shape.y_size(), 0, stream);
        std::vector<float> values(static_cast<size_t>(shape.y_size()));
        set_threads(1);
        sample_conv_scales(g.data(), shape, options, values.data());
        const int64_t positions = shape.positions();
        Mask mask(shape.outs, shape.images * positions);
        for (int64_t i = 0; i < shape.y_size(); ++i) {
          float& value = values[static_cast<size_t>(i)];
          const int64_t out = i / positions % shape.outs, image = i / positions / shape.outs;
          mask.set(out, image * positions + i % positions, value != 0);
          value = value == 0 ? 0 : g.data()[i] * value;
        }
        std::optional<Fp8> rounding;
        if (stream % 3 == 1) rounding = stream % 2 == 0 ? Fp8::kE4m3 : Fp8::kE5m2;
        if (rounding) round_to_fp8(values, *rounding, values);
        const PackedConv want =
            pack_conv_gradient(values.data(), mask, shape, {options.pattern, tile});
        for (const int count : {1, 2}) {
          set_threads(count);
          reused = pack_conv_sampled(g.data(), shape, options, tile, rounding, std::move(reused));
          ASSERT_EQ(reused.size(), want.size());
          for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_EQ(difference_of(reused[i], want[i]), "")
                << text << ", " << shape.str() << ", group " << i << ", tile " << tile.depth
                << " x " << tile.width << ", seed " << test_seed() << " stream " << stream;
          }
        }
      }
    }
  }
}

// The scales of a convolution are those of its gradient as a matrix, image by image, however many
// groups its channels have.
TEST(PackedConvSample, GroupsThePositionsOfOneImage) {
  const ConvShape shape = conv_of(3, 6, 3, 3, 2);
  const SampleOptions options = options_of("2:4", 9);
  const TestMatrix g = draw_gradient(1, shape.y_size(), 0, 9);
  std::vector<float> scales(static_cast<size_t>(shape.y_size()));
  sample_conv_scales(g.data(), shape, options, scales.data());
  for (int64_t image = 0; image < 3; ++image) {
    TestMatrix turned(9, 6), want(9, 6);
    for (int64_t p = 0; p < 9; ++p) {
      for (int64_t o = 0; o < 6; ++o) turned.at(p, o) = g.data()[(image * 6 + o) * 9 + p];
    }
    SampleOptions here = options;
    here.first_group += image * 3;  // groups of 4, 4 and 1 positions
    sample_scales(turned.view(), here, want.view());
    for (int64_t p = 0; p < 9; ++p) {
      for (int64_t o = 0; o < 6; ++o) {
        ASSERT_EQ(scales[static_cast<size_t>((image * 6 + o) * 9 + p)], want.at(p, o));
      }
    }
  }
}

TEST(PackedConvSample, RefusesWrongCalls) {
  const ConvShape shape = conv_of(1, 4, 2, 2, 1);
  SampleOptions options = options_of("4:8", 1);
  std::vector<float> g(16);
  EXPECT_TRUE(contains(message_of([&] {
                         pack_conv_sampled(nullptr, shape, options, {32, 16});
                       }),
                       "g is null"));
  EXPECT_TRUE(contains(message_of([&] { sample_conv_scales(g.data(), shape, options, nullptr); }),
                       "scales is null"));
  options.sampler = Sampler::kTwoDraw;
  EXPECT_TRUE(contains(message_of([&] {
                         pack_conv_sampled(g.data(), shape, options, {32, 16});
                       }),
                       "2:4 only, not 4:8"));
}

}  // namespace
}  // namespace weft::test
