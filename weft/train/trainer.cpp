#include "weft/train/trainer.h"

#include "weft/checkpoint/checkpoint.h"
#include "weft/core/atomic_file.h"
#include "weft/core/same_file.h"
#include "weft/core/text.h"
#include "weft/run/memory.h"
#include "weft/torch/export_model.h"
#include "weft/train/trainer_state.h"

namespace weft {

RunParts make_parts(const RunOptions& options, ModelUse use) {
  RunParts parts;
  parts.options = options.resolved().with_absolute_data();
  parts.options.check();
  parts.source = make_batch_source(parts.options);
  parts.options = parts.options.with_steps_of_epochs(parts.source->train_samples());
  require_memory(parts.options, parts.source->shape(), use);
  parts.model = make_model(parts.options, parts.source->shape());
  parts.teacher = load_teacher(parts.options);
  return parts;
}

Trainer::Trainer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer::~Trainer() = default;

int64_t Trainer::step() const { return state_->position.step; }
bool Trainer::finished() const { return state_->position.step >= state_->parts.options.steps; }
bool Trainer::stopped() const { return state_->ended_early; }
const RunOptions& Trainer::options() const { return state_->parts.options; }
const BatchSource& Trainer::source() const { return *state_->parts.source; }
Model& Trainer::model() { return *state_->parts.model; }
const std::vector<PlannedLayer>& Trainer::layers() const { return state_->layers; }
void Trainer::save_checkpoint() {
  state_->save();
  if (state_->ranks) state_->ranks->wait_for_first();
}
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
  parts.options = parts.options.resolved().with_steps_of_epochs(parts.source->train_samples());
  return parts;
}

// A run goes on with as many steps or more: with fewer, an lbc run would have to remove at once what
// it was to remove later. A finished one needs more, and its last checkpoint.
void require_more_steps(const RunFolder& folder, const Json& saved, int64_t steps,
                        const std::string& record) {
  const std::string name = printable(folder.path().string(), 4096);
  const int64_t taken = RunOptions::from_json(saved["options"], record).steps;
  if (saved["status"] != "done") {
    WEFT_CHECK(steps >= taken, "{}: {} steps for a run of {}: accepted are {} or more", name, steps,
               taken, taken);
    return;
  }
  WEFT_CHECK(steps > taken,
             "{}: the run is done after {} steps: extend it with more, or see `weft eval {}`", name,
             taken, name);
  WEFT_CHECK(!folder.checkpoints().empty(),
             "{}: the run is done, and its last checkpoint is gone: it cannot be extended", name);
}

uint64_t file_bytes(const std::filesystem::path& path) {
  std::error_code failure;
  const auto bytes = std::filesystem::file_size(path, failure);
  return failure ? 0 : bytes;
}

// packed.safetensors is there if `exports` wants it and there are zeros; a run that was extended may
// have one of the model that it had before. Returns its bytes, or 0.
uint64_t settle_packed(const RunFolder& folder, const std::string& exports) {
  if (exports == "packed" && export_packed(folder.model(), folder.packed())) {
    return file_bytes(folder.packed());
  }
  std::error_code failure;
  std::filesystem::remove(folder.packed(), failure);
  return 0;
}

}  // namespace

// The median; or the mean, if all steps were measured, or the metrics were truncated: no reason to
// lose a run.
double Trainer::State::typical_step_seconds() {
  const double mean = position.train_seconds / static_cast<double>(position.step);
  try {
    return typical_seconds(
               read_step_seconds(folder->metrics(), position.step, parts.options.metrics_every))
        .value_or(mean);
  } catch (const Error& error) {
    note(error.what());
    return mean;
  }
}

// All but the evaluation and the files.
RunResult Trainer::State::result_of_steps() {
  RunResult result;
  result.step_seconds = typical_step_seconds();
  result.train_seconds = position.train_seconds;
  // The mean over the steps of the sparse phase.
  const int64_t counted = flip_steps(named_layers, position.step);
  result.flip_rate = counted == 0 ? 0.0 : position.flips / static_cast<double>(counted);
  if (dense_flips) {
    result.flip_rate = dense_flips->rates(0).mean;
    for (size_t i = 0; i < dense_flips->names().size(); ++i) {
      result.dense_flips[dense_flips->names()[i]] = dense_flips->rates(i).mean;
    }
  }
  const ModelTelemetry telemetry = telemetry_of(named_layers, /*costly=*/false);
  result.density = telemetry.density;
  result.ends_dense = telemetry.recipes > 0 && telemetry.density == 1.0;
  for (const char* product : {"fwd", "bwd_x", "bwd_w"}) {
    if (!position.products.contains(product)) continue;
    result.products += (result.products.empty() ? "" : ", ") + std::string(product);
  }
  return result;
}

Trainer Trainer::begin(const std::filesystem::path& folder, RunParts parts,
                       const TrainerSetup& setup) {
  const bool writes = !setup.ranks || setup.ranks->is_first();
  if (writes) RunFolder::require_free(folder);
  if (writes && !parts.options.init.empty()) {
    refuse_overwriting(
        "--out",
        {folder / "best.safetensors", folder / "model.safetensors", folder / "packed.safetensors"},
        {{"--init", Checkpoint::open(parts.options.init).paths()}});
  }
  // What can be wrong with the options shows before anything is written.
  auto state = std::make_unique<State>(resolved(std::move(parts)), setup, nullptr, "");
  state->rehearse();
  if (!writes) return Trainer(std::move(state));
  state->note_unsuitable_plan();
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
  if (setup.ranks && !setup.ranks->is_first()) return follow(std::move(parts), setup);
  const std::string name = printable(folder.string(), 4096);
  RunFolder held = RunFolder::open(folder);  // from here on the record cannot change
  const Json saved = read_run_record(folder);
  const std::string record = name + "/run.json";
  require_more_steps(held, saved, parts.options.steps, record);
  if (setup.ranks) setup.ranks->text_of_first(saved.dump());
  auto state = std::make_unique<State>(resolved(std::move(parts)), setup, &saved, record);
  state->folder.emplace(std::move(held));
  remember_plan(*state->planner, saved["plan"], record);
  state->note_changed_environment(saved["environment"]);
  WEFT_CHECK(state->load_newest(saved), "{}: {}; to start again, choose another folder", name,
             state->folder->checkpoints().empty()
                 ? "there is no checkpoint, so the weights of init are lost"
                 : "no checkpoint can be used: see the lines above");
  state->forget_later_best();
  if (state->ranks) state->share_checkpoint();
  state->record_changes(saved, record);
  state->rehearse();
  state->metrics.emplace(state->folder->metrics(), state->position.metrics_bytes);
  if (state->metrics->bytes() < state->position.metrics_bytes) {
    state->note(fmt::format(
        "{}/metrics.jsonl: lines are missing: it is shorter than when the run was saved", name));
  }
  state->evaluation_due = state->is_evaluation_step() &&
                          !ends_with_evaluation(state->folder->metrics(), state->position.step);
  if (state->ranks) state->ranks->text_of_first(state->evaluation_due ? "evaluate" : "");
  state->write_record();
  return Trainer(std::move(state));
}

// What resume() does on other ranks than 0: all that it reads comes from there.
Trainer Trainer::follow(RunParts parts, const TrainerSetup& setup) {
  const std::string record = "run.json of rank 0";
  const Json saved = Json::parse(setup.ranks->text_of_first(""), record);
  auto state = std::make_unique<State>(resolved(std::move(parts)), setup, &saved, record);
  remember_plan(*state->planner, saved["plan"], record);
  state->share_checkpoint();
  state->rehearse();
  state->evaluation_due = !state->ranks->text_of_first("").empty();
  return Trainer(std::move(state));
}

void Trainer::advance(int64_t steps, const std::atomic<int>* stop) {
  State& state = *state_;
  const Stoppable stoppable(state.stop, stop);
  state.agreed_to_stop = state.ended_early = false;
  const int64_t every = state.parts.options.checkpoint_every;
  const auto evaluated = [&] {
    if (state.evaluation_due) state.evaluation_due = !state.evaluate_now().has_value();
    return !state.evaluation_due;
  };
  try {
    for (int64_t i = 0; i < steps && !state.stopped() && !finished(); ++i) {
      if (!evaluated() || !state.take_step()) break;
      state.evaluation_due = state.is_evaluation_step();
      if (!evaluated()) break;
      if (every > 0 && state.position.step % every == 0 && !finished()) state.save();
    }
    state.ended_early = state.stopped();
  } catch (const Diverged& error) {
    throw Diverged(error.what() + state.way_back());
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
  if (state.writes()) result = state.write_results(*report);
  if (state.ranks) state.ranks->wait_for_first();  // what it could not write ends all
  result.eval = *report;
  return result;
}

RunResult Trainer::State::write_results(const EvalReport& report) {
  metrics->sync();
  RunResult result = result_of_steps();
  result.eval = report;
  export_model(folder->model(), *parts.model);
  result.model_bytes = file_bytes(folder->model());
  result.packed_bytes = settle_packed(*folder, parts.options.exports);
  result.peak_bytes = peak_resident_bytes();
  record_order_gains();
  record["status"] = "done";
  record["result"] = to_json(result);
  write_record();
  keep_last_checkpoint();
  return result;
}

RunResult export_finished(const std::filesystem::path& folder, const std::string& exports) {
  const RunFolder held = RunFolder::open(folder);
  RunResult result = read_run_result(folder);
  Json record = read_run_record(folder);
  result.packed_bytes = settle_packed(held, exports);
  record["options"]["export"] = exports;
  record["result"] = to_json(result);
  write_file_atomically(held.record(), record.dump(2) + "\n");
  return result;
}

}  // namespace weft
