// What a framework may do with a convolution.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/layer/network.h"
#include "weft/core/error.h"
#include "weft/layer/conv_layer.h"

namespace weft::test {
namespace {

// The positions of an image are its tokens, and groups begin with every image: 3 x 3 positions make
// three groups of four, the last of one.
TEST(LayerWithoutTorch, SamplesOfConvolutionsKnowWhichImageIsTheirFirst) {
  ConvShape geometry;
  geometry.ins = geometry.outs = 8;
  const std::vector<float> w = gaussian(64, 1), x = gaussian(4 * 72, 2), g = gaussian(4 * 72, 3);
  for (const PlanMode mode : {PlanMode::kDense, PlanMode::kSparse}) {
    ConvLayer layer(geometry);
    layer.configure(settings_of("s-ste", "2:4", mode));
    layer.begin_pass({w.data()}, true);
    const auto dw_of = [&](int64_t first, int64_t images, int64_t token) {
      std::vector<float> dw(64);
      const std::array<int64_t, 4> sizes = {images, 8, 3, 3};
      layer.backward_weight<float>(w.data(), {g.data() + first * 72, sizes},
                                   {x.data() + first * 72, sizes}, {5, 0, 0, token}, dw.data());
      return dw;
    };
    const std::vector<float> whole = dw_of(0, 4, 0), front = dw_of(0, 3, 0), back = dw_of(3, 1, 27);
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(whole[i], front[i] + back[i], 1e-4) << i;
    }
    EXPECT_THROW(dw_of(3, 1, 12), Error);
  }
}

// The same numbers in channels last, forward and back.
TEST(LayerWithoutTorch, ConvolutionsTakeStrides) {
  ConvShape geometry;
  geometry.ins = 8;
  geometry.outs = 16;
  geometry.kernel_h = geometry.kernel_w = 3;
  geometry.pad_h = geometry.pad_w = 1;
  const std::array<int64_t, 4> x_sizes = {2, 8, 5, 6}, y_sizes = {2, 16, 5, 6};
  const auto last = [](const std::array<int64_t, 4>& s) {
    return std::array<int64_t, 4>{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  };
  const auto to_last = [](const std::vector<float>& from, const std::array<int64_t, 4>& s) {
    std::vector<float> to(from.size());
    for (int64_t n = 0; n < s[0]; ++n)
      for (int64_t c = 0; c < s[1]; ++c)
        for (int64_t p = 0; p < s[2] * s[3]; ++p)
          to[static_cast<size_t>((n * s[2] * s[3] + p) * s[1] + c)] =
              from[static_cast<size_t>((n * s[1] + c) * s[2] * s[3] + p)];
    return to;
  };
  const std::vector<float> w = gaussian(16 * 8 * 9, 1), x = gaussian(2 * 8 * 30, 2),
                           g = gaussian(2 * 16 * 30, 3);
  const std::vector<float> x_last = to_last(x, x_sizes), g_last = to_last(g, y_sizes);
  for (const char* recipe : {"sr-ste", "s-ste+fp8", "dense"}) {
    SCOPED_TRACE(recipe);
    ConvLayer layer(geometry);
    layer.configure(settings_of(recipe, "2:4"));
    layer.begin_pass({w.data()}, true);
    const Pass pass = layer.next_pass();
    std::vector<float> y(g.size()), dx(x.size()), dw(w.size()), y2(g.size()), dx2(x.size()),
        dw2(w.size());
    layer.forward<float>(w.data(), {x.data(), x_sizes}, nullptr, {y.data(), y_sizes});
    layer.backward_data<float>(w.data(), {g.data(), y_sizes}, {dx.data(), x_sizes});
    layer.backward_weight<float>(w.data(), {g.data(), y_sizes}, {x.data(), x_sizes}, pass,
                                 dw.data());
    layer.forward<float>(w.data(), {x_last.data(), x_sizes, last(x_sizes)}, nullptr,
                         {y2.data(), y_sizes, last(y_sizes)});
    layer.backward_data<float>(w.data(), {g_last.data(), y_sizes, last(y_sizes)},
                               {dx2.data(), x_sizes, last(x_sizes)});
    layer.backward_weight<float>(w.data(), {g_last.data(), y_sizes, last(y_sizes)},
                                 {x_last.data(), x_sizes, last(x_sizes)}, pass, dw2.data());
    EXPECT_EQ(to_last(y, y_sizes), y2);
    EXPECT_EQ(to_last(dx, x_sizes), dx2);
    EXPECT_EQ(dw, dw2);
  }
}

}  // namespace
}  // namespace weft::test
