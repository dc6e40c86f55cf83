// bf16 storage: rounding and expanding, and the products of bf16 activations against naive ones in
// double. Sums are fp32 and rounded once, so integers compare exactly, however large their sum.
#include <gtest/gtest.h>

#include "tests/linear_problem.h"
#include "weft/core/parallel.h"
#include "weft/core/transpose.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/conv/dense_conv.h"
#include "weft/kernel/conv/sparse_conv.h"
#include "weft/kernel/dense/dense.h"
#include "weft/kernel/masked/masked_weight.h"

namespace weft::test {
namespace {

struct ThreadsAsBefore {
  int before = threads();
  ~ThreadsAsBefore() { set_threads(before); }
};

// As TestMatrix: guards around and between the rows, NaN, and watched by a sanitizer.
class Bf16Matrix {
 public:
  static constexpr Bf16 kGuard{0x7fa5};
  static constexpr int64_t kMargin = 64;

  const int64_t rows, cols, stride;

  Bf16Matrix(int64_t rows, int64_t cols, int64_t gap = 0)
      : rows(rows),
        cols(cols),
        stride(cols + gap),
        size_(2 * kMargin + rows * stride),
        all_(new Bf16[static_cast<size_t>(size_)]) {
    std::fill_n(all_.get(), size_, kGuard);
    if (__asan_poison_memory_region == nullptr) return;
    __asan_poison_memory_region(all_.get(), bytes());
    for (int64_t r = 0; r < rows && cols > 0; ++r) {
      __asan_unpoison_memory_region(data() + r * stride, static_cast<size_t>(cols) * sizeof(Bf16));
    }
  }
  // The nearest numbers.
  explicit Bf16Matrix(const TestMatrix& m) : Bf16Matrix(m.rows, m.cols, m.stride - m.cols) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) view().at(r, c) = to_bf16(m.at(r, c));
    }
  }
  Bf16Matrix(Bf16Matrix&&) = default;
  ~Bf16Matrix() {
    if (all_ && __asan_unpoison_memory_region != nullptr) {
      __asan_unpoison_memory_region(all_.get(), bytes());
    }
  }

  Bf16* data() { return all_.get() + kMargin; }
  const Bf16* data() const { return all_.get() + kMargin; }
  MatrixView<Bf16> view() { return {data(), rows, cols, stride}; }
  MatrixView<const Bf16> view() const { return {data(), rows, cols, stride}; }
  float at(int64_t r, int64_t c) const { return to_float(view().at(r, c)); }

  std::vector<uint16_t> bits() const {
    std::vector<uint16_t> bits;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) bits.push_back(view().at(r, c).bits);
    }
    return bits;
  }
  bool damaged() const {
    if (__asan_poison_memory_region != nullptr) return false;  // who touched one was stopped
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t at = i - kMargin;
      const bool inside = at >= 0 && at < rows * stride && at % stride < cols;
      if (!inside && all_[static_cast<size_t>(i)] != kGuard) return true;
    }
    return false;
  }

 private:
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(Bf16); }

  int64_t size_;
  std::unique_ptr<Bf16[]> all_;
};

// Nothing, or the first element that is not the fp32 sum rounded once: of integers the nearest bf16
// of their sum, of floats one within the bound of the sum and half a unit, 2^-8, of it.
std::string bf16_mismatch(const Bf16Matrix& got, const ExpectedMatrix& want, Data data) {
  if (got.rows != want.rows || got.cols != want.cols) return "another size";
  for (int64_t r = 0; r < got.rows; ++r) {
    for (int64_t c = 0; c < got.cols; ++c) {
      const Expected& e = want.at(r, c);
      const double a = got.at(r, c), b = e.value;
      const double nearest = to_float(to_bf16(static_cast<float>(b)));
      if (a == nearest || (std::isnan(a) && std::isnan(b))) continue;
      const double bound = e.bound() + 0x1p-8 * (std::abs(b) + e.bound());
      if (data == Data::kFloats && std::isfinite(b) && std::abs(a - b) <= bound) continue;
      return fmt::format("[{}, {}]: got {}, expected {}, rounded {}, bound {:.3g}, seed {}", r, c,
                         a, b, nearest, bound, test_seed());
    }
  }
  return "";
}

void round_values(TestMatrix& m) {
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) m.at(r, c) = to_float(to_bf16(m.at(r, c)));
  }
}

TEST(Bf16Comparator, FindsWhatIsWrong) {
  ExpectedMatrix want(1, 3);
  want.add(0, 0, 1000, 1), want.add(0, 1, 259, 1), want.add(0, 2, NAN, 1);
  Bf16Matrix got(1, 3);
  const auto set = [&](float a, float b, float c) {
    got.view().at(0, 0) = to_bf16(a), got.view().at(0, 1) = to_bf16(b);
    got.view().at(0, 2) = to_bf16(c);
  };
  set(1000, 260, NAN);  // 259 is between 258 and 260, which is even
  EXPECT_EQ(bf16_mismatch(got, want, Data::kIntegers), "");
  set(1000, 258, NAN);
  EXPECT_NE(bf16_mismatch(got, want, Data::kIntegers), "");
  EXPECT_EQ(bf16_mismatch(got, want, Data::kFloats), "") << "half a unit is within the bound";
  set(1008, 260, NAN);
  EXPECT_NE(bf16_mismatch(got, want, Data::kFloats), "");
  set(1000, 260, 1);
  EXPECT_NE(bf16_mismatch(got, want, Data::kFloats), "");
}

// ---- numbers

TEST(Bf16Rows, ExpandEveryNumberExactly) {
  std::vector<Bf16> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  for_each_isa([&](const std::string& isa) {
    std::vector<float> wide(all.size());
    expand_here(all.data(), static_cast<int64_t>(all.size()), wide.data());
    std::vector<Bf16> back(all.size());
    round_here(wide.data(), static_cast<int64_t>(all.size()), back.data());
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), static_cast<uint32_t>(i) << 16) << isa;
      ASSERT_EQ(back[i], to_bf16(wide[i])) << isa << ", " << i;
      ASSERT_TRUE(back[i] == all[i] || (std::isnan(wide[i]) && std::isnan(to_float(back[i]))))
          << isa << ", " << i;
    }
  });
}

TEST(Bf16Rows, RoundToTheNearestTiesToEven) {
  std::vector<float> wide;
  for (const uint32_t upper : {0x3f80u, 0x3f81u, 0xbf80u, 0x0000u, 0x8001u, 0x7f7fu, 0x7f80u,
                               0xff80u, 0x7fc0u, 0x7f81u, 0xffffu, 0x007fu}) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      wide.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  Dice dice(1);
  while (wide.size() < 5000) {
    wide.push_back(std::bit_cast<float>(static_cast<uint32_t>(dice.next())));
  }
  EXPECT_EQ(to_float(to_bf16(257.0f)), 256.0f);
  EXPECT_EQ(to_float(to_bf16(259.0f)), 260.0f);
  for_each_isa([&](const std::string& isa) {
    std::vector<Bf16> narrow(wide.size());
    round_here(wide.data(), static_cast<int64_t>(wide.size()), narrow.data());
    for (size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(narrow[i].bits, to_bf16(wide[i]).bits)
          << isa << std::hex << ", " << std::bit_cast<uint32_t>(wide[i]);
    }
  });
}

TEST(Bf16Rows, AreRightForEverySizeAndGap) {
  const ThreadsAsBefore guard;
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {0, 5},    {5, 0},  {1, 1},  {3, 7},  {2, 8},     {2, 9},
      {1, 15},   {3, 16}, {2, 17}, {5, 33}, {3, 70001},  // rows that are cut
      {70, 1200}};
  for (const auto& [rows, cols] : sizes) {
    for (const int64_t gap : {0, 3}) {
      for (const int count : {1, 3}) {
        set_threads(count);
        TestMatrix m(rows, cols, gap);
        Dice dice(static_cast<uint64_t>(rows * cols));
        m.fill(Data::kFloats, dice);
        const Bf16Matrix want(m);
        Bf16Matrix got(rows, cols, 2 * gap);
        round_to_bf16(m.view(), got.view());
        ASSERT_EQ(got.bits(), want.bits()) << rows << " x " << cols << ", gap " << gap;
        ASSERT_FALSE(got.damaged());
        TestMatrix wide(rows, cols, gap);
        expand(got.view(), wide.view());
        round_values(m);
        ASSERT_TRUE(same_bits(wide, m)) << rows << " x " << cols << ", gap " << gap;
        ASSERT_EQ(wide.damage(), "");
      }
    }
  }
}

TEST(Bf16Transpose, ExpandsAndRounds) {
  for_each_isa([&](const std::string& isa) {
    for (const int64_t rows : {0, 1, 3, 4, 5, 7, 8, 9, 16, 17}) {
      for (const int64_t cols : {0, 1, 4, 7, 8, 9, 17}) {
        Dice dice(static_cast<uint64_t>(rows * 100 + cols));
        TestMatrix m(rows, cols, 3), bias(1, rows);
        m.fill(Data::kFloats, dice);
        bias.fill(Data::kFloats, dice);
        const Bf16Matrix narrow(m);
        TestMatrix wide(cols, rows, 2);
        transpose(TurnOf<Bf16, float>{narrow.data(), narrow.stride, rows, cols, wide.data(),
                                      wide.stride});
        ASSERT_EQ(wide.damage(), "") << isa;
        for (const bool with_bias : {false, true}) {
          for (const float beta : {0.0f, 1.0f}) {
            Bf16Matrix y(cols, rows, 1);
            for (int64_t c = 0; c < cols; ++c) {
              for (int64_t r = 0; r < rows; ++r) {
                y.view().at(c, r) = to_bf16(beta == 0 ? NAN : static_cast<float>(r - c));
              }
            }
            transpose_into(TurnOf<float, Bf16>{m.data(), m.stride, rows, cols, y.data(), y.stride},
                           with_bias ? bias.data() : nullptr, beta);
            ASSERT_FALSE(y.damaged()) << isa;
            for (int64_t c = 0; c < cols; ++c) {
              for (int64_t r = 0; r < rows; ++r) {
                ASSERT_EQ(wide.at(c, r), narrow.at(r, c)) << isa;
                float sum = m.at(r, c);
                if (with_bias) sum += bias.at(0, r);
                if (beta != 0) sum += static_cast<float>(r - c);
                ASSERT_EQ(y.view().at(c, r), to_bf16(sum)) << isa << ", " << r << ", " << c;
              }
            }
          }
        }
      }
    }
  });
}

// ---- sparse products

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

// ---- dense products

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

// ---- products that expand, run in fp32, and round: the bits of just that

std::vector<Bf16> draw_bf16(int64_t size, uint64_t stream) {
  Dice dice(stream);
  std::vector<Bf16> numbers(static_cast<size_t>(size));
  for (Bf16& one : numbers) one = to_bf16(draw(Data::kFloats, dice));
  return numbers;
}
std::vector<float> wide(const std::vector<Bf16>& numbers) {
  std::vector<float> floats;
  for (const Bf16 one : numbers) floats.push_back(to_float(one));
  return floats;
}
std::vector<Bf16> narrow(const std::vector<float>& floats) {
  std::vector<Bf16> numbers;
  for (const float one : floats) numbers.push_back(to_bf16(one));
  return numbers;
}

class Bf16Conv : public ::testing::TestWithParam<float> {
 protected:
  Bf16Conv() {
    shape_.images = 3;
    shape_.ins = 8, shape_.outs = 12, shape_.groups = 2;
    shape_.height = 7, shape_.width = 6;
    shape_.kernel_h = 3, shape_.kernel_w = 2;
    shape_.stride_h = 2, shape_.pad_h = 1;
    x_ = draw_bf16(shape_.x_size(), 1);
    w_ = draw_bf16(shape_.w_size(), 2);
    g_ = draw_bf16(shape_.y_size(), 3);
    for (int64_t i = 0; i < shape_.outs; ++i) bias_.push_back(static_cast<float>(i) / 3);
  }
  // Calls wide_run(floats) and run(numbers) on what holds the same numbers before.
  template <typename WideRun, typename Run>
  void expect_same(int64_t size, WideRun wide_run, Run run) {
    std::vector<Bf16> got = draw_bf16(size, 4);
    std::vector<float> want = wide(got);
    wide_run(want.data());
    run(got.data());
    EXPECT_EQ(got, narrow(want));
  }
  Mask mask() const {
    Dice dice(5);
    const WeightShape whole = shape_.weight_shape();
    Mask mask(whole.outs, whole.cols());
    for (int64_t r = 0; r < whole.outs; ++r) {  // 2:4 along the inputs of a tap
      for (int64_t tap = 0; tap < whole.taps; ++tap) {
        const uint64_t bits = draw_bits(2, 4, dice);
        for (int64_t i = 0; i < 4; ++i) mask.set(r, i * whole.taps + tap, (bits >> i & 1) != 0);
      }
    }
    return mask;
  }

  ConvShape shape_;
  std::vector<Bf16> x_, w_, g_;
  std::vector<float> bias_;
};

TEST_P(Bf16Conv, DenseIsThatOfFloatsRoundedOnce) {
  const float beta = GetParam();
  const std::vector<float> x = wide(x_), w = wide(w_), g = wide(g_);
  expect_same(
      shape_.y_size(),
      [&](float* y) { dense_conv_forward(shape_, x.data(), w.data(), bias_.data(), beta, y); },
      [&](Bf16* y) { dense_conv_forward(shape_, x_.data(), w_.data(), bias_.data(), beta, y); });
  expect_same(
      shape_.x_size(),
      [&](float* dx) { dense_conv_backward_data(shape_, g.data(), w.data(), beta, dx); },
      [&](Bf16* dx) { dense_conv_backward_data(shape_, g_.data(), w_.data(), beta, dx); });
  std::vector<float> want(static_cast<size_t>(shape_.w_size()), 1.0f), got = want;
  dense_conv_backward_weight(shape_, g.data(), x.data(), beta, want.data());
  dense_conv_backward_weight(shape_, g_.data(), x_.data(), beta, got.data());
  EXPECT_EQ(got, want);
}

TEST_P(Bf16Conv, SparseIsThatOfFloatsRoundedOnce) {
  const float beta = GetParam();
  const std::vector<float> x = wide(x_), w = wide(w_), g = wide(g_);
  const Mask kept = mask();
  const PanelOptions options{Pattern(2, 4), {16, 32}, Precision::kBf16};
  const PackedConv forward_pack = pack_conv(w.data(), kept, shape_, options);
  PanelOptions ragged = options;
  ragged.ragged = true;
  const PackedConv backward_pack = pack_conv_transposed(w.data(), kept, shape_, ragged);
  expect_same(
      shape_.y_size(),
      [&](float* y) { sparse_conv_forward(shape_, x.data(), forward_pack, bias_.data(), beta, y); },
      [&](Bf16* y) {
        sparse_conv_forward(shape_, x_.data(), forward_pack, bias_.data(), beta, y);
      });
  expect_same(
      shape_.x_size(),
      [&](float* dx) { sparse_conv_backward_data(shape_, g.data(), backward_pack, beta, dx); },
      [&](Bf16* dx) { sparse_conv_backward_data(shape_, g_.data(), backward_pack, beta, dx); });
  SampleOptions sampling{Pattern(2, 4)};
  PackedConv sample = pack_conv_sampled(g.data(), shape_, sampling, {32, 16});
  round_packed_to_bf16(sample);
  std::vector<float> want(static_cast<size_t>(shape_.w_size()), 1.0f), got = want;
  sparse_conv_backward_weight(shape_, sample, x.data(), beta, want.data());
  sparse_conv_backward_weight(shape_, sample, x_.data(), beta, got.data());
  EXPECT_EQ(got, want);
}

INSTANTIATE_TEST_SUITE_P(Beta, Bf16Conv, ::testing::Values(0.0f, 1.0f));

TEST(Bf16ConvCalls, RefuseNull) {
  ConvShape shape;
  shape.images = 1, shape.ins = 4, shape.outs = 4, shape.height = 2, shape.width = 2;
  std::vector<Bf16> w(16), y(16);
  EXPECT_EQ(message_of([&] {
              dense_conv_forward(shape, static_cast<const Bf16*>(nullptr), w.data(), nullptr, 0,
                                 y.data());
            }),
            "x is null");
}

TEST(Bf16Masked, IsThatOfFloats) {
  Dice dice(1);
  for (const int64_t tokens : {0, 1, 37}) {
    const Mask mask = draw_mask(12, 20, {2, 4}, Fill::kFull, dice);
    const KeptEntries kept(mask, {2, 4});
    TestMatrix g(tokens, 12, 1), x(tokens, 20, 2);
    for (TestMatrix* m : {&g, &x}) {
      m->fill(Data::kFloats, dice);
      round_values(*m);
    }
    for (const float beta : {0.0f, 1.0f}) {
      TestMatrix want(12, 20), got(12, 20);
      want.fill(2.0f), got.fill(2.0f);
      masked_backward_weight(g.view(), x.view(), kept, beta, want.view());
      masked_backward_weight(Bf16Matrix(g).view(), Bf16Matrix(x).view(), kept, beta, got.view());
      EXPECT_TRUE(same_bits(got, want)) << tokens;
    }
  }
}

}  // namespace
}  // namespace weft::test
