#include "weft/train/find_lambda.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "weft/data/sample_order.h"
#include "weft/torch/export_model.h"
#include "weft/torch/step.h"
#include "weft/train/followed_mask.h"
#include "weft/train/optimizer.h"
#include "weft/train/run_setup.h"
#include "weft/train/step_gradients.h"

namespace weft {
namespace {

// The weights and statistics of a model and torch's random numbers, to go back to.
class FirstWeights {
 public:
  explicit FirstWeights(Model& model) {
    const std::set<const void*> of_recipes = recipe_tensors(model);
    const auto keep = [&](const torch::Tensor& tensor) {
      if (of_recipes.contains(tensor.unsafeGetTensorImpl())) return;
      tensors_.emplace_back(tensor, tensor.detach().clone());
    };
    for (const torch::Tensor& parameter : model.parameters()) keep(parameter);
    for (const torch::Tensor& buffer : model.buffers()) keep(buffer);
    random_ = at::detail::getDefaultCPUGenerator().get_state();
  }
  void restore() {
    const torch::NoGradGuard no_grad;
    for (auto& [tensor, first] : tensors_) tensor.copy_(first);
    at::Generator random = at::detail::getDefaultCPUGenerator();
    random.set_state(random_);
  }

 private:
  std::vector<std::pair<torch::Tensor, torch::Tensor>> tensors_;
  torch::Tensor random_;
};

// The trials of one run.
class LambdaTrials {
 public:
  LambdaTrials(const RunParts& parts, const std::optional<InitRecord>& init,
               const std::atomic<int>* stop)
      : parts_(parts),
        options_(sparse_throughout(parts.options)),
        init_(init),
        stop_(stop),
        steps_(lambda_trial_steps(parts.options.steps)),
        first_(*parts.model) {}
  ~LambdaTrials() { first_.restore(); }
  LambdaTrials(const LambdaTrials&) = delete;
  LambdaTrials& operator=(const LambdaTrials&) = delete;

  int64_t steps() const { return steps_; }

  // How often the masks of the layers with decay=auto change on dense weights.
  double dense_flips() {
    std::vector<FollowedMask> followed;
    for (const auto& layer : sparsify_with(0.0)) followed.emplace_back(layer, layer->settings());
    sparsify_by(with_auto_recipes(options_, [](const std::string&) { return "dense"; }));
    for (FollowedMask& one : followed) one.follow(0);
    return train([&](int64_t step) {
      Flips flips;
      for (FollowedMask& one : followed) {
        flips.add(one.follow(step).value_or(0), one.layer->weight.numel());
      }
      return flips;
    });
  }

  // The same of weights that train with this λ.
  double flips(double lambda) {
    const auto layers = sparsify_with(lambda);
    return train([&](int64_t) {
      Flips flips;
      for (const auto& layer : layers) {
        flips.add(layer->telemetry(/*costly=*/false).changed_bits, layer->weight.numel());
      }
      return flips;
    });
  }

 private:
  using Layers = std::vector<std::shared_ptr<LayerModule>>;
  struct Flips {
    int64_t changed = 0, weights = 0;
    void add(int64_t bits, int64_t of) { changed += bits, weights += of; }
  };

  static RunOptions sparse_throughout(const RunOptions& options) {
    return with_auto_recipes(options, [](const std::string& recipe) {
      return recipe + "+dense_head=0+dense_tail=0+moment=follow";
    });
  }

  void sparsify_by(const RunOptions& options) {
    first_.restore();
    sparsify(*parts_.model,
             sparsify_config(options, init_, std::make_shared<Planner>(PlanMode::kDense)));
    parts_.model->train();
  }

  // The layers that had decay=auto; they now have this λ.
  Layers sparsify_with(double lambda) {
    std::set<std::string> recipes;
    const RunOptions options = with_auto_recipes(options_, [&](const std::string& recipe) {
      return *recipes.insert(with_lambda(recipe, lambda)).first;
    });
    sparsify_by(options);
    Layers layers;
    for (const auto& [name, layer] : layers_of(*parts_.model)) {
      const bool found = recipes.contains(layer->settings().recipe.name);
      if (found && !layer->always_dense()) layers.push_back(layer);
    }
    WEFT_CHECK(!layers.empty(), "decay=auto: no layer is sparse, so there is no lambda to find");
    return layers;
  }

  // Changed bits per weight and step, in the second half of a trial.
  template <typename AfterStep>
  double train(const AfterStep& flips_after) {
    const RunOptions& options = options_;
    std::map<std::string, std::shared_ptr<LayerModule>> named;
    for (const auto& [name, layer] : layers_of(*parts_.model)) named[name] = layer;
    const auto optimizer = make_optimizer(*parts_.model, options);
    SampleOrder order(static_cast<uint64_t>(options.seed), parts_.source->train_samples());
    RunPosition position;
    StepSplit split;
    Flips all;
    for (; position.step < steps_; ++position.step) {
      if (stop_ != nullptr && *stop_ != 0) throw Stopped();
      set_learning_rate(*optimizer, learning_rate_at(options, position.step));
      forget_gradients(*optimizer);
      accumulate_gradients({.options = options,
                            .source = *parts_.source,
                            .order = order,
                            .model = *parts_.model,
                            .optimizer = *optimizer,
                            .stop = nullptr,
                            .teacher = parts_.teacher.get()},
                           position, split);
      clip_gradients(*parts_.model, named, options.clip, position.step + 1);
      weft::step(*parts_.model, *optimizer);
      const Flips flips = flips_after(position.step + 1);
      if (position.step >= steps_ / 2) all.add(flips.changed, flips.weights);
    }
    return static_cast<double>(all.changed) / static_cast<double>(all.weights);
  }

  const RunParts& parts_;
  const RunOptions options_;
  const std::optional<InitRecord>& init_;
  const std::atomic<int>* stop_;
  const int64_t steps_;
  FirstWeights first_;
};

}  // namespace

int64_t lambda_trial_steps(int64_t steps) {
  constexpr int64_t kLeast = 40, kMost = 200;
  return std::min(steps, std::clamp(steps / 10, kLeast, kMost));
}

FoundLambda find_lambda(const RunParts& parts, const std::optional<InitRecord>& init,
                        const std::atomic<int>* stop,
                        const std::function<void(const std::string&)>& note) {
  LambdaTrials trials(parts, init, stop);
  note(
      fmt::format("decay=auto: up to five short trainings of {} steps come first", trials.steps()));
  FoundLambda found;
  found.steps = trials.steps();
  found.dense_flip_rate = trials.dense_flips();
  WEFT_CHECK(
      found.dense_flip_rate > 0.0,
      "decay=auto: in {} steps no mask of dense weights changes: give decay=gradient+lambda=X",
      trials.steps());
  LambdaSearch search;
  while (const std::optional<double> lambda = search.next()) {
    search.tried(trials.flips(*lambda) / found.dense_flip_rate);
  }
  found.trials = search.trials();
  found.lambda = search.found().lambda;
  found.ratio = search.found().ratio;
  const bool fits = found.ratio >= LambdaSearch::kLow && found.ratio <= LambdaSearch::kHigh;
  note(fmt::format("decay=auto: lambda {}: masks flip {:.2f} times as often as those of dense{}",
                   found.lambda, found.ratio,
                   fits ? ""
                        : fmt::format(", the closest to {} to {} in {} trials", LambdaSearch::kLow,
                                      LambdaSearch::kHigh, found.trials.size())));
  return found;
}

}  // namespace weft
