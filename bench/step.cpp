#include "bench/step.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "bench/rounds.h"
#include "weft/core/parallel.h"
#include "weft/distributed/gradient_buckets.h"
#include "weft/torch/sparsify.h"
#include "weft/torch/step.h"
#include "weft/train/optimizer.h"

namespace weft::bench {
namespace {

bool removes(const std::string& recipe) { return Recipe::parse(recipe).reads("removal_end"); }

// The parts of a recipe that say when: sparse at every step that is measured.
std::string sparse_phase(const std::string& text) {
  const Recipe recipe = Recipe::parse(text);
  std::string found = text;
  if (recipe.schedule.dense_head > 0) found += "+dense_head=0";
  if (recipe.schedule.dense_tail > 0) found += "+dense_tail=0";
  if (removes(text)) found += "+removal_end=1e-9";
  return found;
}

// Of lbc both phases: while it removes subsets, and afterwards.
std::vector<Subject> subjects_of(const StepOptions& options) {
  std::vector<Subject> subjects;
  for (const std::string& recipe : options.recipes) {
    for (const Pattern& pattern : options.patterns) {
      if (removes(recipe)) subjects.push_back({recipe, pattern, /*removing=*/true});
      subjects.push_back({recipe, pattern});
    }
  }
  return subjects;
}

RunOptions adamw_options() {
  RunOptions options;
  options.learning_rate = 1e-4;
  return options;
}

class NetworkBench {
 public:
  NetworkBench(const StepShape& shape, const Subject& subject, Precision precision,
               std::shared_ptr<Planner> planner, const StepInputs& inputs)
      : inputs_(inputs), planned_(planned_layer(shape)), network_(weft_network(shape, precision)) {
    planner->drop_trials();  // of networks before
    torch::nn::Module& module = *network_.module;
    SparsifyConfig config;
    config.recipe = subject.removing ? subject.recipe : sparse_phase(subject.recipe);
    config.pattern = subject.pattern;
    config.first_and_last_dense = std::holds_alternative<ResnetShape>(shape);
    config.total_steps = 1000;
    config.planner = planner;
    config.precision = precision;
    sparsify(module, config);
    optimizer_ = make_optimizer(module, adamw_options());
    layers_ = layers_of(module);
    step();  // allocates, finds masks
    if (subject.recipe != "dense") find_rare_work();
    while (planner->measured_before(layers_.front().second->state().step)) step();
    planner->apply_at_once();
    step();
  }

  double step(GradientBuckets* buckets = nullptr) {
    for (const auto& [name, layer] : layers_) layer->clear_times();
    return milliseconds([&] {
      forget_gradients(*optimizer_);
      inputs_.x.mutable_grad() = torch::Tensor();
      const torch::Tensor y = network_.forward(inputs_.x);
      if (buckets != nullptr) buckets->begin();
      y.backward(inputs_.g);
      if (buckets != nullptr) buckets->finish();
      weft::step(*network_.module, *optimizer_);
    });
  }
  torch::nn::Module& module() { return *network_.module; }

  LayerTimes times() const {
    LayerTimes sum;
    for (const auto& [name, layer] : layers_) {
      const LayerTimes one = layer->telemetry(/*costly=*/false).times;
      sum.mask += one.mask;
      sum.pack += one.pack;
      for (size_t i = 0; i < 3; ++i) sum.products[i] += one.products[i];
    }
    return sum;
  }
  std::string plan() const {
    for (const auto& [name, layer] : layers_) {
      if (name.ends_with(planned_)) return layer->plan_text();
    }
    return "";
  }
  double rare_ms() const { return rare_ms_; }

  torch::Tensor forward() const { return network_.forward(inputs_.x); }
  // What the products multiply with.
  void copy_weights_to(torch::nn::Module& plain) const {
    std::map<std::string, torch::Tensor> weights;
    for (const auto& parameter : network_.module->named_parameters()) {
      weights[parameter.key()] = parameter.value();
    }
    for (const auto& [name, layer] : layers_) weights[name + ".weight"] = layer->effective_weight();
    for (auto& parameter : plain.named_parameters()) {
      parameter.value().copy_(weights.at(parameter.key()));
    }
  }

 private:
  // What is due at the first step and not at the next, divided by how often it is due.
  void find_rare_work() {
    for (const auto& [name, layer] : layers_) {
      const LayerSettings settings = layer->settings();
      const int64_t every = rare_work_every(settings.recipe, settings.pattern);
      if (every <= 1 || layer->always_dense()) continue;
      layer->configure(settings);
      const double first = milliseconds([&] { layer->bring_up_to_date(); });
      layer->count_step();
      const double usual = milliseconds([&] { layer->bring_up_to_date(); });
      rare_ms_ += std::max(0.0, first - usual) / static_cast<double>(every);
    }
  }

  StepInputs inputs_;
  std::string planned_;
  StepNetwork network_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<std::pair<std::string, std::shared_ptr<LayerModule>>> layers_;
  double rare_ms_ = 0.0;
};

// Steps of plain libtorch, with a number of threads of its own.
class PlainBench {
 public:
  PlainBench(const StepShape& shape, const StepInputs& inputs)
      : inputs_(inputs), network_(plain_network(shape)) {
    optimizer_ = make_optimizer(*network_.module, adamw_options());
  }

  double step(int torch_threads) {
    const int ours = threads();
    at::set_num_threads(torch_threads);
    const double ms = milliseconds([&] {
      optimizer_->zero_grad();
      inputs_.x.mutable_grad() = torch::Tensor();
      network_.forward(inputs_.x).backward(inputs_.g);
      optimizer_->step();
    });
    at::set_num_threads(ours);
    set_threads(ours);  // torch's number is OpenMP's, and so ours
    return ms;
  }

  // A wrong result is no figure: the output of a network against that of this one with the same
  // weights. Gradients are left to the tests.
  void require_equal(const NetworkBench& bench, const std::string& name) {
    const torch::NoGradGuard no_grad;
    bench.copy_weights_to(*network_.module);
    const torch::Tensor expected = network_.forward(inputs_.x);
    const torch::Tensor found = bench.forward();
    const double error = (found.to(torch::kFloat) - expected).abs().max().item<double>();
    // Of bf16 eight bits are left after each of a dozen roundings.
    const double share = found.scalar_type() == torch::kFloat ? 1e-3 : 0.05;
    WEFT_CHECK(error <= share * expected.abs().max().item<double>(),
               "{}: the result is wrong by {}", name, error);
  }

 private:
  StepInputs inputs_;
  StepNetwork network_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

StepRecords bench_step(const StepOptions& options, const std::function<void(double)>& progress) {
  at::set_num_threads(threads());
  const StepInputs inputs_fp32 = step_inputs(options.shape, Precision::kFp32);
  const StepInputs inputs = step_inputs(options.shape, options.precision);
  const auto planner = std::make_shared<Planner>(options.mode);
  PlainBench plain(options.shape, inputs_fp32);
  NetworkBench dense(options.shape, {}, options.precision, planner, inputs);
  plain.require_equal(dense, "dense");
  std::optional<NetworkBench> dense_fp32;
  if (options.precision == Precision::kBf16) {
    dense_fp32.emplace(options.shape, Subject(), Precision::kFp32, planner, inputs_fp32);
  }
  const std::vector<Subject> subjects = subjects_of(options);
  std::vector<std::unique_ptr<NetworkBench>> benches;
  for (const Subject& one : subjects) {
    benches.push_back(
        std::make_unique<NetworkBench>(options.shape, one, options.precision, planner, inputs));
    if (!Recipe::parse(one.recipe).fp8) plain.require_equal(*benches.back(), one.recipe);
    progress(0.4 * static_cast<double>(benches.size()) / static_cast<double>(subjects.size()));
  }
  std::vector<double> dense_steps, fp32_steps, plain_steps, plain_ours;
  std::vector<StepSamples> samples;
  for (const auto& bench : benches) samples.emplace_back(bench->rare_ms());
  if (options.plain) plain.step(threads());  // allocates
  for (Rounds rounds(options.rounds); rounds.next();) {
    const int round = rounds.number();
    const double dense_ms = dense.step();
    dense_steps.push_back(dense_ms);
    if (dense_fp32) fp32_steps.push_back(dense_fp32->step());
    for (size_t k = 0; k < benches.size(); ++k) {
      const size_t i = round % 2 == 0 ? k : benches.size() - 1 - k;
      const double ms = benches[i]->step();
      samples[i].add(ms, dense_ms, benches[i]->times());
    }
    // It is slow, so each form has its turn in every other round.
    if (options.plain && round % 2 == 0) plain_steps.push_back(plain.step(options.torch_threads));
    if (options.plain && (round % 2 == 1 || options.rounds == 1)) {
      plain_ours.push_back(plain.step(threads()));
    }
    progress(0.4 + 0.6 * rounds.done());
  }
  StepRecords found;
  found.dense_ms = median(dense_steps);
  if (dense_fp32) found.dense_fp32_ms = median(fp32_steps);
  if (options.plain) {
    found.plain_ms = median(plain_steps);
    found.plain_all_threads_ms = median(plain_ours);
  }
  for (size_t i = 0; i < benches.size(); ++i) {
    found.records.push_back({subjects[i], samples[i].medians(found.dense_ms), benches[i]->plan()});
  }
  return found;
}

RankStepRecord bench_rank_step(const StepOptions& options, const std::string& recipe,
                               const Pattern& pattern, const std::shared_ptr<ProcessGroup>& ranks) {
  at::set_num_threads(threads());
  const StepInputs inputs = step_inputs(options.shape, options.precision);
  const auto planner = std::make_shared<Planner>(options.mode);
  NetworkBench bench(options.shape, {recipe, pattern}, options.precision, planner, inputs);
  const std::string plan = ranks->text_of_first(planner->saved());
  if (!ranks->is_first()) planner->adopt(plan);
  planner->apply_at_once();
  std::vector<double> alone, kept, whole, late;
  RankStepRecord record;
  for (int round = 0; round <= options.rounds; ++round) {
    const auto step_with = [&](std::optional<GradientBuckets::Options> how,
                               std::vector<double>& times) {
      std::optional<GradientBuckets> buckets;
      if (how) buckets.emplace(bench.module(), ranks, *how);
      ranks->wait_for_first();
      const double ms = bench.step(buckets ? &*buckets : nullptr);
      if (round > 0) times.push_back(ms);  // the first one warms up
      if (how && how->kept_only) record.kept_bytes = buckets->traffic().bytes;
      if (how) record.whole_bytes = buckets->traffic().whole_bytes;
    };
    step_with(std::nullopt, alone);
    step_with(GradientBuckets::Options{}, kept);
    step_with(GradientBuckets::Options{.kept_only = false}, whole);
    step_with(GradientBuckets::Options{.overlap = false}, late);
  }
  record.recipe = recipe;
  record.pattern = pattern;
  record.alone_ms = median(alone);
  record.step_ms = median(kept);
  record.whole_ms = median(whole);
  record.late_ms = median(late);
  return record;
}

void take_steps(const StepShape& shape, const Subject& subject, PlanMode mode, Precision precision,
                int steps) {
  at::set_num_threads(threads());
  const StepInputs inputs = step_inputs(shape, precision);
  NetworkBench bench(shape, subject, precision, std::make_shared<Planner>(mode), inputs);
  for (int i = 2; i < steps; ++i) bench.step();  // it has taken two already
}

}  // namespace weft::bench
