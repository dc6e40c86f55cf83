#include "bench/layer.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>

#include "weft/train/layers/linear.h"

namespace weft::bench {
namespace {

double milliseconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double median_of(std::vector<double> values) { return spread_of(std::move(values)).median; }

// A recipe in its sparse phase, however long the run.
LayerSettings in_sparse_phase(const std::string& text, const Pattern& pattern,
                              std::shared_ptr<Planner> planner) {
  LayerSettings settings;
  settings.recipe = Recipe::parse(text);
  settings.recipe.schedule.dense_head = 0.0;
  settings.recipe.schedule.dense_tail = 0.0;
  settings.recipe.schedule.removal_end = 1e-9;  // lbc: one subset is left
  settings.pattern = pattern;
  settings.total_steps = 1;
  settings.planner = std::move(planner);
  return settings;
}

// A layer with an input and a gradient, of which steps are timed.
class Bench {
 public:
  Bench(const LayerShape& shape, const LayerSettings& settings)
      : layer_(torch::nn::LinearOptions(shape.ins, shape.outs)) {
    torch::manual_seed(1);
    layer_->configure(settings);
    x_ = torch::randn({shape.tokens, shape.ins}).requires_grad_(true);
    g_ = torch::randn({shape.tokens, shape.outs});
    step();  // allocates, plans, finds the first mask and permutation
    check_result();
    find_rare_work();
  }

  double step() {
    return milliseconds([&] {
      layer_->weight.mutable_grad() = torch::Tensor();
      x_.mutable_grad() = torch::Tensor();
      layer_->forward(x_).backward(g_);
      layer_->add_decay(0.0);
      layer_->advance();
    });
  }

  void begin_round() { layer_->clear_times(); }
  LayerTelemetry telemetry() { return layer_->telemetry(); }
  double rare_ms() const { return rare_ms_; }

 private:
  // A wrong result is no figure: some tokens against torch, with the weight that is in use.
  void check_result() {
    const torch::NoGradGuard no_grad;
    const torch::Tensor x = x_.slice(0, 0, 8).contiguous();
    const torch::Tensor expected =
        torch::matmul(x, layer_->effective_weight().t()) + layer_->bias;
    const double error = (layer_->forward(x) - expected).abs().max().item<double>();
    WEFT_CHECK(error <= 1e-3 * expected.abs().max().item<double>(),
               "a wrong product of recipe '{}': off by {}", layer_->settings().recipe.name, error);
  }

  // What is due at step 0 and not at step 1, per step.
  void find_rare_work() {
    const Schedule& schedule = layer_->settings().recipe.schedule;
    const LayerSettings settings = layer_->settings();
    const int64_t every =
        schedule.permutation_every > 0 ? schedule.permutation_every : schedule.mask_every;
    if (every <= 1 || layer_->always_dense()) return;
    std::vector<double> times;
    for (int i = 0; i < 3; ++i) {
      layer_->configure(settings);
      times.push_back(milliseconds([&] { layer_->weights_changed(); }));
    }
    const double usual = milliseconds([&] { layer_->advance(); });
    rare_ms_ = std::max(0.0, median_of(times) - usual) / static_cast<double>(every);
    step();
  }

  Linear layer_;
  torch::Tensor x_, g_;
  double rare_ms_ = 0.0;
};

struct Samples {
  std::vector<double> steps, ratios, mask, pack, fwd, bwd_x, bwd_w;
};

void note(const LayerTelemetry& telemetry, Samples& samples) {
  const LayerTimes& times = telemetry.times;
  samples.mask.push_back(1e3 * times.mask);
  samples.pack.push_back(1e3 * times.pack);
  samples.fwd.push_back(1e3 * times.products[0]);
  samples.bwd_x.push_back(1e3 * times.products[1]);
  samples.bwd_w.push_back(1e3 * times.products[2]);
}

LayerRecord record_of(const Samples& samples, double dense_ms, double rare_ms) {
  LayerRecord r{"", Pattern(1, 1), {}, dense_ms, 0, {}, 0, 0, 0, 0, 0, 0, "", 1.0, 1.0};
  r.sparse_ms = median_of(samples.steps) + rare_ms;
  r.ratio = spread_of(samples.ratios);
  r.ratio.median = r.dense_ms / r.sparse_ms;
  r.mask_ms = median_of(samples.mask) + rare_ms;
  r.pack_ms = median_of(samples.pack);
  r.fwd_ms = median_of(samples.fwd);
  r.bwd_x_ms = median_of(samples.bwd_x);
  r.bwd_w_ms = median_of(samples.bwd_w);
  r.other_ms = std::max(
      0.0, r.sparse_ms - r.mask_ms - r.pack_ms - r.fwd_ms - r.bwd_x_ms - r.bwd_w_ms);
  return r;
}

}  // namespace

std::vector<LayerRecord> bench_layer(const LayerPlanToBench& plan,
                                     const std::function<void(double)>& progress) {
  const auto planner = std::make_shared<Planner>(plan.mode);
  std::vector<LayerRecord> records;
  double done = 0.0;
  const double all = static_cast<double>(plan.shapes.size() * plan.patterns.size());
  for (const LayerShape& shape : plan.shapes) {
    Bench dense(shape, in_sparse_phase("dense", Pattern(2, 4), planner));
    for (const Pattern& pattern : plan.patterns) {
      std::vector<std::string> names;
      std::vector<std::unique_ptr<Bench>> benches;
      for (const std::string& recipe : plan.recipes) {
        const LayerSettings settings = in_sparse_phase(recipe, pattern, planner);
        try {
          settings.recipe.check(pattern);
        } catch (const Error&) {
          continue;
        }
        names.push_back(recipe);
        benches.push_back(std::make_unique<Bench>(shape, settings));
      }
      std::vector<double> dense_steps;
      std::vector<Samples> samples(benches.size());
      for (int round = 0; round < plan.rounds; ++round) {
        const double dense_ms = dense.step();
        dense_steps.push_back(dense_ms);
        for (size_t k = 0; k < benches.size(); ++k) {
          const size_t i = round % 2 == 0 ? k : benches.size() - 1 - k;
          benches[i]->begin_round();
          samples[i].steps.push_back(benches[i]->step());
          samples[i].ratios.push_back(dense_ms /
                                      (samples[i].steps.back() + benches[i]->rare_ms()));
          note(benches[i]->telemetry(), samples[i]);
        }
        progress((done + (round + 1.0) / plan.rounds) / all);
      }
      done += 1.0;
      for (size_t i = 0; i < benches.size(); ++i) {
        LayerRecord record =
            record_of(samples[i], median_of(dense_steps), benches[i]->rare_ms());
        record.recipe = names[i];
        record.pattern = pattern;
        record.shape = shape;
        const LayerTelemetry telemetry = benches[i]->telemetry();
        record.plan = telemetry.plan;
        record.retained = telemetry.retained;
        record.backward_kept = telemetry.backward_kept;
        records.push_back(record);
      }
    }
  }
  return records;
}

}  // namespace weft::bench
