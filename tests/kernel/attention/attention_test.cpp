// Attention without torch, against the formula in double.
#include "weft/kernel/attention/attention.h"

#include <cmath>
#include <string>
#include <vector>

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

// Operands and results of both passes, between guards.
struct Case {
  AttentionShape shape;
  TestMatrix qkv, out, stats, d_out, d_qkv;

  explicit Case(const AttentionShape& shape)
      : shape(shape),
        qkv(shape.batch * shape.tokens, 3 * shape.width),
        out(shape.batch * shape.tokens, shape.width),
        stats(2 * shape.batch * shape.heads, shape.tokens),
        d_out(shape.batch * shape.tokens, shape.width),
        d_qkv(shape.batch * shape.tokens, 3 * shape.width) {
    Dice dice(1);
    qkv.fill(Data::kFloats, dice);
    d_out.fill(Data::kFloats, dice);
    out.fill(NAN);
    stats.fill(NAN);
    d_qkv.fill(NAN);
  }

  void run() {
    attention_forward(shape, qkv.data(), out.data(), stats.data());
    attention_backward(shape, qkv.data(), stats.data(), d_out.data(), d_qkv.data());
  }

  std::string damage() const {
    return qkv.damage() + out.damage() + stats.damage() + d_out.damage() + d_qkv.damage();
  }

  std::string trace() const {
    return fmt::format("batch {}, tokens {}, heads {}, width {}, {}, seed {}", shape.batch,
                       shape.tokens, shape.heads, shape.width, shape.causal ? "causal" : "full",
                       test_seed());
  }
};

// Both results in double. An Expected allows one rounding per term. A score is a sum of head_width
// terms, and what it is wrong by is what its probability is wrong by, relatively, so that the error
// of the scores counts as terms too; the constants are generous in what else rounds.
class Reference {
 public:
  ExpectedMatrix out, d_qkv;

  explicit Reference(const Case& c)
      : out(c.out.rows, c.out.cols), d_qkv(c.d_qkv.rows, c.d_qkv.cols), c_(c) {
    for (int64_t sample = 0; sample < c.shape.batch; ++sample) {
      for (int64_t head = 0; head < c.shape.heads; ++head) add(sample, head);
    }
  }

 private:
  void add(int64_t sample, int64_t head) {
    const AttentionShape& shape = c_.shape;
    const int64_t tokens = shape.tokens, depth = shape.head_width();
    const double scale = 1 / std::sqrt(static_cast<double>(depth));
    const int64_t row = sample * tokens, col = head * depth;
    const auto part = [&](int64_t which, int64_t token, int64_t i) {
      return static_cast<double>(c_.qkv.at(row + token, which * shape.width + col + i));
    };
    const auto gradient = [&](int64_t which, int64_t token, int64_t i) -> Expected& {
      return d_qkv.at(row + token, which * shape.width + col + i);
    };
    std::vector<double> p(static_cast<size_t>(tokens)), dp(p), dp_size(p);
    double score_size = 0;  // the largest Σ |q k| / √depth
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t count = shape.causal ? t + 1 : tokens;
      double max = -std::numeric_limits<double>::infinity(), sum = 0, mean = 0, mean_size = 0;
      for (int64_t j = 0; j < count; ++j) {
        double score = 0, size = 0;
        for (int64_t i = 0; i < depth; ++i) {
          score += part(0, t, i) * part(1, j, i) * scale;
          size += std::abs(part(0, t, i) * part(1, j, i)) * scale;
        }
        p[static_cast<size_t>(j)] = score;
        max = std::max(max, score);
        score_size = std::max(score_size, size);
      }
      for (int64_t j = 0; j < count; ++j) {
        sum += p[static_cast<size_t>(j)] = std::exp(p[static_cast<size_t>(j)] - max);
      }
      for (int64_t j = 0; j < count; ++j) {
        const auto at = static_cast<size_t>(j);
        p[at] /= sum;
        dp[at] = dp_size[at] = 0;
        for (int64_t i = 0; i < depth; ++i) {
          const double g = c_.d_out.at(row + t, col + i), v = part(2, j, i);
          out.at(row + t, col + i).add(p[at] * v);
          gradient(2, j, i).add(p[at] * g);
          dp[at] += g * v;
          dp_size[at] += std::abs(g * v);
        }
        mean += p[at] * dp[at];
        mean_size += p[at] * dp_size[at];
      }
      for (int64_t j = 0; j < count; ++j) {
        const auto at = static_cast<size_t>(j);
        const double ds = p[at] * (dp[at] - mean) * scale;
        const double ds_size = p[at] * (dp_size[at] + mean_size) * scale;
        for (int64_t i = 0; i < depth; ++i) {
          Expected& dq = gradient(0, t, i);
          dq.value += ds * part(1, j, i);
          dq.magnitude += ds_size * std::abs(part(1, j, i));
          Expected& dk = gradient(1, j, i);
          dk.value += ds * part(0, t, i);
          dk.magnitude += ds_size * std::abs(part(0, t, i));
        }
      }
    }
    const double score_error = static_cast<double>(depth + 4) * score_size;  // in units of rounding
    const int64_t terms =
        3 * tokens + depth + 20 +
        (std::isfinite(score_error) ? static_cast<int64_t>(std::ceil(4 * score_error)) : 0);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < depth; ++i) {
        out.at(row + t, col + i).terms = terms;
        for (const int64_t which : {0, 1, 2}) gradient(which, t, i).terms = terms;
      }
    }
  }

  const Case& c_;
};

void expect_right(Case& c) {
  c.run();
  const Reference reference(c);
  EXPECT_EQ(mismatch(c.out.view(), reference.out, Data::kFloats), "") << "out, " << c.trace();
  EXPECT_EQ(mismatch(c.d_qkv.view(), reference.d_qkv, Data::kFloats), "") << "d_qkv, " << c.trace();
  EXPECT_EQ(c.damage(), "") << c.trace();
}

TEST(Attention, AgreesWithTheFormulaInDouble) {
  for (const bool causal : {false, true}) {
    for (const int64_t tokens : {0, 1, 7, 64, 65, 130}) {
      for (const int64_t heads : {1, 3, 4}) {
        for (const int64_t head_width : {1, 8, 32, 64, 65}) {
          Case c({2, tokens, heads, heads * head_width, causal});
          expect_right(c);
        }
      }
    }
  }
  Case none({0, 5, 2, 4, true});
  expect_right(none);
}

// Small scores, which leave many probabilities of a size, so that the bound is tight.
TEST(Attention, AgreesWhereNoTokenDominates) {
  for (const bool causal : {false, true}) {
    Case c({1, 200, 2, 64, causal});
    for (int64_t r = 0; r < c.qkv.rows; ++r) {
      for (int64_t i = 0; i < 2 * c.shape.width; ++i) c.qkv.at(r, i) *= 0x1p-5f;
    }
    expect_right(c);
  }
}

TEST(Attention, RunsOnEveryInstructionSet) {
  const std::string before = current_isa();
  for (const std::string& isa : available_isas()) {
    force_isa(isa);  // of the softmax; oneDNN stays where it was
    for (const bool causal : {false, true}) {
      for (const int64_t tokens : {1, 7, 64, 83}) {
        SCOPED_TRACE(isa);
        Case c({1, tokens, 2, 24, causal});
        expect_right(c);
      }
    }
  }
  force_isa(before);
}

// Scores so far below the largest that exp is 0: exactly one token is seen.
TEST(Attention, PicksOneTokenExactly) {
  for (const float step : {110.0f, 1e4f, 1e30f}) {
    Case c({1, 70, 1, 1, true});
    for (int64_t t = 0; t < c.shape.tokens; ++t) {
      c.qkv.at(t, 0) = 1;
      c.qkv.at(t, 1) = (t == 13 ? 2.0f : t == 3 ? 1.0f : 0.0f) * step;
      c.qkv.at(t, 2) = static_cast<float>(t) / 7;
    }
    c.run();
    for (int64_t t = 3; t < c.shape.tokens; ++t) {
      ASSERT_EQ(c.out.at(t, 0), c.qkv.at(t < 13 ? 3 : 13, 2)) << "row " << t << ", step " << step;
    }
  }
}

TEST(Attention, BitsDoNotDependOnThreads) {
  for (const bool causal : {false, true}) {
    for (const AttentionShape shape :
         {AttentionShape{1, 300, 1, 64, causal}, AttentionShape{3, 130, 5, 160, causal},
          AttentionShape{8, 65, 2, 66, causal}}) {
      Case one(shape);
      one.run();
      for (const int threads : {2, 3}) {
        Case several(shape);
        set_threads(threads);
        several.run();
        EXPECT_EQ(weft::threads(), threads) << "the number of threads is the caller's";
        set_threads(1);
        EXPECT_TRUE(same_bits(one.out, several.out)) << one.trace() << ", threads " << threads;
        EXPECT_TRUE(same_bits(one.stats, several.stats)) << one.trace() << ", threads " << threads;
        EXPECT_TRUE(same_bits(one.d_qkv, several.d_qkv)) << one.trace() << ", threads " << threads;
      }
    }
  }
}

// What is not finite in the reference is not finite here; other heads and samples do not notice,
// nor do rows in blocks before the token.
void expect_spread(const Case& clean, Case& c, int64_t token, int64_t head) {
  c.run();
  const Reference reference(c);
  const auto expect = [&](const TestMatrix& got, const TestMatrix& untouched,
                          const ExpectedMatrix& want, int64_t first_row, const char* name) {
    for (int64_t r = 0; r < got.rows; ++r) {
      for (int64_t i = 0; i < got.cols; ++i) {
        const bool own = r < c.shape.tokens && i % c.shape.width / c.shape.head_width() == head;
        if (!own || r < first_row) {
          ASSERT_EQ(got.at(r, i), untouched.at(r, i)) << name << " [" << r << ", " << i << "]";
        } else if (!std::isfinite(want.at(r, i).value)) {
          ASSERT_FALSE(std::isfinite(got.at(r, i))) << name << " [" << r << ", " << i << "]";
        }
      }
    }
  };
  expect(c.out, clean.out, reference.out, c.shape.causal ? token / 64 * 64 : 0, "out");
  expect(c.d_qkv, clean.d_qkv, reference.d_qkv, 0, "d_qkv");
  int64_t lost = 0;
  for (int64_t i = 0; i < c.shape.width; ++i) {
    lost += std::isfinite(reference.out.at(token, i).value) ? 0 : 1;
  }
  EXPECT_GT(lost, 0) << "the case is meant to lose a row: " << c.trace();
}

TEST(Attention, NanAndInfinityAreNotHidden) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const bool causal : {false, true}) {
    Case clean({2, 130, 3, 24, causal});
    for (int64_t r = 0; r < clean.qkv.rows; ++r) {  // positive: an infinity is one above
      for (int64_t i = 0; i < clean.qkv.cols; ++i) {
        clean.qkv.at(r, i) = std::abs(clean.qkv.at(r, i)) + 0x1p-4f;
      }
    }
    clean.run();
    for (const int64_t token : {0, 5, 64, 100, 129}) {
      for (const int64_t part : {0, 1, 2}) {
        for (const float value : {std::nanf(""), infinity}) {
          SCOPED_TRACE(fmt::format("{} in {} of token {}, {}", value, "qkv"[part], token,
                                   causal ? "causal" : "full"));
          Case c = clean;
          c.qkv.at(token, part * 24 + 8 + 3) = value;
          expect_spread(clean, c, token, 1);
        }
      }
    }
    Case c = clean;
    c.d_out.at(70, 8) = std::nanf("");
    c.run();
    EXPECT_TRUE(std::isnan(c.d_qkv.at(70, 8)));
    EXPECT_TRUE(std::isnan(c.d_qkv.at(3, 24 + 8)));
    EXPECT_TRUE(std::isnan(c.d_qkv.at(3, 48 + 8)));
    EXPECT_TRUE(same_bits(c.out, clean.out));
  }
}

TEST(Attention, RefusesWrongArguments) {
  std::vector<float> some(64);
  const auto forward = [&](AttentionShape shape, float* qkv) {
    return message_of([&] { attention_forward(shape, qkv, some.data(), some.data()); });
  };
  EXPECT_TRUE(contains(forward({1, 2, 3, 4, true}, some.data()),
                       "attention_forward: a width of 4 is not a multiple of 3 heads"));
  EXPECT_TRUE(contains(forward({1, -2, 1, 4, true}, some.data()), "tokens -2"));
  EXPECT_TRUE(contains(forward({-1, 2, 1, 4, true}, some.data()), "batch -1"));
  EXPECT_TRUE(contains(forward({1, 2, 0, 4, true}, some.data()), "heads 0"));
  EXPECT_TRUE(contains(forward({1, 2, 1, 0, true}, some.data()), "width 0"));
  EXPECT_TRUE(contains(forward({1, 2, 1, 4, true}, nullptr), "is null"));
  EXPECT_EQ(forward({1, 0, 1, 4, true}, nullptr), "(no Error)");
  EXPECT_TRUE(
      contains(message_of([&] {
                 attention_backward({1, 2, 1, 4}, some.data(), nullptr, some.data(), some.data());
               }),
               "attention_backward: an argument is null"));
}

}  // namespace
}  // namespace weft::test
