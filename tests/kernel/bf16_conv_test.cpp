// Convolutions in bf16 expand, run in fp32, and round: the bits of just that.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/products.h"
#include "weft/core/bf16.h"
#include "weft/kernel/conv/dense_conv.h"
#include "weft/kernel/conv/sparse_conv.h"

namespace weft::test {
namespace {

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

}  // namespace
}  // namespace weft::test
