// What a run keeps on disk so that it survives a kill: run.json and checkpoints. The order of the
// writes is what makes it safe: choices of the planner before the step that follows them, the
// metrics before the checkpoint that counts their bytes, a new checkpoint before old ones go.
#include "weft/core/atomic_file.h"
#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/run/repeat_command.h"
#include "weft/torch/export_model.h"
#include "weft/train/run_checkpoint.h"
#include "weft/train/trainer_state.h"

namespace weft {

void Trainer::State::begin_in(RunFolder empty) {
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

void Trainer::State::write_record() {
  revision_written = planner->revision();
  if (!writes()) return;
  record["plan"] = Json::parse(planner->saved(), "plan");
  if (!record.contains("layers")) record["layers"] = layers_json(layers);
  write_file_atomically(folder->record(), record.dump(2) + "\n");
}

void Trainer::State::record_choices() {
  if (planner->revision() != revision_written) write_record();
}

void Trainer::State::settle_plan() {
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

void Trainer::State::record_order_gains() {
  for (PlannedLayer& layer : layers) {
    const auto found = named_layers.find(layer.report.name);
    if (found == named_layers.end() || found->second->state().row_order.empty()) continue;
    const LayerTelemetry t = found->second->telemetry(/*costly=*/true);
    if (t.retained_unpermuted) layer.order = {t.retained, *t.retained_unpermuted};
  }
  record["layers"] = layers_json(layers);
}

void Trainer::State::save() {
  if (!writes()) return;
  metrics->sync();
  position.metrics_bytes = metrics->bytes();
  record_choices();
  write_checkpoint();
  folder->remove_old_checkpoints();
}

void Trainer::State::write_checkpoint() {
  save_run_checkpoint(folder->checkpoint(position.step), *parts.model, *optimizer, position);
}

void Trainer::State::keep_best(const EvalReport& report) {
  if (parts.options.eval_every == 0 || (best && best->loss <= report.loss)) return;
  if (!writes()) return;
  export_model(folder->best(), *parts.model);
  best = report;
  record["best"] = to_json(report);
  write_record();
}

void Trainer::State::forget_later_best() {
  if (!best || best->step <= position.step) return;
  best.reset();
  record.erase("best");
}

void Trainer::State::keep_last_checkpoint() {
  try {
    save();
    folder->remove_old_checkpoints(1);
  } catch (const std::exception& error) {  // libtorch's, too: the run is done already
    note(fmt::format("{}; the run is done, but cannot be extended", error.what()));
  }
}

std::string Trainer::State::way_back() const {
  const std::vector<int64_t> saved = folder ? folder->checkpoints() : std::vector<int64_t>();
  if (saved.empty() || !may_change) return "";
  return fmt::format("; continue after step {} with --resume {} --learning-rate X, below {}",
                     saved.front(), shell_word(printable(folder->path().string(), 4096)),
                     parts.options.learning_rate);
}

void Trainer::State::record_changes(const Json& saved, const std::string& file) {
  RunOptions now = parts.options;
  if (now.threads == 0) now.threads = threads();
  const std::vector<RunChange> changes =
      changes_with(read_changes(saved, file), resume_options(folder->path()), now, position.step);
  if (!changes.empty()) record["changes"] = to_json(changes);
}

bool Trainer::State::load_newest(const Json& saved) {
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

RunPosition Trainer::State::load_checked(int64_t step, const std::string& run) {
  const auto path = folder->checkpoint(step);
  RunPosition found;
  try {
    found = load_run_checkpoint(path, run, *parts.model, *optimizer);
  } catch (const c10::Error& error) {
    throw Error(
        fmt::format("{}: {}", printable(path.string(), 4096), error.what_without_backtrace()));
  }
  WEFT_CHECK(found.step == step && found.data_position == step * parts.options.batch,
             "{}: step {} at sample {} of the data does not match the end of step {}",
             printable(path.string(), 4096), found.step, found.data_position, step);
  return found;
}

void Trainer::State::note_changed_environment(const Json& saved) {
  Json now = environment_json(threads(), parse_precision(parts.options.precision));
  now["ranks"] = ranks ? ranks->size() : 1;
  for (const Json::Member& member : now.members()) {
    if (member.name == "cpu" || member.name == "commit") continue;  // need not change a bit
    const Json missing = member.name == "ranks" ? Json(1) : Json("unknown");
    const Json then = saved.contains(member.name) ? saved[member.name] : missing;
    if (then == member.value) continue;
    note(
        fmt::format("{}: was {}, is {} now: the run continues, but not bit for bit as without "
                    "the interruption",
                    member.name, printable(then.dump()), member.value.dump()));
  }
}

}  // namespace weft
