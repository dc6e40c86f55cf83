// A network of two linear layers without torch, trained by plain gradient descent that is written here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/model_files.h"
#include "weft/layer/linear_layer.h"

namespace weft::test {

inline constexpr int64_t kSteps = 24;

inline LayerSettings settings_of(const std::string& recipe, const std::string& pattern,
                                 PlanMode mode = PlanMode::kSparse) {
  LayerSettings settings;
  settings.recipe = Recipe::parse(recipe);
  settings.pattern = Pattern::parse(pattern);
  settings.total_steps = kSteps;
  settings.seed = 5;
  settings.planner = std::make_shared<Planner>(mode, "");
  return settings;
}

// Weights that move in memory with every step, as those of a framework may.
class MovingWeights {
 public:
  MovingWeights(int64_t size, uint64_t seed, float scale) : values_(gaussian(size, seed)) {
    for (float& value : values_) value *= scale;
  }
  float* data() { return values_.data(); }
  void move() { values_ = std::vector<float>(values_); }
  void descend(const std::vector<float>& gradient, float rate) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] -= rate * gradient[i];
    move();
  }

 private:
  std::vector<float> values_;
};

// y = W2 relu(W1 x), trained to be what another such network is.
class Network {
 public:
  static constexpr int64_t kTokens = 48, kIns = 24, kHidden = 32, kOuts = 16;

  explicit Network(const LayerSettings& settings) : first_(kHidden, kIns), second_(kOuts, kHidden) {
    for (LinearLayer* layer : {&first_, &second_}) {
      LayerSettings own = settings;
      own.number = layer == &second_;
      layer->configure(own);
      if (const auto shape = layer->score_shape()) {
        scores_.emplace_back(static_cast<size_t>(shape->size()));
        layer->first_scores(scores_.back());
      }
    }
  }

  double loss_after_step(int64_t step) {
    const std::vector<float> x = gaussian(kTokens * kIns, 100 + static_cast<uint64_t>(step));
    const std::vector<float> target = product(x, kTokens, teacher_, kOuts, kIns);
    begin(/*training=*/true);
    forward(x);
    std::vector<float> g(y_.size());
    double loss = 0.0;
    for (size_t i = 0; i < g.size(); ++i) {
      const float gap = y_[i] - target[i];
      loss += 0.5 * gap * gap / static_cast<double>(kTokens);
      g[i] = gap / static_cast<float>(kTokens);
    }
    backward(x, g);
    return loss;
  }

  std::vector<StateArray> state(int layer) { return (layer == 0 ? first_ : second_).save_state(); }
  std::vector<float> effective(int layer) {
    LinearLayer& one = layer == 0 ? first_ : second_;
    MovingWeights& w = layer == 0 ? w1_ : w2_;
    std::vector<float> values(static_cast<size_t>(one.shape().outs * one.shape().ins));
    one.effective_values(w.data(), values.data());
    return values;
  }
  Layer& layer(int number) { return number == 0 ? first_ : second_; }

 private:
  static std::vector<float> product(const std::vector<float>& x, int64_t tokens,
                                    const std::vector<float>& w, int64_t outs, int64_t ins) {
    std::vector<float> y(static_cast<size_t>(tokens * outs));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t o = 0; o < outs; ++o) {
        double sum = 0.0;
        for (int64_t i = 0; i < ins; ++i) {
          sum += static_cast<double>(x[static_cast<size_t>(t * ins + i)]) *
                 w[static_cast<size_t>(o * ins + i)];
        }
        y[static_cast<size_t>(t * outs + o)] = static_cast<float>(sum);
      }
    }
    return y;
  }

  LayerWeights weights(int number) {
    LayerWeights view{(number == 0 ? w1_ : w2_).data()};
    if (!scores_.empty()) view.scores = scores_[static_cast<size_t>(number)];
    return view;
  }

  void begin(bool training) {
    first_.begin_pass(weights(0), training);
    second_.begin_pass(weights(1), training);
  }

  void forward(const std::vector<float>& x) {
    hidden_.assign(kTokens * kHidden, 0.0f);
    y_.assign(kTokens * kOuts, 0.0f);
    first_.forward<float>(w1_.data(), {x.data(), kTokens, kIns}, nullptr,
                          {hidden_.data(), kTokens, kHidden});
    for (float& value : hidden_) value = std::max(value, 0.0f);
    second_.forward<float>(w2_.data(), {hidden_.data(), kTokens, kHidden}, nullptr,
                           {y_.data(), kTokens, kOuts});
  }

  void backward(const std::vector<float>& x, const std::vector<float>& g) {
    const Pass first_pass = first_.next_pass(), second_pass = second_.next_pass();
    std::vector<float> dw1(kHidden * kIns), dw2(kOuts * kHidden), dh(kTokens * kHidden);
    w1_.move();  // at another address than going forward
    w2_.move();
    second_.backward_data<float>(w2_.data(), {g.data(), kTokens, kOuts},
                                 {dh.data(), kTokens, kHidden});
    for (size_t i = 0; i < dh.size(); ++i) dh[i] = hidden_[i] > 0 ? dh[i] : 0.0f;
    second_.backward_weight<float>(w2_.data(), {g.data(), kTokens, kOuts},
                                   {hidden_.data(), kTokens, kHidden}, second_pass,
                                   {dw2.data(), kOuts, kHidden});
    first_.backward_weight<float>(w1_.data(), {dh.data(), kTokens, kHidden},
                                  {x.data(), kTokens, kIns}, first_pass,
                                  {dw1.data(), kHidden, kIns});
    step(first_, 0, w1_, dw1);
    step(second_, 1, w2_, dw2);
  }

  void step(LinearLayer& layer, int number, MovingWeights& w, std::vector<float>& dw) {
    constexpr float kRate = 0.02f;
    if (layer.trains_scores()) {
      std::vector<float>& scores = scores_[static_cast<size_t>(number)];
      std::vector<float> ds(scores.size());
      layer.score_gradient(w.data(), dw.data(), ds.data());
      for (size_t i = 0; i < ds.size(); ++i) scores[i] -= kRate * ds[i];
    }
    layer.add_decay(w.data(), dw.data(), kRate);
    w.descend(dw, kRate);
    layer.count_step();
    layer.bring_up_to_date(weights(number));
  }

  LinearLayer first_, second_;
  MovingWeights w1_{kHidden * kIns, 1, 0.2f}, w2_{kOuts * kHidden, 2, 0.2f};
  std::vector<float> teacher_ = gaussian(kOuts * kIns, 3);
  std::vector<std::vector<float>> scores_;
  std::vector<float> hidden_, y_;
};

}  // namespace weft::test
