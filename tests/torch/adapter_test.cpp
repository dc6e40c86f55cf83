// The torch module computes what its layer does, to the bit: it adds tensors, and no arithmetic.
#include <gtest/gtest.h>

#include "tests/layers.h"
#include "weft/layer/linear_layer.h"

namespace weft::test {
namespace {

std::vector<float> floats(const torch::Tensor& t) {
  const torch::Tensor host = t.detach().contiguous();
  return {host.data_ptr<float>(), host.data_ptr<float>() + host.numel()};
}

// A layer without torch beside the module, on its weights.
TEST(Adapter, AgreesWithTheLayerToTheBit) {
  for (const std::string& recipe : all_recipes()) {
    SCOPED_TRACE(recipe);
    const LayerSettings settings = settings_of(recipe, "2:4");
    Training run(Kind::kLinear, settings);
    LayerModule& module = *run.layer;
    LinearLayer layer(module.weight.size(0), module.weight.size(1));
    layer.configure(settings);
    const int64_t ins = module.weight.size(1), outs = module.weight.size(0);
    for (int step = 0; step < 8; ++step) {
      run.optimizer.zero_grad();
      const std::vector<float> scores =
          module.scores.defined() ? floats(module.scores) : std::vector<float>();
      layer.begin_pass({module.weight.data_ptr<float>(), scores}, true);
      run.pass(0, 1.0);
      const std::vector<float> w = floats(module.weight), x = floats(run.x),
                               b = floats(module.bias);
      const int64_t tokens = run.x.numel() / ins;
      std::vector<float> y(static_cast<size_t>(tokens * outs)), dx(x.size()), dw(w.size());
      const torch::Tensor gradient = make_gradient(run.y, static_cast<uint64_t>(1100 + 10 * step));
      const std::vector<float> g = floats(gradient);
      layer.forward<float>(w.data(), {x.data(), tokens, ins}, b.data(), {y.data(), tokens, outs});
      layer.backward_data<float>(w.data(), {g.data(), tokens, outs}, {dx.data(), tokens, ins});
      layer.backward_weight<float>(w.data(), {g.data(), tokens, outs}, {x.data(), tokens, ins},
                                   layer.next_pass(), {dw.data(), outs, ins});
      ASSERT_EQ(y, floats(run.y)) << step;
      ASSERT_EQ(dx, floats(run.x.grad())) << step;
      ASSERT_EQ(dw, floats(module.weight.grad())) << step;
      weft::step(module, run.optimizer);
      run.resume_at(step + 1);
      layer.count_step();
      const std::vector<float> moved =
          module.scores.defined() ? floats(module.scores) : std::vector<float>();
      layer.bring_up_to_date({module.weight.data_ptr<float>(), moved});
      for (size_t i = 0; i < layer.save_state().size(); ++i) {
        EXPECT_EQ(layer.save_state()[i].values, module.layer().save_state()[i].values) << i;
      }
    }
  }
}

}  // namespace
}  // namespace weft::test
