// The products of a linear layer as problems to solve: operands, the call, the expected answer.
//
// Sizes are those of the loop, C [rows, cols] = A [rows, depth] * B [depth, cols], A sparse:
//
//                      rows   depth   cols
//   forward            outs   ins     tokens    A = W
//   backward data      ins    outs    tokens    A = Wᵀ, of a mask that is N:M along outputs too
//   backward ragged    ins    outs    tokens    A = Wᵀ, of a mask that is N:M along inputs only
//   backward weight    outs   tokens  ins       A = Gᵀ, N:M along tokens
#pragma once

#include <array>
#include <optional>

#include "tests/products.h"
#include "weft/plan/timings.h"

namespace weft::test {

struct Linear {  // with a packed operand; of a masked gradient see masked_weight_test.cpp
  ProductForm form = Product::kForward;
  Pattern pattern{2, 4};
  PackTile tile;
  int64_t rows = 0, depth = 0, cols = 0;
  Precision value_type = Precision::kFp32;
  Data data = Data::kIntegers;
  Fill fill = Fill::kFull;
  bool bias = false;  // of the forward product only
  float beta = 0;
  int64_t gap = 0;  // between the rows of all operands
  uint64_t stream = 0;

  std::string str() const {
    return fmt::format(
        "{} {} {}, {} rows, depth {}, {} cols, tile {} x {}, {}{}{}{}, gap {}, seed {} stream {}",
        form.name(), pattern.str(), precision_name(value_type), rows, depth, cols, tile.depth,
        tile.width, data == Data::kIntegers ? "integers" : "floats",
        fill == Fill::kFull ? "" : ", not full", bias ? ", bias" : "", beta == 0 ? "" : ", beta 1",
        gap, test_seed(), stream);
  }
};

inline Linear forward(const Pattern& pattern, const PackTile& tile, int64_t tokens, int64_t ins,
                      int64_t outs) {
  Linear l;
  l.pattern = pattern;
  l.tile = tile;
  l.rows = outs;
  l.depth = ins;
  l.cols = tokens;
  return l;
}

class LinearProblem {
 public:
  explicit LinearProblem(const Linear& linear)
      : linear_(linear),
        dice_(linear.stream),
        sparse_(draw_sparse(mask(), linear.data, dice_, linear.gap)),
        dense_(draw_dense()),
        bias_(1, linear.rows, 0, 1),
        before_(draw_output()) {
    bias_.fill(linear.data, dice_);
    repack(linear.tile);
  }

  const Linear& linear() const { return linear_; }
  const PackedMatrix& packed() const { return packed_; }
  // W [outs, ins], or G [tokens, outs].
  Sparse& sparse() { return sparse_; }
  // x [tokens, ins], or g [tokens, outs].
  TestMatrix& dense() { return dense_; }

  void repack(PackTile tile) {
    const PanelOptions options = {pack_pattern(), tile, linear_.value_type, linear_.form.ragged};
    packed_ = linear_.form.product == Product::kForward
                  ? pack_panels(sparse_.weights.view(), sparse_.mask, options)
                  : pack_panels_transposed(sparse_.weights.view(), sparse_.mask, options);
  }
  void use(PackedMatrix packed) { packed_ = std::move(packed); }

  // What the output holds before the product: NaN if that is not to be read.
  TestMatrix output() const {
    TestMatrix y = draw_output_shape();
    for (int64_t r = 0; r < output_rows(); ++r) {
      for (int64_t c = 0; c < output_cols(); ++c) y.at(r, c) = before_.at(r, c);
    }
    return y;
  }
  int64_t output_rows() const {
    return linear_.form.product == Product::kBackwardWeight ? linear_.rows : linear_.cols;
  }
  int64_t output_cols() const {
    return linear_.form.product == Product::kBackwardWeight ? linear_.cols : linear_.rows;
  }

  void run(TestMatrix& y) const {
    switch (linear_.form.product) {
      case Product::kForward:
        return sparse_forward(dense_.view(), packed_, linear_.bias ? bias_.data() : nullptr,
                              linear_.beta, y.view());
      case Product::kBackwardData:
        return sparse_backward_data(dense_.view(), packed_, linear_.beta, y.view());
      case Product::kBackwardWeight:
        return sparse_backward_weight(packed_, dense_.view(), linear_.beta, y.view());
    }
  }
  std::vector<uint32_t> result() const {
    TestMatrix y = output();
    run(y);
    EXPECT_EQ(y.damage(), "") << linear_.str();
    return y.bits();
  }

  ExpectedMatrix expected() const {
    ExpectedMatrix want(output_rows(), output_cols());
    for (const Sparse::Entry& e : sparse_.entries(linear_.value_type)) {
      for (int64_t c = 0; c < linear_.cols; ++c) {
        switch (linear_.form.product) {
          case Product::kForward:  // y[token, out] += x[token, in] * W[out, in]
            want.add(c, e.row, dense_.at(c, e.col), e.value);
            break;
          case Product::kBackwardData:  // dx[token, in] += g[token, out] * W[out, in]
            want.add(c, e.col, dense_.at(c, e.row), e.value);
            break;
          case Product::kBackwardWeight:  // dw[out, in] += G[token, out] * x[token, in]
            want.add(e.col, c, e.value, dense_.at(e.row, c));
            break;
        }
      }
    }
    for (int64_t r = 0; r < want.rows; ++r) {
      for (int64_t c = 0; c < want.cols; ++c) {
        if (linear_.bias) want.add(r, c, bias_.at(0, c), 1);
        if (linear_.beta != 0) want.add(r, c, before_.at(r, c), 1);
      }
    }
    return want;
  }

  // Everything that the product reads, to see that it is only read.
  std::vector<uint32_t> inputs() const {
    std::vector<uint32_t> all = dense_.bits();
    const std::vector<uint32_t> bias = bias_.bits();
    all.insert(all.end(), bias.begin(), bias.end());
    return all;
  }
  std::string input_damage() const {
    return dense_.damage() + bias_.damage() + sparse_.weights.damage();
  }

  // Whether output [r, c] keeps a weight for element [i, j] of the dense operand.
  bool keeps(int64_t r, int64_t c, int64_t i, int64_t j) const {
    switch (linear_.form.product) {
      case Product::kForward: return r == i && sparse_.mask.at(c, j);
      case Product::kBackwardData: return r == i && sparse_.mask.at(j, c);
      case Product::kBackwardWeight: return c == j && sparse_.mask.at(i, r);
    }
    return false;
  }

 private:
  // The transpose of a mask that is shared along inputs shares nothing.
  Pattern pack_pattern() const {
    const Pattern& p = linear_.pattern;
    return linear_.form.ragged ? Pattern(p.keep(), p.group()) : p;
  }

  Mask mask() {
    const Linear& l = linear_;
    switch (l.form.product) {
      case Product::kForward: return draw_mask(l.rows, l.depth, l.pattern, l.fill, dice_);
      case Product::kBackwardData:
        return l.form.ragged ? draw_mask(l.depth, l.rows, l.pattern, l.fill, dice_)
                             : draw_transposable_mask(l.depth, l.rows, l.pattern, l.fill, dice_);
      case Product::kBackwardWeight:
        return draw_mask(l.rows, l.depth, l.pattern, l.fill, dice_).transposed();
    }
    return {};
  }

  TestMatrix draw_dense() {
    const bool weight = linear_.form.product == Product::kBackwardWeight;
    TestMatrix dense(weight ? linear_.depth : linear_.cols, weight ? linear_.cols : linear_.depth,
                     linear_.gap, dice_.below(2));
    dense.fill(linear_.data, dice_);
    return dense;
  }
  TestMatrix draw_output_shape() const {
    return TestMatrix(output_rows(), output_cols(), linear_.gap,
                      static_cast<int64_t>(linear_.stream % 2));
  }
  TestMatrix draw_output() {
    TestMatrix y = draw_output_shape();
    if (linear_.beta == 0) {
      y.fill(NAN);
    } else {
      y.fill(linear_.data, dice_);
    }
    return y;
  }

  Linear linear_;
  Dice dice_;
  Sparse sparse_;
  TestMatrix dense_;
  TestMatrix bias_;
  TestMatrix before_;
  PackedMatrix packed_;
};

// The product on every instruction set: right, within its buffers, and the same bits on all sets
// that have fused multiply-add, and on all that have not.
inline void expect_right(const LinearProblem& problem) {
  const std::string trace = problem.linear().str();
  const ExpectedMatrix want = problem.expected();
  const std::vector<uint32_t> inputs = problem.inputs();
  std::array<std::optional<std::vector<uint32_t>>, 2> first;  // fused or not
  for_each_isa([&](const std::string& isa) {
    TestMatrix y = problem.output();
    problem.run(y);
    ASSERT_EQ(mismatch(y.view(), want, problem.linear().data), "") << trace << ", " << isa;
    ASSERT_EQ(y.damage(), "") << trace << ", " << isa;
    auto& same = first[fused(isa) ? 1 : 0];
    if (!same) same = y.bits();
    ASSERT_EQ(difference(y.bits(), *same, want.cols), "") << trace << ", " << isa;
  });
  ASSERT_EQ(problem.inputs(), inputs) << trace;
  ASSERT_EQ(problem.input_damage(), "") << trace;
}

// `value` at [i, j] of the dense operand reaches the outputs that keep a weight for it, be it zero,
// and no others.
inline void expect_reach(LinearProblem& problem, int64_t i, int64_t j, float value) {
  TestMatrix& dense = problem.dense();
  const float before = std::exchange(dense.at(i, j), 0.0f);
  TestMatrix clean = problem.output();
  problem.run(clean);
  dense.at(i, j) = value;
  const ExpectedMatrix want = problem.expected();
  TestMatrix y = problem.output();
  problem.run(y);
  dense.at(i, j) = before;
  for (int64_t r = 0; r < problem.output_rows(); ++r) {
    for (int64_t c = 0; c < problem.output_cols(); ++c) {
      if (problem.keeps(r, c, i, j)) {
        ASSERT_FALSE(std::isfinite(y.at(r, c))) << r << ", " << c;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(y.at(r, c)), std::bit_cast<uint32_t>(clean.at(r, c)))
            << r << ", " << c << ": " << y.at(r, c);
      }
    }
  }
  // And which of NaN, infinity and minus infinity it becomes.
  ASSERT_EQ(mismatch(y.view(), want, problem.linear().data), "");
}

}  // namespace weft::test
