// The dense products of bf16 activations against naive ones in double.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernel/bf16_matrix.h"
#include "tests/products.h"
#include "weft/kernel/dense/dense.h"

namespace weft::test {
namespace {

enum class Op { kForward, kData, kWeight };

struct DenseCase {
  Op op;
  TestMatrix a, b, before;
  std::vector<float> bias;
  float beta = 0;

  DenseCase(Op op, int64_t tokens, int64_t ins, int64_t outs, int64_t gap, Data data, float beta)
      : op(op),
        a(tokens, op == Op::kForward ? ins : outs, gap),
        b(op == Op::kWeight ? tokens : outs, ins, gap),
        before(op == Op::kWeight ? outs : tokens, op == Op::kForward ? outs : ins, gap),
        beta(beta) {
    Dice dice(static_cast<uint64_t>(tokens + ins));
    for (TestMatrix* m : {&a, &b}) {
      m->fill(data, dice);
      round_values(*m);
    }
    if (beta == 0) {
      before.fill(NAN);
    } else {
      before.fill(data, dice);
      if (op != Op::kWeight) round_values(before);
    }
    if (op == Op::kForward && gap > 0) {
      for (int64_t i = 0; i < outs; ++i) bias.push_back(static_cast<float>(i % 7) - 3);
    }
  }

  ExpectedMatrix expected() const {
    ExpectedMatrix want(before.rows, before.cols);
    const int64_t depth = op == Op::kWeight ? a.rows : a.cols;
    for (int64_t r = 0; r < want.rows; ++r) {
      for (int64_t c = 0; c < want.cols; ++c) {
        if (beta != 0) want.add(r, c, before.at(r, c), 1);
        if (!bias.empty()) want.add(r, c, bias[static_cast<size_t>(c)], 1);
        for (int64_t k = 0; k < depth; ++k) {
          want.add(r, c, op == Op::kWeight ? a.at(k, r) : a.at(r, k),
                   op == Op::kForward ? b.at(c, k) : b.at(k, c));
        }
      }
    }
    return want;
  }

  Bf16Matrix run() const {
    const Bf16Matrix left(a), right(b);
    Bf16Matrix out(before);
    if (op == Op::kForward) {
      dense_forward(left.view(), right.view(), bias.empty() ? nullptr : bias.data(), beta,
                    out.view());
    } else {
      dense_backward_data(left.view(), right.view(), beta, out.view());
    }
    EXPECT_FALSE(out.damaged());
    return out;
  }
  TestMatrix run_weights() const {
    const Bf16Matrix left(a), right(b);
    TestMatrix dw = before;
    dense_backward_weight(left.view(), right.view(), beta, dw.view());
    EXPECT_EQ(dw.damage(), "");
    return dw;
  }
};

TEST(Bf16Dense, ProductsAreRightAroundTheBlocks) {
  for (const Op op : {Op::kForward, Op::kData, Op::kWeight}) {
    // 1024 tokens are expanded at once.
    for (const int64_t tokens : {0, 1, 5, 1023, 1024, 1025, 2049}) {
      for (const auto& [ins, outs] : {std::pair<int64_t, int64_t>{17, 9}, {1, 1}, {0, 3}, {4, 0}}) {
        for (const int64_t gap : {0, 3}) {
          for (const Data data : {Data::kIntegers, Data::kFloats}) {
            for (const float beta : {0.0f, 1.0f}) {
              const DenseCase c(op, tokens, ins, outs, gap, data, beta);
              const std::string wrong = op == Op::kWeight
                                            ? mismatch(c.run_weights().view(), c.expected(), data)
                                            : bf16_mismatch(c.run(), c.expected(), data);
              ASSERT_EQ(wrong, "") << static_cast<int>(op) << ": " << tokens << " x " << ins
                                   << " -> " << outs << ", gap " << gap << ", beta " << beta;
            }
          }
        }
      }
    }
  }
}

TEST(Bf16Dense, BitsDoNotDependOnThreads) {
  const ThreadsAsBefore guard;
  for (const Op op : {Op::kForward, Op::kData, Op::kWeight}) {
    const DenseCase c(op, 1500, 70, 90, 0, Data::kFloats, 0);
    set_threads(1);
    const auto first = op == Op::kWeight ? std::vector<uint16_t>() : c.run().bits();
    const auto first_weights = op == Op::kWeight ? c.run_weights().bits() : std::vector<uint32_t>();
    for (const int count : {2, 3}) {
      set_threads(count);
      if (op == Op::kWeight) {
        EXPECT_EQ(c.run_weights().bits(), first_weights);
      } else {
        EXPECT_EQ(c.run().bits(), first);
      }
    }
  }
}

TEST(Bf16Dense, CarriesNanAndInfinityAndRefusesWrongSizes) {
  DenseCase c(Op::kForward, 3, 4, 5, 0, Data::kIntegers, 0);
  c.a.at(1, 2) = INFINITY;
  const Bf16Matrix y = c.run();
  for (int64_t o = 0; o < 5; ++o) {
    EXPECT_FALSE(std::isfinite(y.at(1, o)));
    EXPECT_TRUE(std::isfinite(y.at(0, o)) && std::isfinite(y.at(2, o)));
  }
  const Bf16Matrix x(3, 4), w(5, 3);
  Bf16Matrix out(3, 5);
  EXPECT_TRUE(
      contains(message_of([&] { dense_forward(x.view(), w.view(), nullptr, 0, out.view()); }),
               "w is 5 x 3"));
}

}  // namespace
}  // namespace weft::test
