#include "weft/train/trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <set>

#include "weft/checkpoint/checkpoint.h"
#include "weft/core/atomic_file.h"
#include "weft/core/parallel.h"
#include "weft/core/same_file.h"
#include "weft/core/text.h"
#include "weft/run/peak_memory.h"
#include "weft/torch/step.h"
#include "weft/torch/tensor_math.h"
#include "weft/train/export_model.h"
#include "weft/train/optimizer.h"
#include "weft/train/run_checkpoint.h"
#include "weft/train/telemetry.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Where the time of a step goes. What is within forward, backward and step, layer by layer, is in
// the telemetry.
struct StepSplit {
  double data = 0.0, forward = 0.0, backward = 0.0, clip = 0.0, step = 0.0;
};

// What a step changes before the optimiser's step: statistics of norms, what recipes count and find
// on the way, torch's random numbers. To go back to.
class BeforeStep {
 public:
  explicit BeforeStep(Model& model) : model_(model) {
    for (const torch::Tensor& buffer : model.buffers()) {
      buffers_.emplace_back(buffer, buffer.detach().clone());
    }
    random_ = at::detail::getDefaultCPUGenerator().get_state();
  }
  void restore() {
    for (auto& [buffer, before] : buffers_) buffer.set_data(before);
    for (const auto& [name, layer] : layers_of(model_)) layer->state_changed();
    at::Generator random = at::detail::getDefaultCPUGenerator();
    random.set_state(random_);
  }

 private:
  Model& model_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers_;
  torch::Tensor random_;
};

uint64_t file_bytes(const std::filesystem::path& path) {
  std::error_code failure;
  const auto bytes = std::filesystem::file_size(path, failure);
  return failure ? 0 : bytes;
}

// The planner decides nothing while this is in scope.
class Preview {
 public:
  explicit Preview(Planner& planner) : planner_(planner) { planner_.preview(true); }
  ~Preview() { planner_.preview(false); }
  Preview(const Preview&) = delete;
  Preview& operator=(const Preview&) = delete;

 private:
  Planner& planner_;
};

}  // namespace

struct Trainer::State {
  // saved: the record of a run that goes on, and its file; null: it begins.
  State(RunParts run_parts, const TrainerSetup& setup, const Json* saved, const std::string& file)
      : parts(std::move(run_parts)),
        listener(setup.listener),
        order(static_cast<uint64_t>(parts.options.seed), parts.source->train_samples()) {
    const RunOptions& options = parts.options;
    options.check_training();
    set_threads(options.threads > 0 ? static_cast<int>(options.threads) : threads());
    at::set_num_threads(threads());
    planner = setup.planner ? setup.planner
              : saved       ? planner_of_mode(options.plan)
                            : planner_of(options.plan);
    data_checksum = parts.source->fingerprint();
    if (!options.init.empty()) init = saved ? saved_init(*saved, file) : new_init();
    position.run = run_name(options, data_checksum, init);
    record = Json{{"format", "weft.run"},
                  {"version", 1},
                  {"options", options.to_json()},
                  {"environment", environment_json(threads(), parse_precision(options.precision))},
                  {"data_crc32", fmt::format("{:08x}", data_checksum)},
                  {"status", "running"}};
    if (init) record["init"] = init->to_json();
    std::vector<DenseFlips::Counted> counted;
    for (const RecipeAtPattern& one : counted_flips(options)) {
      RunOptions sparse = options;
      sparse.recipe = one.recipe;
      sparse.pattern = one.pattern.str();
      counted.push_back({one.str(), sparsify_config(sparse, init, planner)});
    }
    if (!counted.empty()) dense_flips.emplace(*parts.model, counted);
    std::vector<LayerReport> reports =
        sparsify(*parts.model, sparsify_config(options, init, planner));
    for (LayerReport& report : reports) layers.push_back({std::move(report), std::nullopt});
    for (const auto& [name, layer] : layers_of(*parts.model)) named_layers[name] = layer;
    if (init) give_row_orders();
    optimizer = make_optimizer(*parts.model, options);
    parts.model->train();
  }

  void note(const std::string& text) {
    if (listener != nullptr) listener->on_note(text);
  }

  InitRecord new_init() {
    return load_init(parts.options.init, *parts.model,
                     [this](const std::string& text) { note(text); });
  }
  static InitRecord saved_init(const Json& saved, const std::string& file) {
    WEFT_CHECK(saved.contains("init"), "{}: 'init' is missing", file);
    return InitRecord::from_json(saved["init"], file);
  }

  // Of layers that keep the mask of a file.
  void give_row_orders() {
    for (const auto& [tensor, order] : init->row_orders) {
      const auto layer = named_layers.find(layer_of_weight(tensor).value_or(tensor));
      if (layer == named_layers.end()) continue;
      const LayerSettings& settings = layer->second->settings();
      if (settings.recipe.has_fixed_mask() &&
          settings.pattern == init->sparsity.tensors.at(tensor).pattern) {
        layer->second->give_row_order(order);
      }
    }
  }

  // What the row orders of layers have brought, at the end.
  void note_order_gains() {
    for (PlannedLayer& layer : layers) {
      const auto found = named_layers.find(layer.report.name);
      if (found == named_layers.end() || found->second->state().row_order.empty()) continue;
      const LayerTelemetry t = found->second->telemetry(/*costly=*/true);
      if (t.retained_unpermuted) layer.order = {t.retained, *t.retained_unpermuted};
    }
    record["layers"] = layers_json(layers);
  }

  // A pass without a step: a model that does not fit its data shows before anything is written, and
  // layers that begin sparse have their masks.
  void rehearse() {
    const torch::NoGradGuard no_grad;
    const int64_t samples = parts.options.batch / parts.options.accumulate;
    std::vector<int64_t> first(static_cast<size_t>(samples));
    order.fill(0, first);
    parts.model->eval();
    const Batch batch = parts.source->train_batch(first, 0);
    {
      const Preview preview(*planner);
      parts.model->forward(batch.inputs);
    }
    parts.model->train();
    // What the next step is compared with.
    if (dense_flips)
      position.step == 0 ? dense_flips->begin() : dense_flips->restore(position.step);
  }

  // After a step: what has been measured long enough is decided, and on disk before the next step
  // follows it.
  void settle_plan() {
    planner->settle(position.step);
    if (planner->revision() == revision_told) return;
    revision_told = planner->revision();
    std::vector<PlannedLayer> changed;
    for (PlannedLayer& layer : layers) {
      const auto found = named_layers.find(layer.report.name);
      if (found == named_layers.end()) continue;
      std::optional<LayerPlan> plan = found->second->sparse_plan();
      if (!plan || !plan->is_decided() || (layer.plan && plan->has_paths_of(*layer.plan))) continue;
      layer.plan = std::move(plan);
      changed.push_back(layer);
    }
    record["layers"] = layers_json(layers);
    write_record();
    if (listener != nullptr && !changed.empty()) listener->on_plan(changed);
  }

  // Before anything depends on new choices of the planner, they are written down.
  void record_choices() {
    if (planner->revision() != revision_written) write_record();
  }

  void write_record() {
    revision_written = planner->revision();
    record["plan"] = Json::parse(planner->saved(), "plan");
    if (!record.contains("layers")) record["layers"] = layers_json(layers);
    write_file_atomically(folder->record(), record.dump(2) + "\n");
  }

  // ─── one step ───

  torch::Tensor loss_of(const Batch& batch) {
    const torch::Tensor scores = widened(parts.model->forward(batch.inputs)).flatten(0, -2);
    return torch::nn::functional::cross_entropy(
        scores, batch.targets.flatten(),
        torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(
            parts.options.label_smoothing));
  }

  Batch next_batch(int64_t samples) {
    std::vector<int64_t> chosen(static_cast<size_t>(samples));
    order.fill(position.data_position, chosen);
    Batch batch = parts.source->train_batch(chosen, position.data_position);
    position.data_position += samples;
    return batch;
  }

  bool stopped() const { return stop != nullptr && *stop != 0; }

  // The mean loss of the micro-batches; gradients are those of the mean. Nothing, and nothing has
  // happened, if it was stopped between two of them.
  std::optional<double> accumulate_gradients(StepSplit& split) {
    const int64_t parts_of_batch = parts.options.accumulate, begin = position.data_position;
    std::optional<BeforeStep> before;
    if (stop != nullptr && parts_of_batch > 1) before.emplace(*parts.model);
    double loss = 0.0;
    for (int64_t i = 0; i < parts_of_batch; ++i) {
      if (i > 0 && stopped()) {
        before->restore();
        position.data_position = begin;
        forget_gradients(*optimizer);
        return std::nullopt;
      }
      auto start = Clock::now();
      const Batch batch = next_batch(parts.options.batch / parts_of_batch);
      split.data += seconds_from(start);
      start = Clock::now();
      const torch::Tensor one = loss_of(batch);
      const double value = one.item<double>();
      split.forward += seconds_from(start);
      if (!std::isfinite(value)) fail_not_finite(batch, value);
      loss += value / static_cast<double>(parts_of_batch);
      start = Clock::now();
      (parts_of_batch == 1 ? one : one / static_cast<double>(parts_of_batch)).backward();
      split.backward += seconds_from(start);
    }
    return loss;
  }

  std::string parameter_not_finite() {
    for (const auto& parameter : parts.model->named_parameters()) {
      if (!torch::isfinite(parameter.value()).all().item<bool>()) {
        return fmt::format("the parameter {} is not finite", parameter.key());
      }
    }
    return "every parameter is finite";
  }

  [[noreturn]] void fail_not_finite(const Batch& batch, double loss) {
    const torch::NoGradGuard no_grad;
    const LayerModule::FiniteWatch watch;
    parts.model->forward(batch.inputs);
    const std::string where =
        watch.first().empty()
            ? parameter_not_finite()
            : fmt::format("the first layer whose product is not finite is {}", watch.first());
    throw Error(fmt::format(
        "step {}: the loss is {}: {}; a lower learning-rate, a longer warmup or clip may help",
        position.step + 1, loss, where));
  }

  // Scales all gradients by clip / norm if the norm is above it, and returns the norm, before. It
  // is that of the model's own parameters: the scores of lbc are bookkeeping of the recipe, and
  // must not shrink the step of the weights. Their gradients are linear in those of the weights,
  // and scaled with them, as a smaller loss would.
  double clip_gradients() {
    std::set<const void*> scores;
    for (const auto& [name, layer] : named_layers) {
      if (layer->scores.defined()) scores.insert(layer->scores.unsafeGetTensorImpl());
    }
    std::vector<torch::Tensor> gradients;
    const torch::NoGradGuard no_grad;
    double sum = 0.0;
    for (const torch::Tensor& parameter : parts.model->parameters()) {
      if (!parameter.grad().defined()) continue;
      gradients.push_back(parameter.grad());
      if (scores.contains(parameter.unsafeGetTensorImpl())) continue;
      const double norm = parameter.grad().norm().item<double>();
      sum += norm * norm;
    }
    const double norm = std::sqrt(sum);
    if (!std::isfinite(norm)) fail_gradient(norm);
    if (parts.options.clip > 0 && norm > parts.options.clip) {
      for (torch::Tensor& gradient : gradients) gradient.mul_(parts.options.clip / norm);
    }
    return norm;
  }

  [[noreturn]] void fail_gradient(double norm) {
    for (const auto& parameter : parts.model->named_parameters()) {
      const torch::Tensor gradient = parameter.value().grad();
      if (!gradient.defined() || torch::isfinite(gradient).all().item<bool>()) continue;
      throw Error(
          fmt::format("step {}: the gradient of {} is not finite; a lower learning-rate, a longer "
                      "warmup or clip may help",
                      position.step + 1, parameter.key()));
    }
    throw Error(fmt::format("step {}: the norm of the gradients is {}", position.step + 1, norm));
  }

  // Whether it was taken, and not stopped.
  bool take_step() {
    const RunOptions& options = parts.options;
    const auto start = Clock::now();
    const bool costly =
        options.telemetry_every > 0 && (position.step + 1) % options.telemetry_every == 0;
    for (const auto& [name, layer] : named_layers) {
      layer->clear_times();
      layer->measure_cosine(costly);
    }
    StepSplit split;
    StepReport report;
    report.learning_rate = learning_rate_at(options, position.step);
    set_learning_rate(*optimizer, report.learning_rate);
    forget_gradients(*optimizer);
    const std::optional<double> loss = accumulate_gradients(split);
    if (!loss) return false;
    report.loss = *loss;
    auto part = Clock::now();
    report.gradient_norm = clip_gradients();
    split.clip = seconds_from(part);
    part = Clock::now();
    weft::step(*parts.model, *optimizer);
    split.step = seconds_from(part);
    report.seconds = seconds_from(start);
    report.step = ++position.step;
    after_step(report, split, costly);
    return true;
  }

  void after_step(StepReport& report, const StepSplit& split, bool costly) {
    const auto ms = [](double seconds) { return std::round(1e6 * seconds) * 1e-3; };
    const ModelTelemetry telemetry = telemetry_of(named_layers, costly);
    report.flip_rate = telemetry.flip_rate;
    Json counted = Json::object();
    if (dense_flips) {
      dense_flips->count(position.step);
      report.flip_rate = dense_flips->rates(0).last;
      for (size_t i = 0; i < dense_flips->names().size(); ++i) {
        counted.append(dense_flips->names()[i], dense_flips->rates(i).last);
      }
    }
    report.density = telemetry.density;
    position.flips += report.flip_rate;
    position.train_seconds += report.seconds;
    // What ran sparse while nothing was decided says something only of a run that ends so.
    position.products.insert(telemetry.sparse_products.begin(), telemetry.sparse_products.end());
    if (position.step == parts.options.steps) {
      position.products.insert(telemetry.open_products.begin(), telemetry.open_products.end());
    }
    settle_plan();
    Json line{{"step", report.step},
              {"loss", report.loss},
              {"learning_rate", report.learning_rate},
              {"gradient_norm", report.gradient_norm},
              {"flip_rate", report.flip_rate},
              {"density", report.density},
              {"step_ms", ms(report.seconds)},
              {"split_ms",
               {{"data", ms(split.data)},
                {"forward", ms(split.forward)},
                {"backward", ms(split.backward)},
                {"clip", ms(split.clip)},
                {"step", ms(split.step)},
                {"mask", ms(telemetry.times.mask)},
                {"pack", ms(telemetry.times.pack)},
                {"fwd", ms(telemetry.times.products[0])},
                {"bwd_x", ms(telemetry.times.products[1])},
                {"bwd_w", ms(telemetry.times.products[2])}}},
              {"layers", telemetry.layers}};
    if (dense_flips) line.append("dense_flips", counted);
    if (telemetry.measured) line.append("measuring", true);
    metrics->add(line);
    if (listener != nullptr) listener->on_step(report);
  }

  // Nothing if it was stopped.
  std::optional<EvalReport> evaluate_now() {
    EvalOptions options{parts.options.batch / parts.options.accumulate, parts.options.eval_samples,
                        stop};
    if (listener != nullptr) {
      options.progress = [this](int64_t done, int64_t all) { listener->on_evaluating(done, all); };
    }
    std::optional<EvalReport> found = weft::evaluate(*parts.model, *parts.source, options);
    if (!found) return std::nullopt;
    EvalReport& report = *found;
    report.step = position.step;
    if (!std::isfinite(report.loss)) {
      throw Error(fmt::format("step {}: the loss of the evaluation is {}: {}", position.step,
                              report.loss, parameter_not_finite()));
    }
    record_choices();
    metrics->add({{"step", report.step},
                  {"eval_loss", report.loss},
                  {"eval_accuracy", report.accuracy},
                  {"eval_samples", report.samples},
                  {"eval_seconds", report.seconds}});
    if (listener != nullptr) listener->on_eval(report);
    return found;
  }

  bool is_evaluation_step() const {
    const int64_t every = parts.options.eval_every;
    return every > 0 && position.step > 0 && position.step % every == 0 &&
           position.step < parts.options.steps;
  }

  // The mean over the steps of the sparse phase.
  double mean_flip_rate() const {
    const int64_t counted = flip_steps(named_layers, position.step);
    return counted == 0 ? 0.0 : position.flips / static_cast<double>(counted);
  }

  // The median; or the mean, if all steps were measured, or the metrics were truncated: no reason
  // to lose a run.
  double typical_step_seconds() {
    const double mean = position.train_seconds / static_cast<double>(position.step);
    try {
      return typical_seconds(read_step_seconds(folder->metrics(), position.step)).value_or(mean);
    } catch (const Error& error) {
      note(error.what());
      return mean;
    }
  }

  void save() {
    metrics->sync();
    position.metrics_bytes = metrics->bytes();
    record_choices();
    write_checkpoint();
    folder->remove_old_checkpoints();
  }

  void write_checkpoint() {
    save_run_checkpoint(folder->checkpoint(position.step), *parts.model, *optimizer, position);
  }

  // ─── beginning ───

  // The weights of a file are in the folder before the record makes it a run: whenever it is
  // killed, it does not go on from other ones.
  void begin_in(RunFolder empty) {
    folder.emplace(std::move(empty));
    try {
      metrics.emplace(folder->metrics(), 0);
      if (init) write_checkpoint();
      write_record();
    } catch (...) {
      folder->discard();
      throw;
    }
  }

  // ─── going on ───

  // The newest checkpoint that is whole; those that are not are put aside, so that they are not
  // counted among the last two. False if there are some, and none of them is.
  bool load_newest(const Json& saved) {
    const std::string expected = fmt::format("{:08x}", data_checksum);
    WEFT_CHECK(saved.contains("data_crc32") && saved["data_crc32"] == expected,
               "data '{}' is not the data that this run started with (its checksum is {})",
               parts.options.data, expected);
    const RunPosition fresh = position;
    std::vector<int64_t> refused;
    for (const int64_t step : folder->checkpoints()) {
      try {
        position = load_checked(step, fresh.run);
        for (const int64_t one : refused) folder->put_aside(one);
        return true;
      } catch (const std::exception& error) {  // of torch, too
        const std::string what = error.what();
        note(fmt::format("refused: {}", what.substr(0, what.find('\n'))));
        position = fresh;
        refused.push_back(step);
      }
    }
    return refused.empty() && !init;
  }

  RunPosition load_checked(int64_t step, const std::string& run) {
    const auto path = folder->checkpoint(step);
    RunPosition found;
    try {
      found = load_run_checkpoint(path, run, *parts.model, *optimizer);
    } catch (const c10::Error& error) {
      throw Error(
          fmt::format("{}: {}", printable(path.string(), 4096), error.what_without_backtrace()));
    }
    WEFT_CHECK(found.step == step && step <= parts.options.steps &&
                   found.data_position == step * parts.options.batch,
               "{}: step {} at sample {} of the data does not match the end of step {}",
               printable(path.string(), 4096), found.step, found.data_position, step);
    return found;
  }

  void say_what_differs(const Json& saved) {
    const Json now = environment_json(threads(), parse_precision(parts.options.precision));
    for (const Json::Member& member : now.members()) {
      const Json then = saved.contains(member.name) ? saved[member.name] : Json("unknown");
      if (then == member.value) continue;
      note(
          fmt::format("{}: was {}, is {} now: the run continues, but not bit for bit as without "
                      "the interruption",
                      member.name, printable(then.dump()), member.value.dump()));
    }
  }

  std::optional<RunFolder> folder;
  RunParts parts;
  TrainerListener* listener;
  SampleOrder order;
  std::shared_ptr<Planner> planner;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::map<std::string, std::shared_ptr<LayerModule>> named_layers;
  std::vector<PlannedLayer> layers;
  std::optional<MetricsFile> metrics;
  std::optional<DenseFlips> dense_flips;
  const std::atomic<int>* stop = nullptr;  // of the call that is under way
  bool evaluation_due = false;             // of this step, and not yet done
  std::optional<InitRecord> init;          // if the weights are those of a file
  RunPosition position;
  Json record;
  uint32_t data_checksum = 0;
  int64_t revision_written = 0;
  int64_t revision_told = -1;  // to the listener, and in the layers of the record
};

RunParts make_parts(const RunOptions& options) {
  RunParts parts;
  parts.options = options.resolved();
  parts.options.check();
  parts.source = make_batch_source(parts.options);
  parts.model = make_model(parts.options, parts.source->shape());
  return parts;
}

Trainer::Trainer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer::~Trainer() = default;

int64_t Trainer::step() const { return state_->position.step; }
bool Trainer::finished() const { return state_->position.step >= state_->parts.options.steps; }
const RunOptions& Trainer::options() const { return state_->parts.options; }
const BatchSource& Trainer::source() const { return *state_->parts.source; }
Model& Trainer::model() { return *state_->parts.model; }
const std::vector<PlannedLayer>& Trainer::layers() const { return state_->layers; }
void Trainer::save_checkpoint() { state_->save(); }
EvalReport Trainer::evaluate() { return *state_->evaluate_now(); }

namespace {

// A flag that is looked at while this is in scope.
class Stoppable {
 public:
  Stoppable(const std::atomic<int>*& place, const std::atomic<int>* stop) : place_(place) {
    place = stop;
  }
  ~Stoppable() { place_ = nullptr; }
  Stoppable(const Stoppable&) = delete;
  Stoppable& operator=(const Stoppable&) = delete;

 private:
  const std::atomic<int>*& place_;
};

RunParts resolved(RunParts parts) {
  parts.options = parts.options.resolved();
  return parts;
}

}  // namespace

Trainer Trainer::begin(const std::filesystem::path& folder, RunParts parts,
                       const TrainerSetup& setup) {
  RunFolder::require_free(folder);
  if (!parts.options.init.empty()) {
    refuse_overwriting("--out", {folder / "model.safetensors", folder / "packed.safetensors"},
                       {{"--init", Checkpoint::open(parts.options.init).paths()}});
  }
  // What can be wrong with the options shows before anything is written.
  auto state = std::make_unique<State>(resolved(std::move(parts)), setup, nullptr, "");
  state->rehearse();
  if (state->init) {
    for (const std::string& line :
         lost_promises(state->parts.options, *state->init, state->layers, *state->parts.model)) {
      state->note(line);
    }
  }
  state->begin_in(RunFolder::create(folder));
  return Trainer(std::move(state));
}

Trainer Trainer::resume(const std::filesystem::path& folder, RunParts parts,
                        const TrainerSetup& setup) {
  const std::string name = printable(folder.string(), 4096);
  RunFolder held = RunFolder::open(folder);  // from here on the record cannot change
  const Json saved = read_run_record(folder);
  WEFT_CHECK(saved["status"] != "done", "{}: the run is done: see `weft eval {}`", name, name);
  const std::string record = name + "/run.json";
  auto state = std::make_unique<State>(resolved(std::move(parts)), setup, &saved, record);
  state->folder.emplace(std::move(held));
  remember_plan(*state->planner, saved["plan"], record);
  state->say_what_differs(saved["environment"]);
  WEFT_CHECK(state->load_newest(saved), "{}: {}; to start again, choose another folder", name,
             state->folder->checkpoints().empty()
                 ? "there is no checkpoint, so the weights of init are lost"
                 : "no checkpoint can be used: see the lines above");
  state->rehearse();
  state->metrics.emplace(state->folder->metrics(), state->position.metrics_bytes);
  if (state->metrics->bytes() < state->position.metrics_bytes) {
    state->note(fmt::format(
        "{}/metrics.jsonl: lines are missing: it is shorter than when the run was saved", name));
  }
  state->evaluation_due = state->is_evaluation_step() &&
                          !ends_with_evaluation(state->folder->metrics(), state->position.step);
  state->write_record();
  return Trainer(std::move(state));
}

void Trainer::advance(int64_t steps, const std::atomic<int>* stop) {
  State& state = *state_;
  const Stoppable stoppable(state.stop, stop);
  const int64_t every = state.parts.options.checkpoint_every;
  const auto evaluated = [&] {
    if (state.evaluation_due) state.evaluation_due = !state.evaluate_now().has_value();
    return !state.evaluation_due;
  };
  for (int64_t i = 0; i < steps && !state.stopped() && !finished(); ++i) {
    if (!evaluated() || !state.take_step()) return;
    state.evaluation_due = state.is_evaluation_step();
    if (!evaluated()) return;
    if (every > 0 && state.position.step % every == 0 && !finished()) state.save();
  }
}

std::optional<RunResult> Trainer::finish(const std::atomic<int>* stop) {
  State& state = *state_;
  WEFT_CHECK(finished(), "step {} of {}: the run is not finished", state.position.step,
             state.parts.options.steps);
  const Stoppable stoppable(state.stop, stop);
  const std::optional<EvalReport> report = state.evaluate_now();
  if (!report) return std::nullopt;
  RunResult result;
  result.eval = *report;
  state.metrics->sync();
  result.step_seconds = state.typical_step_seconds();
  result.train_seconds = state.position.train_seconds;
  result.flip_rate = state.mean_flip_rate();
  if (state.dense_flips) {
    result.flip_rate = state.dense_flips->rates(0).mean;
    for (size_t i = 0; i < state.dense_flips->names().size(); ++i) {
      result.dense_flips[state.dense_flips->names()[i]] = state.dense_flips->rates(i).mean;
    }
  }
  const ModelTelemetry telemetry = telemetry_of(state.named_layers, /*costly=*/false);
  result.density = telemetry.density;
  result.ends_dense = telemetry.recipes > 0 && telemetry.density == 1.0;
  for (const char* product : {"fwd", "bwd_x", "bwd_w"}) {
    if (!state.position.products.contains(product)) continue;
    result.products += (result.products.empty() ? "" : ", ") + std::string(product);
  }
  export_model(state.folder->model(), *state.parts.model);
  result.model_bytes = file_bytes(state.folder->model());
  if (state.parts.options.exports == "packed" &&
      export_packed(state.folder->model(), state.folder->packed())) {
    result.packed_bytes = file_bytes(state.folder->packed());
  }
  result.peak_bytes = peak_resident_bytes();
  state.note_order_gains();
  state.record["status"] = "done";
  state.record["result"] = to_json(result);
  state.write_record();
  // Nothing is left to go on from.
  std::error_code failure;
  for (const int64_t step : state.folder->checkpoints()) {
    std::filesystem::remove(state.folder->checkpoint(step), failure);
  }
  return result;
}

}  // namespace weft
