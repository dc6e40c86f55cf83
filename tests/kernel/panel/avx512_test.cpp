// Products, packs, samples and masks as Highway compiled them for AVX-512, on any Linux with AVX2:
// tests/emulator executes what the CPU lacks. They must have the bits of AVX2, which has
// fused multiply-add too.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/emulator/emulator.h"
#include "tests/products.h"
#include "tests/support.h"
#include "weft/core/isa.h"
#include "weft/kernel/dense/dense_small_batch.h"
#include "weft/mask/solver.h"
#include "weft/plan/synthetic.h"

namespace weft::test {
namespace {

// AVX-512 for as long as it lives.
class Avx512 {
 public:
  Avx512() {
    hwy::SetSupportedTargetsForTest(HWY_AVX3);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~Avx512() { force_isa("avx2"); }  // what it is compared with
  Avx512(const Avx512&) = delete;
  Avx512& operator=(const Avx512&) = delete;

 private:
  MissingInstructions missing_;
};

// Begins, and goes on after every Avx512, with AVX2. Sanitized code is made of more instructions
// than are executed here.
class Avx512Code : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> isas = available_isas();
    const bool avx2 = std::find(isas.begin(), isas.end(), "avx2") != isas.end();
    if (sanitized() || !avx2) GTEST_SKIP() << "no AVX2, or sanitized";
    force_isa("avx2");
  }
  void TearDown() override { restore_isa(); }
};

std::vector<float> run(LinearCall call, std::vector<float>& result) {
  std::fill(result.begin(), result.end(), NAN);
  multiply(call);
  return result;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Packed for the panels that AVX-512 takes.
PackedMatrix pack_for_avx512(const SyntheticProduct& product, const ProductForm& form,
                             const Pattern& pattern, Precision values) {
  const bool ragged = form.ragged;
  PanelOptions options{ragged ? Pattern(pattern.keep(), pattern.group()) : pattern, {}, values};
  options.ragged = ragged;
  {
    const Avx512 avx512;
    options.tile = tile_for(options.pattern);
  }
  return form.product == Product::kForward
             ? pack_panels(product.operand(), product.mask(), options)
             : pack_panels_transposed(product.operand(), product.mask(), options);
}

TEST_F(Avx512Code, TilesAreSound) {
  const Avx512 avx512;
  expect_sound_tiles();
}

TEST_F(Avx512Code, ProductsHaveTheBitsOfAvx2) {
  for (const char* text : {"2:4", "2:4x2", "2:4x4", "1:16"}) {
    const Pattern pattern = Pattern::parse(text);
    for (const ProductForm& form : kPackedForms) {
      for (const Precision values : {Precision::kFp32, Precision::kBf16}) {
        for (const LayerShape shape : {LayerShape{100, 12, 9}, LayerShape{6, 100, 9}}) {
          SyntheticProduct product(form, shape, pattern);
          const PackedMatrix packed = pack_for_avx512(product, form, pattern, values);
          const MatrixView<float> out = product.result();
          std::vector<float> result(static_cast<size_t>(out.rows * out.cols));
          LinearCall call;
          call.product = form.product;
          call.activations = product.activations();
          call.packed = &packed;
          call.result = MatrixView<float>(result.data(), out.rows, out.cols);
          const std::vector<float> want = run(call, result);
          const Avx512 avx512;
          ASSERT_EQ(current_isa(), "avx3");
          ASSERT_TRUE(same_bits(run(call, result), want))
              << text << " " << form.name() << " " << shape.str();
        }
      }
    }
  }
}

// Activations of bf16, expanded and rounded on the way.
TEST_F(Avx512Code, ProductsOfBf16HaveTheBitsOfAvx2) {
  for (const ProductForm& form : kProductForms) {
    const auto result = [&](bool wider) {
      SyntheticProduct product(form, {21, 38, 19}, Pattern(2, 4), {.storage = Precision::kBf16});
      if (wider) {
        const Avx512 avx512;
        product.run_sparse();
      } else {
        product.run_sparse();
      }
      product.expand_result();
      const MatrixView<float> out = product.result();
      return std::vector<float>(out.data, out.data + out.rows * out.cols);
    };
    EXPECT_TRUE(same_bits(result(true), result(false))) << form.name();
  }
}

TEST_F(Avx512Code, StreamsHaveTheBitsOfAvx2) {
  for (const char* text : {"2:4", "1:4", "4:8", "3:5", "1:16"}) {
    const Pattern pattern = Pattern::parse(text);
    for (const Precision values : {Precision::kFp32, Precision::kBf16}) {
      for (const int64_t tokens : {1, 5}) {
        SyntheticProduct product(Product::kForward, {tokens, 70, 75}, pattern);
        const PackedMatrix packed = pack_stream(product.operand(), product.mask(), pattern, values);
        std::vector<float> result(static_cast<size_t>(tokens * 75));
        LinearCall call;
        call.activations = product.activations();
        call.packed = &packed;
        call.result = MatrixView<float>(result.data(), tokens, 75);
        const std::vector<float> want = run(call, result);
        const Avx512 avx512;
        ASSERT_TRUE(same_bits(run(call, result), want)) << text << " " << tokens;
      }
    }
  }
}

// Whatever makes packs: rows, transposes, sampled gradients, streams.
TEST_F(Avx512Code, PacksHaveTheBytesOfAvx2) {
  TestMatrix g(13, 18);
  Dice dice(2);
  g.fill(Data::kFloats, dice);
  for (const char* text : {"2:4", "2:4x2", "3:5"}) {
    const Pattern pattern = Pattern::parse(text);
    const PackTile tile{20 * pattern.group(), 16};
    SyntheticProduct forward(Product::kForward, {1, 22, 19}, pattern);
    SampleOptions sampling{pattern};
    sampling.key = {test_seed(), 1, 2, 3};
    const auto bytes = [&] {
      std::vector<std::byte> all;
      const auto add = [&](const PackedMatrix& packed) {
        all.insert(all.end(), packed.bytes().begin(), packed.bytes().end());
      };
      for (const Precision values : {Precision::kFp32, Precision::kBf16}) {
        add(pack_panels(forward.operand(), forward.mask(), {pattern, tile, values}));
        PanelOptions ragged{Pattern(pattern.keep(), pattern.group()), tile, values};
        ragged.ragged = true;
        add(pack_panels_transposed(forward.operand(), forward.mask(), ragged));
        add(pack_panels_by_magnitude(forward.operand(), {pattern, tile, values}));
        add(pack_stream(forward.operand(), forward.mask(), pattern, values));
        add(pack_stream_by_magnitude(forward.operand(), pattern, values));
      }
      add(pack_panels_sampled(g.view(), sampling, tile));
      add(pack_panels_sampled(g.view(), sampling, tile, Fp8::kE4m3));
      return all;
    };
    const std::vector<std::byte> want = bytes();
    const Avx512 avx512;
    ASSERT_EQ(bytes(), want) << text;
  }
}

TEST_F(Avx512Code, SolversFindTheMasksOfAvx2) {
  Dice dice(3);
  std::vector<float> w(16 * 38);
  for (float& value : w) value = draw(Data::kFloats, dice);
  for (const Solver& solver : solvers()) {
    for (const char* text : {"2:4", "1:4", "4:8", "2:4x2"}) {
      const auto find = [&] {
        return find_mask(solver, w.data(), WeightShape{16, 38, 1}, Pattern::parse(text));
      };
      const Mask want = find();
      const Avx512 avx512;
      ASSERT_EQ(find(), want) << solver.name << " " << text;
    }
  }
}

// With a mask its order of sums is that of eight lanes, dense with few tokens that of the vectors.
TEST_F(Avx512Code, DenseWithFewTokensIsExactOnIntegers) {
  Dice dice(1);
  TestMatrix x(3, 75), w(21, 75), y(3, 21);
  x.fill(Data::kIntegers, dice);
  w.fill(Data::kIntegers, dice);
  const Avx512 avx512;
  dense_forward_small_batch(x.view(), w.view(), nullptr, 0, y.view());
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t o = 0; o < 21; ++o) {
      float sum = 0;
      for (int64_t i = 0; i < 75; ++i) sum += x.at(t, i) * w.at(o, i);
      ASSERT_EQ(y.at(t, o), sum);
    }
  }
}

}  // namespace
}  // namespace weft::test
