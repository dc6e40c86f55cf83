#include "bench/layer.h"

#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "bench/rounds.h"
#include "weft/core/parallel.h"
#include "weft/recipe/schedule.h"
#include "weft/torch/linear.h"

namespace weft::bench {
namespace {

// A recipe in its sparse phase, however long the run.
LayerSettings in_sparse_phase(const std::string& text, const Pattern& pattern,
                              std::shared_ptr<Planner> planner) {
  LayerSettings settings;
  settings.recipe = Recipe::parse(text);
  Schedule& schedule = settings.recipe.schedule;
  const double sparse = 1.0 - schedule.dense_head - schedule.dense_tail;
  schedule.removal_end = (schedule.removal_end - schedule.dense_head) / sparse;
  schedule.dense_head = 0.0;
  schedule.dense_tail = 0.0;
  settings.pattern = pattern;
  settings.total_steps = 1'000'000;  // so that some steps more or less change nothing
  settings.planner = std::move(planner);
  return settings;
}

// Where a recipe is measured, and how much of the sparse phase each stands for.
struct Stretch {
  double share = 1.0;
  int64_t step = 0;
};
std::vector<Stretch> stretches_of(const LayerSettings& settings) {
  if (!settings.recipe.reads("removal_end")) return {{1.0, 0}};
  constexpr int kOfRemoval = 5;
  const double end = settings.recipe.schedule.removal_end;
  const auto total = static_cast<double>(settings.total_steps);
  std::vector<Stretch> found;
  for (int i = 0; i < kOfRemoval; ++i) {
    const double middle = end * (i + 0.5) / kOfRemoval;
    found.push_back({end / kOfRemoval, static_cast<int64_t>(middle * total)});
  }
  found.push_back({1.0 - end, static_cast<int64_t>(std::ceil(end * total))});
  return found;
}

bool makes_sense(const Recipe& recipe, const Pattern& pattern) {
  try {
    recipe.check(pattern);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A layer at a step of its run, with an input and a gradient; its steps are timed.
class Bench {
 public:
  Bench(const LayerShape& shape, const LayerSettings& settings, int64_t at_step)
      : layer_(make_layer(shape)) {
    settings.planner->drop_trials();  // of layers before
    layer_->configure(settings);
    x_ = torch::randn({shape.tokens, shape.ins}).requires_grad_(true);
    g_ = torch::randn({shape.tokens, shape.outs});
    pass();  // allocates, plans, finds the first mask and permutation
    find_rare_work();
    layer_->configure(settings);
    if (layer_->scores.defined()) learn_scores();
    for (int64_t i = 0; i < at_step; ++i) layer_->count_step();
    pass();
    check_results();
    step();  // from here on every step finds its mask and packs
    while (settings.planner->measured_before(layer_->state().step)) step();
    settings.planner->apply_at_once();
    pass();
    check_results();  // of what was chosen
    step();
  }

  // Milliseconds of one.
  double step() {
    return milliseconds([&] {
      pass();
      layer_->add_decay(0.0);
      if (scores_ && layer_->scores.grad().defined()) scores_->step();
      layer_->count_step();
      layer_->bring_up_to_date();
    });
  }

  void begin_round() { layer_->clear_times(); }
  LayerTelemetry telemetry() { return layer_->telemetry(); }
  double rare_ms() const { return rare_ms_; }

 private:
  // The same weights for every recipe.
  static Linear make_layer(const LayerShape& shape) {
    torch::manual_seed(1);
    return Linear(torch::nn::LinearOptions(shape.ins, shape.outs));
  }

  // As after some steps: all different. AdamW hardly moves them, but takes its time.
  void learn_scores() {
    const torch::NoGradGuard no_grad;
    layer_->scores.add_(torch::rand_like(layer_->scores), 0.1);
    scores_.emplace(std::vector<torch::Tensor>{layer_->scores}, torch::optim::AdamWOptions(1e-9));
  }

  void pass() {
    layer_->weight.mutable_grad() = torch::Tensor();
    if (layer_->scores.defined()) layer_->scores.mutable_grad() = torch::Tensor();
    x_.mutable_grad() = torch::Tensor();
    y_ = layer_->forward(x_);
    y_.backward(g_);
  }

  // A wrong result is no figure: some rows of each product against torch. What is random, rounded
  // or thinned out on purpose is left to the tests.
  void check_results() {
    const torch::NoGradGuard no_grad;
    const Recipe& recipe = layer_->settings().recipe;
    if (recipe.fp8) return;
    const auto require = [&](const char* product, const torch::Tensor& found,
                             const torch::Tensor& expected) {
      const double error = (found - expected).abs().max().item<double>();
      WEFT_CHECK(error <= 1e-3 * expected.abs().max().item<double>(),
                 "recipe '{}': {} is wrong by {}", recipe.name, product, error);
    };
    constexpr int64_t kRows = 8;
    const torch::Tensor w = layer_->effective_weight();
    const torch::Tensor x = x_.slice(0, 0, kRows), g = g_.slice(0, 0, kRows);
    require("fwd", y_.slice(0, 0, kRows), torch::matmul(x, w.t()) + layer_->bias);
    if (recipe.backward->same()) {
      require("bwd_x", x_.grad().slice(0, 0, kRows), torch::matmul(g, w));
    }
    if (recipe.samples_gradient()) return;
    torch::Tensor dw = torch::matmul(g_.slice(1, 0, kRows).t(), x_);
    if (recipe.gradient->masked) dw = dw * w.slice(0, 0, kRows).ne(0);
    require("bwd_w", layer_->weight.grad().slice(0, 0, kRows), dw);
  }

  // What is due at the first step and not at the second, divided by how often it is due.
  void find_rare_work() {
    const LayerSettings settings = layer_->settings();
    const int64_t every = rare_work_every(settings.recipe, settings.pattern);
    if (every <= 1 || layer_->always_dense()) return;
    std::vector<double> first, usual;
    for (int i = 0; i < 3; ++i) {
      layer_->configure(settings);
      first.push_back(milliseconds([&] { layer_->bring_up_to_date(); }));
      layer_->count_step();
      usual.push_back(milliseconds([&] { layer_->bring_up_to_date(); }));
    }
    rare_ms_ = std::max(0.0, median(first) - median(usual)) / static_cast<double>(every);
  }

  Linear layer_;
  std::optional<torch::optim::AdamW> scores_;
  torch::Tensor x_, g_, y_;
  double rare_ms_ = 0.0;
};

// A recipe in all stretches of its sparse phase.
class RecipeBench {
 public:
  RecipeBench(const LayerShape& shape, const LayerSettings& settings) {
    for (const Stretch& stretch : stretches_of(settings)) {
      const double removed = removal_progress(settings.recipe, stretch.step, settings.total_steps);
      parts_.push_back({stretch.share,
                        settings.recipe.reads("removal_end") ? removed : 1.0,
                        std::make_unique<Bench>(shape, settings, stretch.step),
                        {}});
    }
  }

  // Milliseconds of a step, the mean over the phase.
  double step() {
    double sum = 0.0;
    for (Part& part : parts_) {
      part.bench->begin_round();
      part.steps.push_back(part.bench->step());
      sum += part.share * part.steps.back();
    }
    return sum;
  }
  LayerTimes times() const {
    LayerTimes sum;
    for (const Part& part : parts_) {
      const LayerTimes one = part.bench->telemetry().times;
      sum.mask += part.share * one.mask;
      sum.pack += part.share * one.pack;
      for (size_t i = 0; i < 3; ++i) sum.products[i] += part.share * one.products[i];
    }
    return sum;
  }
  double rare_ms() const {
    double sum = 0.0;
    for (const Part& part : parts_) sum += part.share * part.bench->rare_ms();
    return sum;
  }
  std::vector<LayerPhase> phases() const {
    std::vector<LayerPhase> found;
    for (const Part& part : parts_) {
      found.push_back({part.share, part.removed, part.bench->telemetry().forward_density,
                       median(part.steps) + part.bench->rare_ms()});
    }
    return found;
  }
  LayerTelemetry telemetry() const { return parts_.back().bench->telemetry(); }

 private:
  struct Part {
    double share, removed;
    std::unique_ptr<Bench> bench;
    std::vector<double> steps;
  };
  std::vector<Part> parts_;
};

}  // namespace

std::vector<LayerRecord> bench_layer(const LayerPlanToBench& plan,
                                     const std::function<void(double)>& progress) {
  at::set_num_threads(threads());  // torch computes what is around the products
  const auto planner = std::make_shared<Planner>(plan.mode);
  std::vector<LayerRecord> records;
  double done = 0.0;
  const double all = static_cast<double>(plan.shapes.size() * plan.patterns.size());
  for (const LayerShape& shape : plan.shapes) {
    Bench dense(shape, in_sparse_phase("dense", Pattern(2, 4), planner), 0);
    for (const Pattern& pattern : plan.patterns) {
      std::vector<std::string> names;
      std::vector<std::unique_ptr<RecipeBench>> benches;
      for (const std::string& recipe : plan.recipes) {
        const LayerSettings settings = in_sparse_phase(recipe, pattern, planner);
        if (!makes_sense(settings.recipe, pattern)) continue;
        names.push_back(recipe);
        benches.push_back(std::make_unique<RecipeBench>(shape, settings));
      }
      std::vector<double> dense_steps;
      std::vector<StepSamples> samples;
      for (const auto& bench : benches) samples.emplace_back(bench->rare_ms());
      for (Rounds rounds(plan.rounds); rounds.next();) {
        const int round = rounds.number();
        const double dense_ms = dense.step();
        dense_steps.push_back(dense_ms);
        for (size_t k = 0; k < benches.size(); ++k) {
          const size_t i = round % 2 == 0 ? k : benches.size() - 1 - k;
          const double ms = benches[i]->step();
          samples[i].add(ms, dense_ms, benches[i]->times());
        }
        progress((done + rounds.done()) / all);
      }
      done += 1.0;
      for (size_t i = 0; i < benches.size(); ++i) {
        const LayerTelemetry telemetry = benches[i]->telemetry();
        records.push_back({names[i], pattern, shape, samples[i].medians(median(dense_steps)),
                           telemetry.plan_text(), telemetry.retained, telemetry.backward_kept,
                           benches[i]->phases(), static_cast<int>(dense_steps.size())});
      }
    }
  }
  return records;
}

}  // namespace weft::bench
