#include "bench/step.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/rounds.h"
#include "weft/core/parallel.h"
#include "weft/distributed/gradient_buckets.h"
#include "weft/torch/sparsify.h"
#include "weft/torch/step.h"
#include "weft/torch/transformer.h"
#include "weft/train/optimizer.h"

namespace weft::bench {
namespace {

// The parts of a recipe that say when: sparse at every step that is measured.
std::string sparse_phase(const std::string& text) {
  const Recipe recipe = Recipe::parse(text);
  std::string found = text;
  if (recipe.schedule.dense_head > 0) found += "+dense_head=0";
  if (recipe.schedule.dense_tail > 0) found += "+dense_tail=0";
  if (recipe.reads("removal_end")) found += "+removal_end=1e-9";
  return found;
}

// x and the gradient of the result: the same for all.
struct Inputs {
  explicit Inputs(const BlockShape& shape, Precision precision = Precision::kFp32) {
    torch::manual_seed(2);
    const auto dtype = precision == Precision::kFp32 ? torch::kFloat : torch::kBFloat16;
    const std::vector<int64_t> sizes = {shape.tokens / shape.context, shape.context, shape.width};
    x = torch::randn(sizes).to(dtype).requires_grad_(true);
    g = (torch::randn(sizes) / static_cast<double>(shape.tokens)).to(dtype);
  }
  torch::Tensor x, g;
};

RunOptions adamw_options() {
  RunOptions options;
  options.learning_rate = 1e-4;
  return options;
}

class BlockBench {
 public:
  BlockBench(const BlockShape& shape, const std::string& recipe, const Pattern& pattern,
             Precision precision, std::shared_ptr<Planner> planner, const Inputs& inputs)
      : inputs_(inputs) {
    planner->drop_trials();  // of blocks before
    torch::manual_seed(1);
    block_ = std::make_shared<TransformerBlock>(
        BlockOptions{shape.width, shape.hidden, shape.heads, /*causal=*/true});
    SparsifyConfig config;
    config.recipe = sparse_phase(recipe);
    config.pattern = pattern;
    config.first_and_last_dense = false;
    config.total_steps = 1000;
    config.planner = planner;
    config.precision = precision;
    sparsify(*block_, config);
    optimizer_ = make_optimizer(*block_, adamw_options());
    layers_ = layers_of(*block_);
    step();  // allocates, finds masks
    if (recipe != "dense") find_rare_work();
    while (planner->measured_before(layers_.front().second->state().step)) step();
    planner->apply_at_once();
    step();
  }

  double step(GradientBuckets* buckets = nullptr) {
    for (const auto& [name, layer] : layers_) layer->clear_times();
    return milliseconds([&] {
      forget_gradients(*optimizer_);
      inputs_.x.mutable_grad() = torch::Tensor();
      const torch::Tensor y = block_->forward(inputs_.x);
      if (buckets != nullptr) buckets->begin();
      y.backward(inputs_.g);
      if (buckets != nullptr) buckets->finish();
      weft::step(*block_, *optimizer_);
    });
  }
  torch::nn::Module& block() { return *block_; }

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
      if (name.ends_with("fc1")) return layer->plan_text();
    }
    return "";
  }
  double rare_ms() const { return rare_ms_; }

  torch::Tensor forward() const { return block_->forward(inputs_.x); }
  // What the products multiply with, under the names of the plain block.
  void copy_weights_to(torch::nn::Module& plain) const {
    std::map<std::string, torch::Tensor> weights;
    for (const auto& parameter : block_->named_parameters()) {
      weights[parameter.key()] = parameter.value();
    }
    for (const auto& [name, layer] : layers_) weights[name + ".weight"] = layer->effective_weight();
    for (auto& parameter : plain.named_parameters()) {
      const std::string& name = parameter.key();
      const bool in_attention = name.starts_with("qkv") || name.starts_with("proj");
      parameter.value().copy_(weights.at(in_attention ? "attention." + name : name));
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

  Inputs inputs_;
  std::shared_ptr<TransformerBlock> block_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<std::pair<std::string, std::shared_ptr<LayerModule>>> layers_;
  double rare_ms_ = 0.0;
};

// The same block as a user of libtorch would write it.
class PlainBlock : public torch::nn::Module {
 public:
  explicit PlainBlock(const BlockShape& shape) : shape_(shape) {
    const auto norm = [&] {
      return torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width}));
    };
    norm1_ = register_module("norm1", norm());
    norm2_ = register_module("norm2", norm());
    qkv_ = register_module("qkv", torch::nn::Linear(shape.width, 3 * shape.width));
    proj_ = register_module("proj", torch::nn::Linear(shape.width, shape.width));
    fc1_ = register_module("fc1", torch::nn::Linear(shape.width, shape.hidden));
    fc2_ = register_module("fc2", torch::nn::Linear(shape.hidden, shape.width));
    mask_ = torch::full({shape.context, shape.context}, -INFINITY).triu(1);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2);
    const torch::Tensor parts = qkv_(norm1_(x))
                                    .view({batch, tokens, 3, shape_.heads, width / shape_.heads})
                                    .permute({2, 0, 3, 1, 4});
    const double scale = 1.0 / std::sqrt(static_cast<double>(width / shape_.heads));
    const torch::Tensor scores =
        torch::matmul(parts[0], parts[1].transpose(-1, -2)) * scale + mask_;
    const torch::Tensor mixed = torch::matmul(torch::softmax(scores, -1), parts[2]);
    const torch::Tensor h = x + proj_(mixed.transpose(1, 2).reshape({batch, tokens, width}));
    return h + fc2_(torch::gelu(fc1_(norm2_(h))));
  }

 private:
  BlockShape shape_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr}, fc1_{nullptr}, fc2_{nullptr};
  torch::Tensor mask_;
};

// Steps of plain libtorch, with a number of threads of its own.
class PlainBench {
 public:
  PlainBench(const BlockShape& shape, const Inputs& inputs)
      : inputs_(inputs), block_(std::make_shared<PlainBlock>(shape)) {
    optimizer_ = make_optimizer(*block_, adamw_options());
  }

  double step(int torch_threads) {
    const int ours = threads();
    at::set_num_threads(torch_threads);
    const double ms = milliseconds([&] {
      optimizer_->zero_grad();
      inputs_.x.mutable_grad() = torch::Tensor();
      block_->forward(inputs_.x).backward(inputs_.g);
      optimizer_->step();
    });
    at::set_num_threads(ours);
    set_threads(ours);  // torch's number is OpenMP's, and so ours
    return ms;
  }

  // A wrong result is no figure: the output of a block for its first sequence, against this one
  // with the same weights. Gradients are left to the tests.
  void require_equal(const BlockBench& bench, const std::string& name) {
    const torch::NoGradGuard no_grad;
    bench.copy_weights_to(*block_);
    const torch::Tensor expected = block_->forward(inputs_.x.slice(0, 0, 1));
    const torch::Tensor found = bench.forward().slice(0, 0, 1);
    const double error = (found.to(torch::kFloat) - expected).abs().max().item<double>();
    // Of bf16 eight bits are left after each of a dozen roundings.
    const double share = found.scalar_type() == torch::kFloat ? 1e-3 : 0.05;
    WEFT_CHECK(error <= share * expected.abs().max().item<double>(),
               "{}: the result is wrong by {}", name, error);
  }

 private:
  Inputs inputs_;
  std::shared_ptr<PlainBlock> block_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

StepRecords bench_step(const StepOptions& options, const std::function<void(double)>& progress) {
  at::set_num_threads(threads());
  const Inputs inputs_fp32(options.shape), inputs(options.shape, options.precision);
  const auto planner = std::make_shared<Planner>(options.mode);
  PlainBench plain(options.shape, inputs_fp32);
  BlockBench dense(options.shape, "dense", Pattern(2, 4), options.precision, planner, inputs);
  plain.require_equal(dense, "dense");
  std::optional<BlockBench> dense_fp32;
  if (options.precision == Precision::kBf16) {
    dense_fp32.emplace(options.shape, "dense", Pattern(2, 4), Precision::kFp32, planner,
                       inputs_fp32);
  }
  std::vector<std::pair<std::string, Pattern>> names;
  std::vector<std::unique_ptr<BlockBench>> benches;
  for (const std::string& recipe : options.recipes) {
    for (const Pattern& pattern : options.patterns) {
      names.emplace_back(recipe, pattern);
      benches.push_back(std::make_unique<BlockBench>(options.shape, recipe, pattern,
                                                     options.precision, planner, inputs));
      if (!Recipe::parse(recipe).fp8) plain.require_equal(*benches.back(), recipe);
      progress(0.4 * static_cast<double>(benches.size()) /
               static_cast<double>(options.recipes.size() * options.patterns.size()));
    }
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
    found.records.push_back(
        {names[i].first, names[i].second, samples[i].medians(found.dense_ms), benches[i]->plan()});
  }
  return found;
}

RankStepRecord bench_rank_step(const StepOptions& options, const std::string& recipe,
                               const Pattern& pattern, const std::shared_ptr<ProcessGroup>& ranks) {
  at::set_num_threads(threads());
  const Inputs inputs(options.shape, options.precision);
  const auto planner = std::make_shared<Planner>(options.mode);
  BlockBench bench(options.shape, recipe, pattern, options.precision, planner, inputs);
  const std::string plan = ranks->text_of_first(planner->saved());
  if (!ranks->is_first()) planner->adopt(plan);
  planner->apply_at_once();
  std::vector<double> alone, kept, whole, late;
  RankStepRecord record;
  for (int round = 0; round <= options.rounds; ++round) {
    const auto step_with = [&](std::optional<GradientBuckets::Options> how,
                               std::vector<double>& times) {
      std::optional<GradientBuckets> buckets;
      if (how) buckets.emplace(bench.block(), ranks, *how);
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

void take_steps(const BlockShape& shape, const std::string& recipe, const Pattern& pattern,
                PlanMode mode, Precision precision, int steps) {
  at::set_num_threads(threads());
  const Inputs inputs(shape, precision);
  BlockBench bench(shape, recipe, pattern, precision, std::make_shared<Planner>(mode), inputs);
  for (int i = 2; i < steps; ++i) bench.step();  // it has taken two already
}

}  // namespace weft::bench
