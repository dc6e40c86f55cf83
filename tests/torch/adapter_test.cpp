// The torch module computes what its layer does, to the bit: it adds tensors, and no arithmetic.
#include <gtest/gtest.h>

#include "tests/layers.h"
#include "weft/layer/conv_layer.h"
#include "weft/layer/linear_layer.h"

namespace weft::test {
namespace {

std::vector<float> floats(const torch::Tensor& t) {
  if (!t.defined()) return {};
  const torch::Tensor host = t.detach().contiguous();
  return {host.data_ptr<float>(), host.data_ptr<float>() + host.numel()};
}

// y, dx and dw of a layer without torch.
struct Results {
  std::vector<float> y, dx, dw;
};

Results products(LinearLayer& layer, const LayerModule& module, const torch::Tensor& x_tensor,
                 const torch::Tensor& g_tensor) {
  const int64_t ins = layer.shape().ins, outs = layer.shape().outs;
  const int64_t tokens = x_tensor.numel() / ins;
  const std::vector<float> w = floats(module.weight), b = floats(module.bias), x = floats(x_tensor),
                           g = floats(g_tensor);
  Results r{std::vector<float>(g.size()), std::vector<float>(x.size()),
            std::vector<float>(w.size())};
  layer.forward<float>(w.data(), {x.data(), tokens, ins}, b.data(), {r.y.data(), tokens, outs});
  layer.backward_data<float>(w.data(), {g.data(), tokens, outs}, {r.dx.data(), tokens, ins});
  layer.backward_weight<float>(w.data(), {g.data(), tokens, outs}, {x.data(), tokens, ins},
                               layer.next_pass(), {r.dw.data(), outs, ins});
  return r;
}

Results products(ConvLayer& layer, const LayerModule& module, const torch::Tensor& x_tensor,
                 const torch::Tensor& g_tensor) {
  const auto sizes = [](const torch::Tensor& t) {
    return std::array<int64_t, 4>{t.size(0), t.size(1), t.size(2), t.size(3)};
  };
  const std::vector<float> w = floats(module.weight), b = floats(module.bias), x = floats(x_tensor),
                           g = floats(g_tensor);
  Results r{std::vector<float>(g.size()), std::vector<float>(x.size()),
            std::vector<float>(w.size())};
  layer.forward<float>(w.data(), {x.data(), sizes(x_tensor)}, b.data(),
                       {r.y.data(), sizes(g_tensor)});
  layer.backward_data<float>(w.data(), {g.data(), sizes(g_tensor)}, {r.dx.data(), sizes(x_tensor)});
  layer.backward_weight<float>(w.data(), {g.data(), sizes(g_tensor)}, {x.data(), sizes(x_tensor)},
                               layer.next_pass(), r.dw.data());
  return r;
}

// Steps of a module, and beside it of a layer on the same weights. What the layer adds to the
// gradient, by decay, and the gradient of scores are its own.
template <typename OwnLayer>
void expect_the_same(OwnLayer& layer, Kind kind, const LayerSettings& settings) {
  Training run(kind, settings);
  LayerModule& module = *run.layer;
  layer.configure(settings);
  for (int step = 0; step < 8; ++step) {
    run.optimizer.zero_grad();
    std::vector<float> scores = floats(module.scores);
    layer.begin_pass({module.weight.data_ptr<float>(), scores}, true);
    run.pass(0, 1.0);
    const torch::Tensor g = make_gradient(run.y, static_cast<uint64_t>(1100 + 10 * step));
    Results found = products(layer, module, run.x, g);
    ASSERT_EQ(found.y, floats(run.y)) << step;
    ASSERT_EQ(found.dx, floats(run.x.grad())) << step;
    ASSERT_EQ(found.dw, floats(module.weight.grad())) << step;
    const std::vector<float> w = floats(module.weight);
    if (layer.trains_scores()) {
      std::vector<float> ds(scores.size());
      layer.score_gradient(w.data(), found.dw.data(), ds.data());
      ASSERT_EQ(ds, floats(module.scores.grad())) << step;
    }
    std::vector<float> decayed = w;
    layer.add_decay(decayed.data(), found.dw.data(), 0.05);
    run.optimizer.param_groups()[0].options().set_lr(0.05);
    module.add_decay(0.05);
    ASSERT_EQ(found.dw, floats(module.weight.grad())) << step;
    ASSERT_EQ(decayed, floats(module.weight)) << step;
    run.optimizer.step();
    for (Layer* one : {static_cast<Layer*>(&layer), &module.layer()}) one->count_step();
    module.bring_up_to_date();
    run.resume_at(step + 1);
    scores = floats(module.scores);
    layer.bring_up_to_date({module.weight.data_ptr<float>(), scores});
    for (size_t i = 0; i < std::size(kStateNames); ++i) {
      EXPECT_EQ(layer.save_state()[i].values, module.layer().save_state()[i].values)
          << kStateNames[i];
    }
  }
}

TEST(Adapter, AgreesWithTheLayerToTheBit) {
  for (const char* pattern : {"2:4", "2:4x2"}) {
    for (const PlanMode mode : {PlanMode::kSparse, PlanMode::kDense}) {
      for (const std::string& recipe : all_recipes()) {
        SCOPED_TRACE(recipe + " " + pattern);
        const LayerSettings settings = settings_of(recipe, pattern, mode);
        LinearLayer linear(136, 36);
        expect_the_same(linear, Kind::kLinear, settings);
        ConvShape geometry;
        geometry.ins = 16;
        geometry.outs = 24;
        geometry.kernel_h = 3;
        geometry.kernel_w = 2;
        geometry.stride_h = 2;
        geometry.pad_h = 1;
        ConvLayer conv(geometry);
        expect_the_same(conv, Kind::kConv, settings);
      }
    }
  }
}

}  // namespace
}  // namespace weft::test
