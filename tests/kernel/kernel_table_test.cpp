// The table of kernels: every row, product and type of numbers against the formulas of kernels.h, in
// double. Nobody has to write a test here for a new row, only an operand that it takes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "tests/conv_terms.h"
#include "tests/products.h"
#include "tests/support.h"
#include "weft/kernel/kernels.h"
#include "weft/kernel/panel/panel_size.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/plan/synthetic.h"

namespace weft::test {
namespace {

const LayerShape kShape{40, 24, 36};

// A tile unit for as long as it lives: the emulated one runs everywhere.
struct EmulatedTiles {
  EmulatedTiles() { force_tile_unit("emulated"); }
  ~EmulatedTiles() { restore_tile_unit(); }
};

std::string row_text(const Kernel& kernel, Product product) {
  return fmt::format("{} {}", kernel.name, product_name(product));
}

// ---- linear layers

// What a product should be, in double, element by element.
double wanted(Product product, const MatrixView<const float>& activations,
              const MatrixView<const float>& operand, const Mask* mask, int64_t row, int64_t col) {
  const auto kept = [&](int64_t r, int64_t c) {
    return mask && !mask->at(r, c) ? 0.0 : static_cast<double>(operand.at(r, c));
  };
  double sum = 0;
  switch (product) {
    case Product::kForward:
      for (int64_t i = 0; i < operand.cols; ++i) sum += activations.at(row, i) * kept(col, i);
      return sum;
    case Product::kBackwardData:
      for (int64_t o = 0; o < operand.rows; ++o) sum += activations.at(row, o) * kept(o, col);
      return sum;
    case Product::kBackwardWeight:
      for (int64_t t = 0; t < operand.rows; ++t) sum += kept(t, row) * activations.at(t, col);
      return sum;
  }
  return sum;
}

// Numbers of a result in fp32.
std::vector<float> values_of(const AnyResult& result) {
  std::vector<float> values;
  std::visit(
      [&](const auto& view) {
        for (int64_t r = 0; r < view.rows; ++r) {
          for (int64_t c = 0; c < view.cols; ++c) {
            if constexpr (std::is_same_v<decltype(view.at(r, c)), Bf16&>) {
              values.push_back(to_float(view.at(r, c)));
            } else {
              values.push_back(view.at(r, c));
            }
          }
        }
      },
      result);
  return values;
}

std::vector<Bf16> rounded(MatrixView<const float> from) {
  std::vector<Bf16> to;
  for (int64_t r = 0; r < from.rows; ++r) {
    for (int64_t c = 0; c < from.cols; ++c) to.push_back(to_bf16(from.at(r, c)));
  }
  return to;
}

// Whatever the row takes, of any operand in either type, it computes. Adds up how many calls it took.
void expect_linear(const Kernel& kernel, Product product, int& taken) {
  const Pattern pattern(2, 4, 16);
  // Numbers that bf16 has exactly, so that both types multiply the same.
  SyntheticProduct data(product, kShape, pattern, {Precision::kBf16, kernel.compute});
  const PackedMatrix stream = pack_stream(
      data.operand(),
      product == Product::kForward ? data.mask() : Mask(data.operand().rows, data.operand().cols),
      pattern, Precision::kFp32);
  const Mask of_result = random_mask(kShape.outs, kShape.ins, pattern, 5);
  const KeptEntries kept(of_result, pattern);
  DenseTiles dense_tiles;
  dense_tiles.pack(data.operand(), product == Product::kForward);
  const std::vector<Bf16> activations = rounded(data.activations());
  const std::vector<Bf16> operand = rounded(data.operand());
  const MatrixView<float> shape = data.result();
  const int64_t size = shape.rows * shape.cols;
  std::vector<Bf16> result16(static_cast<size_t>(size));
  const auto like = [](const std::vector<Bf16>& values, MatrixView<const float> other) {
    return MatrixView<const Bf16>(values.data(), other.rows, other.cols);
  };
  for (const bool bf16 : {false, true}) {
    LinearCall call;
    call.product = product;
    call.activations = data.activations();
    call.dense = data.operand();
    call.result = data.result();
    if (bf16) {
      call.activations = like(activations, data.activations());
      call.dense = like(operand, data.operand());
      if (product != Product::kBackwardWeight) {
        call.result = MatrixView<Bf16>(result16.data(), shape.rows, shape.cols);
      }
    }
    struct Operand {
      const PackedMatrix* packed;
      const KeptEntries* kept;
      const DenseTiles* tiles;
    };
    for (const Operand& one :
         {Operand{nullptr, nullptr, nullptr}, Operand{&data.packed(), nullptr, nullptr},
          Operand{&stream, nullptr, nullptr}, Operand{nullptr, &kept, nullptr},
          Operand{nullptr, nullptr, &dense_tiles}}) {
      call.packed = one.packed;
      call.kept = one.kept;
      call.tiles = one.tiles;
      if (!kernel.takes(call)) continue;
      ++taken;
      EXPECT_EQ(&kernel_for(call, kernel.compute), &kernel);
      std::fill_n(shape.data, size, std::numeric_limits<float>::quiet_NaN());
      std::fill(result16.begin(), result16.end(), to_bf16(std::numeric_limits<float>::quiet_NaN()));
      multiply(call, kernel.compute);
      const Mask* mask = one.packed ? &data.mask() : nullptr;
      const std::vector<float> found = values_of(call.result);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t r = i / shape.cols, c = i % shape.cols;
        const bool computed = !one.kept || of_result.at(r, c);
        const double want =
            computed ? wanted(product, data.activations(), data.operand(), mask, r, c) : 0.0;
        const double half_ulp = bf16 && product != Product::kBackwardWeight ? 0x1p-8 : 0.0;
        ASSERT_NEAR(found[static_cast<size_t>(i)], want, 1e-5 + half_ulp * std::abs(want))
            << row_text(kernel, product) << " at " << r << ", " << c;
      }
    }
  }
}

// ---- convolutions

// Small integers: sums are exact, and both types have the operands exactly.
std::vector<float> integers(int64_t size, Dice& dice) {
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) value = draw(Data::kIntegers, dice);
  return values;
}
std::vector<Bf16> rounded(const std::vector<float>& values) {
  return rounded(MatrixView<const float>(values.data(), 1, static_cast<int64_t>(values.size())));
}

// A convolution of any mask: of its weights, or, for their gradient, of g.
class ConvProblem {
 public:
  explicit ConvProblem(Product product)
      : product_(product),
        dice_(static_cast<uint64_t>(product) + 1),
        activations_(integers(is(Product::kBackwardData) ? kConv.y_size() : kConv.x_size(), dice_)),
        operand_(integers(is(Product::kBackwardWeight) ? kConv.y_size() : kConv.w_size(), dice_)),
        bias_(integers(kConv.outs, dice_)),
        before_(integers(is(Product::kForward)        ? kConv.y_size()
                         : is(Product::kBackwardData) ? kConv.x_size()
                                                      : kConv.w_size(),
                         dice_)),
        mask_(kConv.outs, is(Product::kBackwardWeight) ? kConv.images * kConv.positions()
                                                       : kConv.weight_shape().cols()),
        activations16_(rounded(activations_)),
        operand16_(rounded(operand_)) {
    for (int64_t r = 0; r < mask_.rows(); ++r) {
      for (int64_t c = 0; c < mask_.cols(); ++c) mask_.set(r, c, dice_.coin());
    }
    const PanelOptions options{Pattern(2, 4), tile_for(0.5, 1, 4), Precision::kFp32,
                               /*ragged=*/true};
    packed_ = is(Product::kForward) ? pack_conv(operand_.data(), mask_, kConv, options)
              : is(Product::kBackwardData)
                  ? pack_conv_transposed(operand_.data(), mask_, kConv, options)
                  : pack_conv_gradient(operand_.data(), mask_, kConv, options);
    for (int64_t r = 0; r < of_result_.rows(); ++r) {
      for (int64_t c = 0; c < of_result_.cols(); ++c) of_result_.set(r, c, dice_.coin());
    }
    kept_.emplace(of_result_, Pattern(2, 4), kConv.taps());
  }

  enum class Operand { kDense, kPacked, kKept };

  // The result begins as what was there before, which is added to.
  ConvCall call(Operand operand, bool bf16) {
    result_ = before_;
    result16_ = rounded(before_);
    ConvCall call;
    call.product = product_;
    call.shape = kConv;
    call.activations = activations_.data();
    call.dense = operand_.data();
    call.result = result_.data();
    if (bf16) {
      call.activations = activations16_.data();
      call.dense = operand16_.data();
      if (!is(Product::kBackwardWeight)) call.result = result16_.data();
    }
    if (operand == Operand::kPacked) call.packed = &packed_;
    if (operand == Operand::kKept) call.kept = &*kept_;
    if (is(Product::kForward)) call.bias = bias_.data();
    call.beta = 1;
    return call;
  }

  std::vector<double> expected(Operand operand) const {
    std::vector<double> want(before_.begin(), before_.end());
    for_each_term(kConv, [&](const Term& t) {
      const int64_t col = is(Product::kBackwardWeight) ? t.image * kConv.positions() + t.position
                                                       : t.weight % mask_.cols();
      if (operand == Operand::kPacked && !mask_.at(t.out, col)) return;
      if (operand == Operand::kKept && !of_result_.at(t.out, t.weight % of_result_.cols())) return;
      const int64_t a = is(Product::kBackwardData) ? t.output : t.input;
      const int64_t b = is(Product::kBackwardWeight) ? t.output : t.weight;
      const int64_t c = is(Product::kForward)        ? t.output
                        : is(Product::kBackwardData) ? t.input
                                                     : t.weight;
      want[static_cast<size_t>(c)] +=
          activations_[static_cast<size_t>(a)] * operand_[static_cast<size_t>(b)];
    });
    for (size_t i = 0; is(Product::kForward) && i < want.size(); ++i) {
      want[i] += bias_[i / static_cast<size_t>(kConv.positions()) % bias_.size()];
    }
    return want;
  }

  std::vector<double> found(bool bf16) const {
    if (!bf16 || is(Product::kBackwardWeight)) return {result_.begin(), result_.end()};
    std::vector<double> values;
    for (const Bf16 value : result16_) values.push_back(to_float(value));
    return values;
  }

 private:
  static inline const ConvShape kConv =
      ConvShape::parse("2x8x6x5:12x3x3,stride=2x1,pad=1,groups=2");
  bool is(Product product) const { return product_ == product; }

  Product product_;
  Dice dice_;
  std::vector<float> activations_, operand_, bias_, before_;
  Mask mask_;
  Mask of_result_{kConv.outs, kConv.weight_shape().cols()};  // if it is the gradient of weights
  std::vector<Bf16> activations16_, operand16_;
  PackedConv packed_;
  std::optional<KeptEntries> kept_;
  std::vector<float> result_;
  std::vector<Bf16> result16_;
};

void expect_conv(const Kernel& kernel, Product product, int& taken) {
  ConvProblem problem(product);
  using enum ConvProblem::Operand;
  for (const ConvProblem::Operand operand : {kDense, kPacked, kKept}) {
    for (const bool bf16 : {false, true}) {
      const ConvCall call = problem.call(operand, bf16);
      if (!kernel.takes(call)) continue;
      ++taken;
      EXPECT_EQ(&kernel_for(call, kernel.compute), &kernel);
      multiply(call, kernel.compute);
      const std::vector<double> want = problem.expected(operand), found = problem.found(bf16);
      ASSERT_EQ(found.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        const double rounding = bf16 && product != Product::kBackwardWeight ? 0x1p-8 : 0.0;
        ASSERT_NEAR(found[i], want[i], rounding * std::abs(want[i]))
            << row_text(kernel, product) << (bf16 ? " in bf16" : "") << " at " << i;
      }
    }
  }
}

// ---- the table

TEST(Kernels, EveryRowComputesWhatItSays) {
  const EmulatedTiles tiles;
  for (const Kernel& kernel : kernels()) {
    for (const Product product : kernel.products) {
      int linear = 0, conv = 0;
      expect_linear(kernel, product, linear);
      expect_conv(kernel, product, conv);
      if (HasFatalFailure()) return;
      // Both types of numbers, but for bf16 arithmetic, which takes one.
      const int calls = kernel.compute == Precision::kBf16 ? 1 : 2;
      EXPECT_EQ(linear, kernel.layer == "linear" ? calls : 0) << row_text(kernel, product);
      EXPECT_EQ(conv, kernel.layer == "conv" ? calls : 0) << row_text(kernel, product);
    }
  }
}

TEST(Kernels, RefuseWhatNobodyComputes) {
  SyntheticProduct data(Product::kForward, kShape, Pattern(2, 4));
  const PackedMatrix stream =
      pack_stream(data.operand(), data.mask(), Pattern(2, 4), Precision::kFp32);
  const auto refused = [](const ProductCall& call, Precision compute = Precision::kFp32) {
    return message_of([&] { multiply(call, compute); });
  };
  LinearCall call;
  call.product = Product::kBackwardData;
  call.packed = &stream;
  EXPECT_EQ(refused(call),
            "no kernel computes bwd_x in fp32 from fp32 activations and a stream pack");
  const KeptEntries kept(data.mask(), Pattern(2, 4));
  call.packed = nullptr;
  call.kept = &kept;
  EXPECT_TRUE(contains(refused(call), "some entries only"));
  call.kept = nullptr;
  const float bias = 0;
  call.bias = &bias;
  EXPECT_TRUE(contains(refused(call), "bias"));

  ConvProblem problem(Product::kBackwardData);
  ConvCall conv = problem.call(ConvProblem::Operand::kDense, /*bf16=*/false);
  EXPECT_EQ(refused(conv, Precision::kBf16),
            "no kernel computes bwd_x in bf16 from fp32 activations and a dense tensor");
  conv.bias = &bias;
  EXPECT_TRUE(contains(refused(conv), "bias"));
  const PackedConv streams = [&] {
    PackedConv one;
    one.push_back(pack_stream(data.operand(), data.mask(), Pattern(2, 4), Precision::kFp32));
    return one;
  }();
  conv.bias = nullptr;
  conv.packed = &streams;
  EXPECT_TRUE(contains(refused(conv), "packed matrices"));
  EXPECT_TRUE(contains(refused(problem.call(ConvProblem::Operand::kKept, /*bf16=*/false)),
                       "a dense tensor, some entries only"));
}

// What the planner measures and people read has one name per form.
TEST(ProductForms, AreParsedAsTheyArePrinted) {
  for (const ProductForm& form : kProductForms) EXPECT_EQ(ProductForm::parse(form.name()), form);
  EXPECT_EQ(ProductForm::of(Product::kForward, false, true), ProductForm(Product::kForward));
  EXPECT_EQ(ProductForm::of(Product::kBackwardData, false, true).name(), "bwd_x_ragged");
  EXPECT_EQ(ProductForm::of(Product::kBackwardData, true, true).name(), "bwd_x");
  EXPECT_EQ(ProductForm::of(Product::kBackwardWeight, false, false).name(), "bwd_w");
  EXPECT_EQ(ProductForm::of(Product::kBackwardWeight, true, true).name(), "bwd_w_masked");
  EXPECT_EQ(message_of([] { ProductForm::parse("fwd_masked"); }),
            "product 'fwd_masked': accepted are fwd, bwd_x, bwd_x_ragged, bwd_w, bwd_w_masked");
}

}  // namespace
}  // namespace weft::test
