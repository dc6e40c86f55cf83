// The dense products of a convolution.
#include "weft/kernel/conv/dense_conv.h"

#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/products.h"
#include "weft/core/isa.h"
#include "weft/core/parallel.h"
#include "weft/kernel/dense/dense.h"

namespace weft::test {
namespace {

// oneDNN is told the instruction set once per process, so each has its own run (CMakeLists.txt).
class UseIsa : public ::testing::Environment {
  void SetUp() override {
    force_isa_from_environment();
    set_threads(1);
  }
};
const auto* const kUseIsa = ::testing::AddGlobalTestEnvironment(new UseIsa);

enum class Kind { kForward, kBackwardData, kBackwardWeight };
constexpr std::array kKinds = {Kind::kForward, Kind::kBackwardData, Kind::kBackwardWeight};
constexpr std::array kNames = {"forward", "backward data", "backward weight"};

// Calls visit(x, w, y) for every product x·w that is part of y, by their places in the tensors.
template <typename F>
void for_each_product(const ConvShape& s, F visit) {
  const int64_t ins = s.ins / s.groups, outs = s.outs / s.groups;
  for (int64_t n = 0, y = 0; n < s.images; ++n) {
    for (int64_t o = 0; o < s.outs; ++o) {
      for (int64_t p = 0; p < s.out_height(); ++p) {
        for (int64_t q = 0; q < s.out_width(); ++q, ++y) {
          for (int64_t i = 0; i < ins; ++i) {
            for (int64_t a = 0; a < s.kernel_h; ++a) {
              for (int64_t b = 0; b < s.kernel_w; ++b) {
                const int64_t row = p * s.stride_h + a * s.dilation_h - s.pad_h;
                const int64_t col = q * s.stride_w + b * s.dilation_w - s.pad_w;
                if (row < 0 || row >= s.height || col < 0 || col >= s.width) continue;
                const int64_t channel = o / outs * ins + i;
                visit(((n * s.ins + channel) * s.height + row) * s.width + col,
                      ((o * ins + i) * s.kernel_h + a) * s.kernel_w + b, y);
              }
            }
          }
        }
      }
    }
  }
}

struct Case {
  Kind kind;
  ConvShape shape;
  TestMatrix x, w, y;
  std::vector<float> bias;
  float beta = 0;

  Case(Kind kind, const ConvShape& shape)
      : kind(kind),
        shape(shape),
        x(1, shape.x_size()),
        w(1, shape.w_size()),
        y(1, shape.y_size()) {}

  TestMatrix& result() { return kind == Kind::kForward ? y : kind == Kind::kBackwardData ? x : w; }

  void fill(bool integers) {
    Dice dice(1);
    for (TestMatrix* tensor : {&x, &w, &y}) {
      tensor->fill(integers ? Data::kIntegers : Data::kFloats, dice);
    }
    if (beta == 0) result().fill(std::numeric_limits<float>::quiet_NaN());
  }

  void run() {
    const float* bias_or_none = bias.empty() ? nullptr : bias.data();
    switch (kind) {
      case Kind::kForward:
        return dense_conv_forward(shape, x.data(), w.data(), bias_or_none, beta, y.data());
      case Kind::kBackwardData:
        return dense_conv_backward_data(shape, y.data(), w.data(), beta, x.data());
      case Kind::kBackwardWeight:
        return dense_conv_backward_weight(shape, y.data(), x.data(), beta, w.data());
    }
  }

  // What run() should make of the present tensors.
  std::vector<Expected> expected() {
    std::vector<Expected> sums(static_cast<size_t>(result().cols));
    const int64_t pixels = shape.out_height() * shape.out_width();
    for (int64_t i = 0; i < result().cols; ++i) {
      Expected& sum = sums[static_cast<size_t>(i)];
      if (beta != 0) sum.add(result().at(0, i));
      if (!bias.empty()) sum.add(bias[static_cast<size_t>(i / pixels % shape.outs)]);
    }
    for_each_product(shape, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
      const auto value = [](const TestMatrix& tensor, int64_t i) {
        return static_cast<double>(tensor.at(0, i));
      };
      switch (kind) {
        case Kind::kForward: return sums[size_t(y_at)].add(value(x, x_at) * value(w, w_at));
        case Kind::kBackwardData: return sums[size_t(x_at)].add(value(y, y_at) * value(w, w_at));
        case Kind::kBackwardWeight: return sums[size_t(w_at)].add(value(y, y_at) * value(x, x_at));
      }
    });
    return sums;
  }

  std::string trace() const {
    return fmt::format("{}: {}, beta {}, {} bias", kNames[static_cast<size_t>(kind)], shape.str(),
                       beta, bias.empty() ? "no" : "with");
  }
};

void expect_right(Kind kind, const ConvShape& shape, bool integers, float beta, bool with_bias) {
  Case c(kind, shape);
  c.beta = beta;
  if (with_bias && kind == Kind::kForward) {
    for (int64_t i = 0; i < shape.outs; ++i) c.bias.push_back(static_cast<float>(i % 7) - 3);
  }
  SCOPED_TRACE(c.trace());
  c.fill(integers);
  const std::vector<Expected> expected = c.expected();
  c.run();
  const auto of = [&](int64_t, int64_t i) { return expected[static_cast<size_t>(i)]; };
  EXPECT_EQ(mismatch(c.result().view(), of, integers ? Data::kIntegers : Data::kFloats), "");
  EXPECT_EQ(c.result().damage(), "");
}

void expect_right(const ConvShape& shape) {
  for (const Kind kind : kKinds) {
    expect_right(kind, shape, true, 1, true);
    expect_right(kind, shape, true, 0, false);
    expect_right(kind, shape, false, 1, false);
    expect_right(kind, shape, false, 0, true);
  }
}

TEST(DenseConv, RunsOnTheForcedInstructionSet) { EXPECT_EQ(dense_isa(), current_isa()); }

TEST(DenseConv, Shapes) {
  expect_right({1, 1, 1, 1, 1});
  expect_right({2, 3, 7, 9, 5, 3, 3});
  expect_right({3, 8, 10, 10, 16, 3, 3, 1, 1, 1, 1});
  expect_right({1, 17, 6, 5, 33, 3, 2, 1, 1, 1, 0});        // odd channels, non-square kernel
  expect_right({2, 4, 11, 8, 6, 5, 3, 2, 3, 2, 1});         // strides that leave pixels over
  expect_right({2, 4, 12, 13, 6, 3, 3, 1, 2, 2, 3, 2, 3});  // dilation
  expect_right({1, 2, 3, 3, 2, 3, 3, 1, 1, 5, 4});          // whole windows of padding
  expect_right({1, 2, 9, 9, 3, 1, 1, 2, 2});
  expect_right({1, 2, 9, 9, 3, 1, 1, 1, 1, 1, 1});
  expect_right({2, 5, 1, 31, 7, 1, 5, 1, 1, 0, 2});  // one row
}

TEST(DenseConv, Groups) {
  expect_right({2, 6, 7, 7, 4, 3, 3, 1, 1, 1, 1, 1, 1, 2});
  expect_right({2, 32, 6, 6, 64, 3, 3, 1, 1, 1, 1, 1, 1, 4});
  expect_right({1, 24, 9, 8, 24, 3, 3, 2, 1, 1, 1, 1, 1, 24});  // depthwise
  expect_right({1, 7, 9, 8, 21, 3, 3, 1, 1, 1, 1, 1, 1, 7});    // three outputs per input
  expect_right({1, 64, 5, 5, 64, 1, 1, 1, 1, 0, 0, 1, 1, 16});
}

// Kernels of one tap: by the convolution below 128 pixels, by matrix products from there on.
TEST(DenseConv, OneTap) {
  expect_right({3, 20, 9, 14, 24, 1, 1});
  expect_right({3, 20, 8, 16, 24, 1, 1});
  expect_right({2, 33, 16, 17, 129, 1, 1});
  expect_right({2, 9, 16, 16, 257, 1, 1});
  // Strides: 8 x 16 and 12 x 11 pixels are left, and 4 x 16.
  expect_right({3, 20, 15, 32, 24, 1, 1, 2, 2});
  expect_right({11, 5, 34, 31, 130, 1, 1, 3, 3});
  expect_right({2, 20, 31, 16, 24, 1, 1, 8, 1});
}

// Several pieces, the last of them smaller: images, output channels, groups.
TEST(DenseConv, Pieces) {
  for (const ConvShape& shape : {ConvShape{3, 16, 20, 20, 20, 3, 3, 1, 1, 1, 1},
                                 ConvShape{2, 16, 24, 24, 40, 3, 3, 1, 1, 1, 1},
                                 ConvShape{2, 16, 24, 24, 80, 3, 3, 1, 1, 1, 1, 1, 1, 2},
                                 ConvShape{2, 80, 21, 21, 80, 3, 3, 1, 1, 1, 1, 1, 1, 10}}) {
    for (const Kind kind : kKinds) {
      expect_right(kind, shape, true, 1, true);
      expect_right(kind, shape, false, 0, false);
    }
  }
}

// Convolves more shapes than are kept, each with an answer of 18 everywhere.
int64_t count_wrong_in_many_shapes() {
  constexpr int64_t kShapes = 280;
  std::vector<int64_t> wrong(kShapes + 1);
  parallel_for(kShapes + 1, [&](int64_t i) {
    Case c(Kind::kForward, {1, 1, 3, 3 + i % kShapes, 1, 3, 3});
    c.x.fill(2);
    c.w.fill(1);
    c.run();
    for (int64_t j = 0; j < c.y.cols; ++j) wrong[size_t(i)] += c.y.at(0, j) != 18;
  });
  return std::accumulate(wrong.begin(), wrong.end(), int64_t{0});
}

TEST(DenseConv, ForgetsShapesAndRemembersThem) {
  for (const int threads : {3, 1}) {
    set_threads(threads);
    EXPECT_EQ(count_wrong_in_many_shapes(), 0);
  }
}

// The shapes: one piece and several of every kind. A primitive divides its work when it is made, so
// it must be made anew for each number of threads.
TEST(DenseConv, BitsDoNotDependOnThreads) {
  for (const ConvShape& shape :
       {ConvShape{8, 16, 14, 14, 32, 3, 3, 1, 1, 1, 1},
        ConvShape{1, 64, 14, 14, 64, 3, 3, 1, 1, 1, 1},
        ConvShape{7, 48, 28, 28, 96, 3, 3, 2, 2, 1, 1},
        ConvShape{64, 16, 9, 9, 40, 3, 3, 1, 1, 1, 1}, ConvShape{9, 64, 15, 15, 200, 1, 1},
        ConvShape{9, 24, 30, 30, 40, 1, 1, 2, 2},
        ConvShape{8, 64, 20, 20, 96, 3, 3, 1, 1, 1, 1, 1, 1, 32},
        ConvShape{4, 256, 4, 4, 64, 1, 1}}) {
    for (const Kind kind : kKinds) {
      Case before(kind, shape);
      before.beta = 1;
      before.fill(false);
      std::optional<Case> first;
      for (const int threads : {1, 2, 3}) {
        count_wrong_in_many_shapes();  // forgets this one
        Case now = before;
        set_threads(threads);
        now.run();
        EXPECT_EQ(weft::threads(), threads) << "the number of threads is the caller's";
        set_threads(1);
        if (!first) first.emplace(now);
        EXPECT_TRUE(same_bits(first->result(), now.result())) << now.trace() << ", " << threads;
      }
    }
  }
}

TEST(DenseConv, WithoutImages) {
  const ConvShape none{0, 2, 5, 5, 3, 3, 3};
  std::vector<float> dw(static_cast<size_t>(none.w_size()), 7);
  const float* no_data = nullptr;
  dense_conv_forward(none, no_data, dw.data(), nullptr, 0, nullptr);
  dense_conv_backward_data(none, nullptr, dw.data(), 0, nullptr);
  dense_conv_backward_weight(none, no_data, no_data, 1, dw.data());
  EXPECT_EQ(dw, std::vector<float>(dw.size(), 7));
  dense_conv_backward_weight(none, no_data, no_data, 0, dw.data());
  EXPECT_EQ(dw, std::vector<float>(dw.size(), 0));
}

TEST(ConvShape, HasTorchsOutputSizes) {
  const ConvShape shape{1, 3, 224, 225, 64, 7, 5, 2, 3, 3, 1, 1, 2};
  shape.check();
  EXPECT_EQ(shape.out_height(), 112);
  EXPECT_EQ(shape.out_width(), 73);
  EXPECT_EQ(shape.flops(), 2.0 * 64 * 112 * 73 * 3 * 35);
}

TEST(ConvShape, RefusesWrongShapes) {
  const ConvShape good{2, 4, 8, 8, 6, 3, 3, 1, 1, 1, 1, 1, 1, 2};
  const auto message = [&](auto change) {
    ConvShape shape = good;
    change(shape);
    return message_of([&] { shape.check(); });
  };
  EXPECT_EQ(message([](ConvShape&) {}), "(no Error)");
  EXPECT_TRUE(contains(message([](ConvShape& s) { s.images = -1; }), "accepted are 0 to"));
  EXPECT_TRUE(contains(message([](ConvShape& s) { s.ins = 0; }), "a size is 0"));
  EXPECT_TRUE(contains(message([](ConvShape& s) { s.stride_w = 0; }), "a size is 0"));
  EXPECT_TRUE(contains(message([](ConvShape& s) { s.dilation_h = -2; }), "a size is -2"));
  EXPECT_TRUE(contains(message([](ConvShape& s) { s.pad_h = -1; }), "padding -1 x 1"));
  EXPECT_TRUE(contains(message([](ConvShape& s) { s.groups = 3; }), "3 groups do not divide 4"));
  EXPECT_TRUE(contains(message([](ConvShape& s) { s.groups = 4; }), "4 groups do not divide 4"));
  EXPECT_TRUE(contains(message([](ConvShape& s) { s.kernel_h = 11; }), "spans 11 x 3 pixels"));
  EXPECT_TRUE(contains(message([](ConvShape& s) { s.dilation_w = 5; }), "spans 3 x 11 pixels"));
  EXPECT_EQ(message([](ConvShape& s) { s.kernel_h = 10; }), "(no Error)");
  EXPECT_TRUE(
      contains(message([](ConvShape& s) { s.images = s.height = s.width = int64_t{1} << 30; }),
               "number of elements overflows"));
}

TEST(DenseConv, RefusesWrongArguments) {
  Case c(Kind::kForward, {1, 2, 4, 4, 3, 3, 3});
  const auto forward = [&](const ConvShape& shape, const float* x, float beta) {
    return message_of([&] { dense_conv_forward(shape, x, c.w.data(), nullptr, beta, c.y.data()); });
  };
  EXPECT_EQ(forward(c.shape, c.x.data(), 0), "(no Error)");
  EXPECT_TRUE(contains(forward(c.shape, c.x.data(), 0.5f), "dense_conv_forward: beta is 0.5"));
  EXPECT_TRUE(contains(forward(c.shape, nullptr, 0), "is null"));
  EXPECT_TRUE(contains(forward({1, 2, 2, 2, 3, 3, 3}, c.x.data(), 0), "spans 3 x 3"));
  EXPECT_TRUE(contains(
      message_of([&] { dense_conv_backward_data(c.shape, c.y.data(), c.w.data(), 2, c.x.data()); }),
      "beta is 2"));
  EXPECT_TRUE(contains(
      message_of([&] { dense_conv_backward_weight(c.shape, c.y.data(), c.x.data(), 0, nullptr); }),
      "is null"));
}

}  // namespace
}  // namespace weft::test
