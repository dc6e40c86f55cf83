// The dense products of a linear layer, and the dense peers of the benchmark.
#include "weft/kernel/dense/dense.h"

#include <array>
#include <functional>
#include <limits>
#include <string>

#include "bench/peak.h"
#include "bench/peers.h"
#include "tests/products.h"
#include "weft/core/isa.h"
#include "weft/core/parallel.h"

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

constexpr std::array kOps = {Product::kForward, Product::kBackwardData, Product::kBackwardWeight};
constexpr std::array kNames = {"forward", "backward data", "backward weight"};

struct Layer {
  int64_t tokens, ins, outs;
};

// The operands of one product, and its result.
struct Case {
  Product op;
  Layer layer;
  TestMatrix a, b, out;
  std::vector<float> bias;  // forward only
  float beta = 0;

  Case(Product op, Layer layer, int64_t gap = 0)
      : op(op),
        layer(layer),
        a(layer.tokens, op == Product::kForward ? layer.ins : layer.outs, gap),
        b(op == Product::kBackwardWeight ? layer.tokens : layer.outs, layer.ins, 2 * gap),
        out(op == Product::kBackwardWeight ? layer.outs : layer.tokens,
            op == Product::kForward ? layer.outs : layer.ins, gap) {}

  void fill(Data data) {
    Dice dice(1);
    a.fill(data, dice);
    b.fill(data, dice);
    if (beta == 0) {
      out.fill(std::numeric_limits<float>::quiet_NaN());
    } else {
      out.fill(data, dice);
    }
  }

  void run() {
    const float* bias_or_none = bias.empty() ? nullptr : bias.data();
    switch (op) {
      case Product::kForward:
        return dense_forward(a.view(), b.view(), bias_or_none, beta, out.view());
      case Product::kBackwardData: return dense_backward_data(a.view(), b.view(), beta, out.view());
      case Product::kBackwardWeight:
        return dense_backward_weight(a.view(), b.view(), beta, out.view());
    }
  }

  // The sum, in double, where the result was `before`.
  Expected expected(const TestMatrix& before, int64_t r, int64_t c) const {
    const bool down_a = op == Product::kBackwardWeight, down_b = op != Product::kForward;
    const float* left = a.data() + (down_a ? r : r * a.stride);
    const float* right = b.data() + (down_b ? c : c * b.stride);
    const int64_t left_step = down_a ? a.stride : 1, right_step = down_b ? b.stride : 1;
    Expected sum;
    if (beta != 0) sum.add(before.at(r, c));
    if (!bias.empty()) sum.add(bias[static_cast<size_t>(c)]);
    for (int64_t i = 0; i < (down_a ? a.rows : a.cols); ++i) {
      sum.add(static_cast<double>(left[i * left_step]) *
              static_cast<double>(right[i * right_step]));
    }
    return sum;
  }

  std::string trace() const {
    return fmt::format("{}: {} tokens, {} ins, {} outs, rows {} apart, beta {}, {} bias",
                       kNames[static_cast<size_t>(op)], layer.tokens, layer.ins, layer.outs,
                       a.stride, beta, bias.empty() ? "no" : "with");
  }
};

// The result of a case, where it was `before`.
void expect_result(const Case& c, const TestMatrix& before, Data data) {
  const auto expected = [&](int64_t row, int64_t col) { return c.expected(before, row, col); };
  EXPECT_EQ(mismatch(c.out.view(), expected, data), "") << c.trace();
  EXPECT_EQ(c.out.damage(), "") << c.trace();
}

void expect_right(Case& c, Data data) {
  c.fill(data);
  const TestMatrix before = c.out;
  c.run();
  expect_result(c, before, data);
}

void expect_right(Product op, Layer layer, int64_t gap, Data data, float beta, bool with_bias) {
  Case c(op, layer, gap);
  c.beta = beta;
  if (with_bias && op == Product::kForward) {
    for (int64_t i = 0; i < layer.outs; ++i) c.bias.push_back(static_cast<float>(i % 7) - 3);
  }
  expect_right(c, data);
}

// Bias and beta in all combinations, which is for small shapes, and in two.
void expect_all_right(Product op, Layer layer, int64_t gap = 0) {
  for (const Data data : {Data::kIntegers, Data::kFloats}) {
    for (const float beta : {0.0f, 1.0f}) {
      expect_right(op, layer, gap, data, beta, false);
      if (op == Product::kForward) expect_right(op, layer, gap, data, beta, true);
    }
  }
}
void expect_right(Product op, Layer layer, int64_t gap = 0) {
  expect_right(op, layer, gap, Data::kIntegers, 1, true);
  expect_right(op, layer, gap, Data::kFloats, 0, false);
}

TEST(Dense, RunsOnTheForcedInstructionSet) { EXPECT_EQ(dense_isa(), current_isa()); }

TEST(Dense, SmallShapes) {
  for (const Product op : kOps) {
    for (const int64_t tokens : {0, 1, 2, 17, 33}) {
      for (const int64_t ins : {0, 1, 15, 16, 48}) {
        for (const int64_t outs : {0, 1, 3, 24, 49}) expect_all_right(op, {tokens, ins, outs});
      }
    }
  }
}

TEST(Dense, RowsFurtherApartThanLong) {
  for (const Product op : kOps) {
    expect_all_right(op, {5, 7, 9}, 3);
    expect_all_right(op, {70, 65, 130}, 11);
  }
}

// A layer whose product `op` reduces over `depth` and has a result of rows x cols.
Layer layer_of(Product op, int64_t rows, int64_t cols, int64_t depth) {
  switch (op) {
    case Product::kForward: return {rows, depth, cols};
    case Product::kBackwardData: return {rows, cols, depth};
    case Product::kBackwardWeight: return {depth, cols, rows};
  }
  return {};
}

// Around the first cut (2^23 flops), several blocks without and with oneDNN's copies, and sizes
// that leave little for the last block.
TEST(Dense, Blocks) {
  for (const Product op : kOps) {
    expect_right(op, layer_of(op, 159, 160, 161));
    expect_right(op, layer_of(op, 162, 163, 161));
    expect_right(op, layer_of(op, 257, 513, 65));
    expect_right(op, layer_of(op, 1, 2049, 2111));
    expect_right(op, layer_of(op, 1057, 1121, 9));
    expect_right(op, layer_of(op, 2081, 2100, 3));
  }
}

// Gradients whose rows collide in the cache are copied some at a time, here 287 of 512 or 557 of
// 256 columns of a block: one copy more, one less. So are weights, from 32 tokens on, and
// activations.
TEST(Dense, CollidingRows) {
  for (const int64_t tokens : {286, 287, 288, 575}) {
    expect_right(Product::kBackwardWeight, {tokens, 40, 256});
    expect_right(Product::kBackwardWeight, {tokens, 130, 200}, 56);
    expect_right(Product::kBackwardWeight, {tokens, 64, 1024});
  }
  for (const int64_t depth : {556, 557, 558, 1115}) {
    for (const int64_t tokens : {31, 32, 45}) {
      expect_right(Product::kBackwardData, {tokens, 512, depth});
      expect_right(Product::kBackwardData, {tokens, 300, depth}, 106);
    }
    expect_right(Product::kBackwardWeight, {depth, 512, 256});
    expect_right(Product::kBackwardWeight, {depth, 512, 200});
  }
}

// The shapes: one block, which oneDNN left to itself would split along the reduction if it had
// threads; several, of both kinds; colliding rows.
TEST(Dense, BitsDoNotDependOnThreads) {
  for (const Product op : kOps) {
    for (const Layer layer :
         {Layer{8, 8000, 16}, Layer{8, 16, 8000}, Layer{8000, 8, 16}, Layer{300, 500, 400},
          Layer{1100, 65, 1060}, Layer{700, 256, 512}, Layer{1, 3000, 3000}, Layer{3, 700, 260},
          Layer{1030, 1040, 1050}, Layer{700, 512, 600}}) {
      Case one(op, layer);
      one.beta = 1;
      one.fill(Data::kFloats);
      Case other = one;
      one.run();
      for (const int threads : {2, 3}) {
        Case several = other;
        set_threads(threads);
        several.run();
        EXPECT_EQ(weft::threads(), threads) << "the number of threads is the caller's";
        set_threads(1);
        EXPECT_TRUE(same_bits(one.out, several.out)) << one.trace() << ", threads " << threads;
      }
    }
  }
}

TEST(Dense, RefusesWrongArguments) {
  TestMatrix x(3, 4), w(5, 4), y(3, 5), wrong(4, 5);
  const auto forward = [&](MatrixView<const float> x, MatrixView<const float> w, float beta,
                           MatrixView<float> y) {
    return message_of([&] { dense_forward(x, w, nullptr, beta, y); });
  };
  EXPECT_EQ(forward(x.view(), w.view(), 0, y.view()), "(no Error)");
  EXPECT_TRUE(contains(forward(x.view(), w.view(), 0, wrong.view()),
                       "dense_forward: y is 4 x 5, accepted is 3 x 5"));
  EXPECT_TRUE(
      contains(forward(x.view(), wrong.view(), 0, y.view()), "w is 4 x 5, accepted is 4 x 4"));
  EXPECT_TRUE(contains(forward(x.view(), w.view(), 0.5f, y.view()), "beta is 0.5"));
  EXPECT_TRUE(contains(forward({x.data(), 3, 4, 3}, w.view(), 0, y.view()), "rows 3 apart"));
  EXPECT_TRUE(contains(forward({nullptr, 3, 4}, w.view(), 0, y.view()), "x is 3 x 4 at null"));
  EXPECT_TRUE(contains(forward({x.data(), -1, 4}, w.view(), 0, {y.data(), -1, 5}), "-1 x 4"));

  const auto data = [&](MatrixView<const float> g, MatrixView<const float> w, float beta,
                        MatrixView<float> dx) {
    return message_of([&] { dense_backward_data(g, w, beta, dx); });
  };
  EXPECT_EQ(data(y.view(), w.view(), 0, x.view()), "(no Error)");
  EXPECT_TRUE(contains(data(y.view(), w.view(), 2, x.view()), "beta is 2"));
  EXPECT_TRUE(contains(data(y.view(), w.view(), 0, y.view()), "dx is 3 x 5, accepted is 3 x 4"));
  EXPECT_TRUE(contains(data(x.view(), w.view(), 0, x.view()), "w is 5 x 4, accepted is 4 x 4"));

  const auto weight = [&](MatrixView<const float> g, MatrixView<const float> x, float beta,
                          MatrixView<float> dw) {
    return message_of([&] { dense_backward_weight(g, x, beta, dw); });
  };
  EXPECT_EQ(weight(y.view(), x.view(), 1, w.view()), "(no Error)");
  EXPECT_TRUE(contains(weight(y.view(), x.view(), -1, w.view()), "beta is -1"));
  EXPECT_TRUE(contains(weight(wrong.view(), x.view(), 1, w.view()), "x is 3 x 4, accepted is 4"));
  EXPECT_TRUE(contains(weight(y.view(), x.view(), 1, wrong.view()), "dw is 4 x 5"));
}

TEST(Peers, AgreeWithTheReference) {
  const bench::DensePeers& found = bench::dense_peers();
  EXPECT_EQ(found.peers.front().name, "oneDNN");
  EXPECT_EQ(found.peers.back().name, "weft");
  EXPECT_EQ(found.peers.size() + found.absent.size(), 3u);
  for (const bench::DensePeer& peer : found.peers) {
    for (const int threads : {1, 2}) {
      for (const Product op : kOps) {
        Case c(op, {70, 90, 110}, 5);
        c.fill(Data::kIntegers);
        set_threads(threads);
        peer.run(op, c.a.view(), c.b.view(), c.out.view());
        EXPECT_EQ(weft::threads(), threads);
        set_threads(1);
        SCOPED_TRACE(peer.name);
        expect_result(c, c.out, Data::kIntegers);
      }
    }
  }
}

TEST(Peers, PreparedMatmulAgreesWithTheReference) {
  for (const auto type : {Precision::kFp32, Precision::kBf16}) {
    if (type == Precision::kBf16 && !bench::no_bf16().empty()) {
      EXPECT_TRUE(bench::no_bf16().starts_with("none on this CPU"));
      continue;
    }
    for (const Product op : kOps) {
      Case c(op, {70, 90, 110}, 5);
      c.fill(Data::kIntegers);  // -4 ... 4 are bf16 numbers, and the sums are fp32
      const auto run = bench::prepare_matmul(type, op, c.a.view(), c.b.view(), c.out.view());
      run();
      run();
      expect_result(c, c.out, Data::kIntegers);
    }
  }
}

TEST(Peak, IsWhatACpuMayDo) {
  if (std::getenv("WEFT_EMULATOR") != nullptr) GTEST_SKIP() << "an emulator is no CPU";
  const double peak = bench::fma_peak_gflops(1);
  EXPECT_GT(peak, 0.1);
  EXPECT_LT(peak, 1000);
  EXPECT_EQ(threads(), 1);
}

}  // namespace
}  // namespace weft::test
