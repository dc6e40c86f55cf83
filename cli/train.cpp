// weft train: one run, from the first step or from where it was.
#include <fmt/ranges.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/shared.h"
#include "cli/stop_signal.h"
#include "cli/train_work.h"
#include "weft/core/isa.h"
#include "weft/core/text.h"
#include "weft/core/version.h"
#include "weft/distributed/process_group.h"
#include "weft/kernel/dense/dense.h"
#include "weft/report/export.h"
#include "weft/report/table.h"
#include "weft/run/repeat_command.h"
#include "weft/run/resume_options.h"
#include "weft/train/trainer.h"

namespace weft::cli {
namespace {

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

// "sparse 1.32": the choice, and dense time over sparse time with packing.
std::string product_text(const ProductPlan& plan) {
  if (plan.was_timed()) return fmt::format("{} {:.2f}", plan.path(), plan.ratio);
  const bool given = plan.cause == PlanCause::kSaved || plan.cause == PlanCause::kAskedFor;
  return given ? plan.path() : plan.reason();
}

void print_layers(const std::vector<PlannedLayer>& layers, const TableFlags& tables) {
  Table table({"layer", "kind", "recipe", "pattern", "why"});
  for (const PlannedLayer& layer : layers) {
    const LayerReport& report = layer.report;
    table.add({report.name, report.kind, report.recipe,
               report.pattern.empty() ? "-" : report.pattern, report.reason});
  }
  tables.print(table);
}

// How products of layers run from here on.
void print_plan(const std::vector<PlannedLayer>& layers, const TableFlags& tables) {
  Table table({"layer", "fwd", "bwd_x", "bwd_w"});
  bool ratios = false;
  std::set<std::string> arithmetics;
  for (const PlannedLayer& layer : layers) {
    std::vector<std::string> row = {layer.report.name};
    for (const ProductPlan& plan : layer.plan->products) {
      row.push_back(product_text(plan));
      ratios |= plan.was_timed();
      if (!plan.note.empty()) arithmetics.insert(plan.note);
    }
    table.add(row);
  }
  print("\n");
  tables.print(table);
  if (ratios) {
    tables.print_lines(fmt::format(
        "Measured in this run. A product is sparse if its ratio, dense time / (sparse time + "
        "packing), is above {} (above {} for products below {} ms that need packing).\n",
        kSparseMargin, kSmallProductMargin, kSmallProductMs));
  }
  for (const std::string& arithmetic : arithmetics) tables.print_lines(arithmetic + "\n");
  print("\n");
  std::fflush(stdout);
}

// The magnitude retained with and without a row order, for layers that have one.
void print_orders(const std::vector<PlannedLayer>& layers) {
  Table table({"row order", "pattern", ">retained L1", ">unpermuted"});
  bool any = false;
  for (const PlannedLayer& layer : layers) {
    if (!layer.order) continue;
    any = true;
    table.add({layer.report.name, layer.report.pattern, percent(layer.order->retained),
               percent(layer.order->retained_unpermuted)});
  }
  if (any) print("\n" + table.str());
}

// A line that is rewritten on a terminal, and printed now and then elsewhere.
class TrainDisplay : public TrainerListener {
 public:
  // quiet: standard output belongs to something else; only notes are shown.
  TrainDisplay(bool quiet, const TableFlags& tables) : quiet_(quiet), tables_(tables) {}

  void begin(const Trainer& trainer) {
    steps_ = trainer.options().steps;
    first_ = trainer.step();
    unit_ = trainer.source().unit();
    units_ = static_cast<double>(trainer.options().batch * trainer.source().units_per_sample());
    begun_ = Clock::now();
  }

  void on_step(const StepReport& r) override {
    seconds_ = seconds_ == 0 ? r.seconds : 0.9 * seconds_ + 0.1 * r.seconds;
    flips_ = flips_ < 0 ? r.flip_rate : 0.98 * flips_ + 0.02 * r.flip_rate;
    if (quiet_) return;
    const bool shown = terminal_ ? Clock::now() - drawn_ > std::chrono::milliseconds(100)
                                 : r.step % std::max<int64_t>(1, steps_ / 10) == 0;
    if (!shown && r.step != steps_) return;
    drawn_ = Clock::now();
    const double elapsed = std::chrono::duration<double>(drawn_ - begun_).count();
    const double left =
        elapsed / static_cast<double>(r.step - first_) * static_cast<double>(steps_ - r.step);
    const std::string line =
        fmt::format("step {}/{}  loss {:.4f}  {:.0f} {}/s  flips {:.2e}  {} left", r.step, steps_,
                    r.loss, units_ / seconds_, unit_, flips_, duration_text(left));
    show(line);
  }
  void on_eval(const EvalReport& r) override {
    if (quiet_) return;
    clear();
    print(fmt::format("step {}  eval loss {:.4f}  accuracy {}  ({} samples, {})\n", r.step, r.loss,
                      percent(r.accuracy), r.samples, seconds_text(r.seconds)));
    std::fflush(stdout);
  }
  void on_evaluating(int64_t done, int64_t all) override {
    if (quiet_) return;
    const auto now = Clock::now();
    if (done == 0) drawn_ = now;  // short work needs no line
    const auto wait = terminal_ ? std::chrono::milliseconds(500) : std::chrono::seconds(10);
    if (now - drawn_ < wait) return;
    drawn_ = now;
    show(fmt::format("evaluating: {} of {} samples", done, all));
  }
  void on_note(const std::string& note) override {
    clear();
    std::fputs(fmt::format("weft: {}\n", printable(note, 2000)).c_str(), stderr);
  }
  void on_plan(const std::vector<PlannedLayer>& layers) override {
    if (quiet_) return;
    clear();
    print_plan(layers, tables_);
  }
  void clear() {
    if (on_line_) std::fputs("\r\033[K", stderr);
    on_line_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void show(const std::string& line) {
    if (terminal_) {
      std::fputs(fmt::format("\r{}\033[K", line).c_str(), stderr);
      on_line_ = true;
    } else {
      print(line + "\n");
      std::fflush(stdout);
    }
  }

  const bool terminal_ = ::isatty(STDERR_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  const bool quiet_;
  const TableFlags tables_;
  bool on_line_ = false;
  int64_t steps_ = 0, first_ = 0;
  std::string unit_;
  double units_ = 0.0, seconds_ = 0.0, flips_ = -1.0;
  Clock::time_point begun_, drawn_;
};

// Where a run goes, and with which options; fresh: there is none yet.
struct Start {
  std::string folder;
  RunOptions options;
  bool fresh = true;
};

Start start_of(const TrainArguments& arguments) {
  std::error_code failure;
  if (arguments.starts_or_continues() &&
      std::filesystem::exists(std::filesystem::path(arguments.out) / "run.json", failure)) {
    return {arguments.out,
            options_to_continue(arguments.out, arguments.run.options().resolved(),
                                arguments.run.named()),
            false};
  }
  if (arguments.resume.empty() || arguments.starts_or_continues()) {
    return {arguments.out, arguments.run.options(), true};
  }
  RunOptions options = resume_options(arguments.resume);
  arguments.run.apply(options);
  return {arguments.resume, options, false};
}

bool has_nothing_left(const Start& start, int64_t steps) {
  return !start.fresh && is_finished_run(start.folder) &&
         steps == resume_options(start.folder).steps;
}

// What only a run with more steps would use.
void note_idle_changes(const RunOptions& there, const RunOptions& now) {
  std::string idle;
  for (const OptionField& field : option_fields()) {
    if (field.name == "export" || field.get(there) == field.get(now)) continue;
    idle += fmt::format("{}--{}", idle.empty() ? "" : ", ", field.name);
  }
  if (!idle.empty()) {
    print_note(fmt::format("the run is finished: without more --steps nothing uses {}", idle));
  }
}

void print_finished(const std::string& folder) {
  const RunResult result = read_run_result(folder);
  print(fmt::format(
      "{}: finished after {} steps, with accuracy {} and eval loss {:.4f}. "
      "--resume with more --steps extends it.\n",
      printable(folder, 4096), result.eval.step, percent(result.eval.accuracy), result.eval.loss));
  if (result.packed_bytes > 0) {
    print(fmt::format("packed.safetensors: {}\n", bytes_text(result.packed_bytes)));
  }
}

void print_start(const Trainer& trainer, const ProcessGroup* ranks, const TableFlags& tables) {
  const RunOptions& o = trainer.options();
  print(fmt::format("{} on {}{}, {} at {}, {} steps of {} {}, {}, {}{}\n\n", o.model, o.data,
                    o.init.empty() ? "" : " from " + printable(o.init, 4096), o.recipe, o.pattern,
                    o.steps, o.batch,
                    trainer.source().unit() == "tokens"
                        ? fmt::format("windows of {} bytes", o.context)
                        : trainer.source().unit(),
                    (ranks == nullptr ? "" : fmt::format("{} ranks of ", ranks->size())) +
                        threads_text(threads()),
                    current_isa(), o.precision == "fp32" ? "" : ", " + o.precision));
  print_layers(trainer.layers(), tables);
  const bool sparse = std::ranges::any_of(
      trainer.layers(), [](const PlannedLayer& one) { return !one.report.pattern.empty(); });
  if (o.plan == "auto" && sparse && trainer.step() == 0) {
    print(fmt::format(
        "\nThe first {} sparse steps of a layer alternate dense and sparse products; then "
        "the faster\nones are chosen.\n",
        Trial::kSteps));
  }
  if (trainer.step() > 0) print(fmt::format("\ncontinuing after step {}\n", trainer.step()));
  print("\n");
  std::fflush(stdout);
}

void write_events(const TrainArguments& arguments, const std::string& folder) {
  if (!arguments.tensorboard.empty()) export_tensorboard({folder}, arguments.tensorboard);
}

[[noreturn]] void stop_early(const TrainArguments& arguments, Trainer& trainer,
                             const StopSignal& stop, const std::string& folder,
                             ProcessGroup* ranks) {
  trainer.save_checkpoint();
  if (ranks == nullptr || ranks->is_first()) write_events(arguments, folder);
  if (ranks != nullptr) ranks->leave();
  if (stop.signal() == 0) {
    throw Error(fmt::format("stopped after step {}, as another rank was told to", trainer.step()));
  }
  stop.end_program(fmt::format("stopped after step {}: continue with weft train --resume {}",
                               trainer.step(), shell_word(folder)));
}

// "fwd, bwd_x", or why there is none.
std::string sparse_products_text(const Trainer& trainer, const RunResult& r) {
  if (!r.products.empty()) return r.products;
  const bool any_sparse_layer = std::ranges::any_of(
      trainer.layers(), [](const PlannedLayer& one) { return !one.report.pattern.empty(); });
  if (!any_sparse_layer) return "none";
  if (trainer.options().plan == "auto") return "none: dense was faster for layers of this size";
  return fmt::format("none, because of --plan {}", trainer.options().plan);
}

void print_result(const Trainer& trainer, const RunResult& r) {
  print("\n");
  Table table({"result", ""});
  table.add({"accuracy", percent(r.eval.accuracy)});
  table.add({"eval loss", fmt::format("{:.4f}", r.eval.loss)});
  table.add({"density of sparse layers", fmt::format("{:.4f}", r.density)});
  table.add({"products that ran sparse", sparse_products_text(trainer, r)});
  table.add({"mean flip rate", fmt::format("{:.2e}", r.flip_rate)});
  table.add({"time per step", fmt::format("{:.2f} ms", 1e3 * r.step_seconds)});
  table.add({"training", duration_text(r.train_seconds)});
  table.add({"peak memory", bytes_text(r.peak_bytes)});
  table.add({"model.safetensors", bytes_text(r.model_bytes)});
  if (r.packed_bytes > 0) table.add({"packed.safetensors", bytes_text(r.packed_bytes)});
  print(table.str());
  print_orders(trainer.layers());
  if (r.ends_dense) {
    print(fmt::format("\n{} ends with a dense phase: the model is dense, by design\n",
                      trainer.options().recipe));
  }
}

// Where rank 0 begins, for all ranks: only it looks at the folder.
Start shared_start(const TrainArguments& arguments, ProcessGroup* ranks) {
  if (ranks == nullptr) return start_of(arguments);
  if (ranks->is_first()) {
    Start start = start_of(arguments);
    ranks->text_of_first(Json{{"options", start.options.to_json()}, {"fresh", start.fresh}}.dump());
    return start;
  }
  const std::string name = "the start of rank 0";
  const Json start = Json::parse(ranks->text_of_first(""), name);
  return {arguments.out.empty() ? arguments.resume : arguments.out,
          RunOptions::from_json(start["options"], name), start["fresh"].get<bool>()};
}

// What the flags of a run that is done still ask for.
void settle_finished(const TrainArguments& arguments, const std::string& folder,
                     const RunOptions& options) {
  const RunOptions there = resume_options(folder);
  note_idle_changes(there, options);
  if (options.exports != there.exports) export_finished(folder, options.exports);
  write_events(arguments, folder);
  if (arguments.json) print_json(read_run_record(folder));
  if (!arguments.json) print_finished(folder);
}

int train(const TrainArguments& arguments, const std::shared_ptr<ProcessGroup>& ranks) {
  const bool first = !ranks || ranks->is_first();
  const Start start = shared_start(arguments, ranks.get());
  const auto& [folder, options, fresh] = start;
  if (options.threads > 0) set_threads(static_cast<int>(options.threads));
  RunParts parts = make_parts(options);
  bool nothing_left = first && has_nothing_left(start, parts.options.steps);
  if (ranks) nothing_left = !ranks->text_of_first(nothing_left ? "done" : "").empty();
  if (nothing_left) {
    if (first) settle_finished(arguments, folder, parts.options);
    return 0;
  }
  TrainDisplay display(/*quiet=*/arguments.json, arguments.tables);
  TrainerSetup setup;
  if (first) setup.listener = &display;
  setup.ranks = ranks;
  Trainer trainer = fresh ? Trainer::begin(folder, std::move(parts), setup)
                          : Trainer::resume(folder, std::move(parts), setup);
  if (first && !arguments.json) print_start(trainer, ranks.get(), arguments.tables);
  display.begin(trainer);
  const StopSignal stop;
  trainer.advance(trainer.options().steps, &stop.signal());
  display.clear();
  const bool stopped = ranks ? trainer.stopped() : stop.signal() != 0;
  if (stopped && !trainer.finished()) stop_early(arguments, trainer, stop, folder, ranks.get());
  const std::optional<RunResult> result = trainer.finish(&stop.signal());
  display.clear();
  if (!result) stop_early(arguments, trainer, stop, folder, ranks.get());
  if (!first) return 0;
  write_events(arguments, folder);
  if (arguments.json) print_json(read_run_record(folder));
  if (!arguments.json) print_result(trainer, *result);
  return 0;
}

// What must be equal on all ranks: the numbers of a run depend on it.
Json equal_on_ranks(const TrainArguments& arguments) {
  Json equal{{"weft", kVersion},
             {"libtorch", TORCH_VERSION},
             {"instruction set", current_isa()},
             {"instruction set of dense products", dense_isa()},
             {"--out", arguments.out},
             {"--resume", arguments.resume}};
  const RunOptions options = arguments.run.options();
  for (const OptionField& field : option_fields()) {
    equal.append("--" + field.name, fmt::format("{}", fmt::join(field.get(options), " ")));
  }
  return equal;
}

std::string problem_text(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->what();
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return fmt::format("{}: {}", file->path1().string(), file->code().message());
  }
  return explain_torch_error(error);
}

bool threads_hang = false;

// Shares of the cores, unless somebody has said how many threads there are to be.
void share_cores(const ProcessGroup& ranks) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  set_threads(std::max(1, threads() / ranks.ranks_on_this_host()));
}

}  // namespace

bool has_hanging_threads() { return threads_hang; }

int train_work(const TrainArguments& arguments) {
  const std::optional<RankPlace> place = rank_place();
  if (!place) return train(arguments, nullptr);
  JoinOptions joining;
  joining.patience = std::chrono::seconds(arguments.rank_timeout);
  joining.port = static_cast<int>(arguments.port);
  joining.equal = equal_on_ranks(arguments);
  threads_hang = true;
  std::shared_ptr<ProcessGroup> ranks = ProcessGroup::join(*place, joining);
  share_cores(*ranks);
  std::string problem;
  try {
    const int code = train(arguments, ranks);
    ranks->leave();
    threads_hang = false;
    return code;
  } catch (const RankLost& error) {
    problem = error.what();
    ranks->fail(problem);
  } catch (const std::exception& error) {
    problem = problem_text(error);
    ranks->fail(fmt::format("{} failed: {}", place->name(), problem));
  }
  // Its threads may wait for other ranks, and its destructor for its threads.
  new std::shared_ptr<ProcessGroup>(std::move(ranks));
  throw Error(fmt::format("{}: {}", place->name(), problem));
}

}  // namespace weft::cli
