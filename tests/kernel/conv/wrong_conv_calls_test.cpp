// Calls of convolutions that are wrong: each is refused with a line that says why.
#include <gtest/gtest.h>

#include "tests/conv_terms.h"
#include "tests/products.h"
#include "weft/kernel/conv/sparse_conv.h"

namespace weft::test {
namespace {

// One field after the other, beside what dense_conv_test.cpp asks of the messages.
TEST(ConvShapes, RefuseWhatIsImpossibleInAnyField) {
  const ConvShape good = conv_shape(2, 8, 9, 13, 4, 3, 5);
  const auto accepts = [&](int64_t ConvShape::*field, int64_t value) {
    ConvShape s = good;
    s.*field = value;
    return message_of([&] { s.check(); }) == "(no Error)";
  };
  for (const auto field :
       {&ConvShape::images, &ConvShape::ins, &ConvShape::outs, &ConvShape::height,
        &ConvShape::width, &ConvShape::kernel_h, &ConvShape::kernel_w, &ConvShape::stride_h,
        &ConvShape::stride_w, &ConvShape::pad_h, &ConvShape::pad_w, &ConvShape::dilation_h,
        &ConvShape::dilation_w, &ConvShape::groups}) {
    EXPECT_TRUE(accepts(field, good.*field));
    for (const int64_t value : {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 40}) {
      EXPECT_FALSE(accepts(field, value)) << value;
    }
    const bool may_be_zero =
        field == &ConvShape::images || field == &ConvShape::pad_h || field == &ConvShape::pad_w;
    EXPECT_EQ(accepts(field, 0), may_be_zero);
  }
}

struct Calls {
  ConvShape shape = conv_shape(1, 8, 4, 4, 4, 3, 3);
  Mask weight_mask = Mask(4, 8 * 9);
  Mask gradient_mask = Mask(4, 2 * 2);
  std::vector<float> weights = std::vector<float>(4 * 8 * 9), g = std::vector<float>(4 * 4),
                     x = std::vector<float>(8 * 16);
  PanelOptions options{Pattern(2, 4), {16, 32}, Precision::kFp32, false, 0};
  PackedConv w = pack_conv(weights.data(), weight_mask, shape, options);
  PackedConv wt = pack_conv_transposed(weights.data(), weight_mask, shape, options);
  PackedConv gt = pack_conv_gradient(g.data(), gradient_mask, shape, options);

  void forward(const ConvShape& s) { sparse_conv_forward(s, x.data(), w, nullptr, 0, g.data()); }
  void data(const ConvShape& s) { sparse_conv_backward_data(s, g.data(), wt, 0, x.data()); }
  void weight(const ConvShape& s) {
    sparse_conv_backward_weight(s, gt, x.data(), 0, weights.data());
  }
};

TEST(WrongConvCalls, SayWhatIsWrong) {
  Calls calls;
  EXPECT_EQ(message_of([&] { calls.forward(calls.shape); }), "(no Error)");
  EXPECT_EQ(message_of([&] { calls.data(calls.shape); }), "(no Error)");
  EXPECT_EQ(message_of([&] { calls.weight(calls.shape); }), "(no Error)");
  ConvShape other = calls.shape;
  other.ins = 12;
  EXPECT_EQ(message_of([&] { calls.forward(other); }),
            "a packed matrix of 4 x 72 where the convolution takes 4 x 108");
  EXPECT_EQ(message_of([&] { calls.data(other); }),
            "a packed matrix of 8 x 36 where the convolution takes 12 x 36");
  other = calls.shape;
  other.images = 2;
  EXPECT_EQ(message_of([&] { calls.weight(other); }),
            "a packed matrix of 4 x 4 where the convolution takes 4 x 8");
  other = calls.shape;
  other.groups = 2;
  EXPECT_EQ(message_of([&] { calls.forward(other); }),
            "1 packed matrices for a convolution of 2 groups");
  const float half = 0.5f;
  EXPECT_EQ(message_of([&] {
              sparse_conv_forward(calls.shape, calls.x.data(), calls.w, nullptr, half,
                                  calls.g.data());
            }),
            "beta 0.5: accepted are 0 and 1");
  EXPECT_EQ(message_of([&] {
              sparse_conv_backward_data(calls.shape, calls.g.data(), calls.wt, half,
                                        calls.x.data());
            }),
            "beta 0.5: accepted are 0 and 1");
  EXPECT_EQ(message_of([&] {
              sparse_conv_backward_weight(calls.shape, calls.gt, calls.x.data(), half,
                                          calls.weights.data());
            }),
            "beta 0.5: accepted are 0 and 1");
}

// Before any size is worked out of them: some divide.
TEST(WrongConvCalls, RefuseImpossibleShapes) {
  Calls calls;
  for (const auto size : {&ConvShape::groups, &ConvShape::stride_h, &ConvShape::stride_w}) {
    ConvShape wrong = calls.shape;
    wrong.*size = 0;
    const std::string message = message_of([&] { wrong.check(); });
    EXPECT_EQ(message_of([&] { calls.forward(wrong); }), message);
    EXPECT_EQ(message_of([&] { calls.data(wrong); }), message);
    EXPECT_EQ(message_of([&] { calls.weight(wrong); }), message);
    const float *w = calls.weights.data(), *g = calls.g.data();
    EXPECT_EQ(message_of([&] { pack_conv(w, calls.weight_mask, wrong, calls.options); }), message);
    EXPECT_EQ(message_of([&] { pack_conv_transposed(w, calls.weight_mask, wrong, calls.options); }),
              message);
    EXPECT_EQ(message_of([&] { pack_conv_gradient(g, calls.gradient_mask, wrong, calls.options); }),
              message);
  }
}

TEST(WrongConvCalls, RefuseNull) {
  Calls calls;
  float* const none = nullptr;
  float* const some = calls.x.data();
  const ConvShape& s = calls.shape;
  const auto forward = [&](float* x, float* y) {
    return message_of([&] { sparse_conv_forward(s, x, calls.w, nullptr, 0, y); });
  };
  const auto data = [&](float* g, float* dx) {
    return message_of([&] { sparse_conv_backward_data(s, g, calls.wt, 0, dx); });
  };
  const auto weight = [&](float* x, float* dw) {
    return message_of([&] { sparse_conv_backward_weight(s, calls.gt, x, 0, dw); });
  };
  EXPECT_EQ(forward(none, some), "x is null");
  EXPECT_EQ(forward(some, none), "y is null");
  EXPECT_EQ(data(none, some), "g is null");
  EXPECT_EQ(data(some, none), "dx is null");
  EXPECT_EQ(weight(none, some), "x is null");
  EXPECT_EQ(weight(some, none), "dw is null");
  EXPECT_EQ(message_of([&] { pack_conv(none, calls.weight_mask, s, calls.options); }),
            "the pointer to weights is null");
  EXPECT_EQ(message_of([&] { pack_conv_transposed(none, calls.weight_mask, s, calls.options); }),
            "the pointer to weights is null");
  EXPECT_EQ(message_of([&] { pack_conv_gradient(none, calls.gradient_mask, s, calls.options); }),
            "g is null");
}

TEST(WrongConvCalls, OfPackingSayWhatIsWrong) {
  Calls calls;
  const Mask wrong(4, 8);
  EXPECT_EQ(message_of([&] { pack_conv(calls.weights.data(), wrong, calls.shape, calls.options); }),
            "a mask of 4 x 8 does not fit weights of 4 x 72");
  EXPECT_EQ(message_of([&] {
              pack_conv_transposed(calls.weights.data(), wrong, calls.shape, calls.options);
            }),
            "a mask of 4 x 8 does not fit weights of 4 x 72");
  EXPECT_EQ(
      message_of([&] { pack_conv_gradient(calls.g.data(), wrong, calls.shape, calls.options); }),
      "a mask of 4 x 8 for a gradient of 4 channels and 4 positions");
}

// Groups of inputs are those of one tap, not of neighbouring taps.
TEST(WrongConvCalls, RefuseGroupsThatKeepTooMany) {
  Calls calls;
  Mask along_taps(4, 8 * 9);  // the first three taps of an input: one of each group
  for (int64_t tap = 0; tap < 3; ++tap) along_taps.set(0, tap, true);
  EXPECT_NO_THROW(pack_conv(calls.weights.data(), along_taps, calls.shape, calls.options));
  Mask along_ins(4, 8 * 9);  // the first tap of three inputs: three of one group
  for (int64_t i = 0; i < 3; ++i) along_ins.set(0, i * 9, true);
  EXPECT_TRUE(contains(
      message_of([&] { pack_conv(calls.weights.data(), along_ins, calls.shape, calls.options); }),
      "more than 2 kept"));
}

}  // namespace
}  // namespace weft::test
