// Trainer: a training run in a folder (run/run_folder.h), step by step, that survives being killed.
//
//   RunParts parts = make_parts(options);
//   Trainer trainer = Trainer::begin("runs/first", parts);
//   while (!trainer.finished()) trainer.advance(100);
//   RunResult result = trainer.finish();
//
// A step is: batches ─► loss ─► backward ─► clip ─► weft::step. All that it depends on is a
// function of the options and of what a checkpoint holds, so a run that is resumed goes on bit for
// bit, on the same number of threads and instruction set: choices of the planner are in run.json
// before they matter.
//
// On several ranks (TrainerSetup::ranks) each computes its share of every batch, and the gradients
// are summed. All ranks call the same functions in the same order. Rank 0 evaluates, has the folder
// and writes; the others need neither the folder nor its disk. What a run depends on is still its
// options alone, and the number of ranks as it does on the number of threads: in the last bits.
//
// The library does not print: it calls a listener. Long work checks a flag between batches and ends
// early if it is set, with nothing lost: save_checkpoint(), and resume later.
#pragma once

#include <torch/optim/optimizer.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/distributed/process_group.h"
#include "weft/run/resume_options.h"
#include "weft/run/run_folder.h"
#include "weft/run/run_result.h"
#include "weft/torch/model.h"
#include "weft/train/batch_source.h"
#include "weft/train/model_memory.h"
#include "weft/train/run_setup.h"
#include "weft/train/teacher.h"

namespace weft {

// What a run is made of. A model or data of one's own goes in here.
struct RunParts {
  RunOptions options;  // resolved
  std::shared_ptr<BatchSource> source;
  std::shared_ptr<Model> model;
  std::shared_ptr<const Teacher> teacher = nullptr;  // null: none
};
RunParts make_parts(const RunOptions& options, ModelUse use = ModelUse::kTraining);

struct StepReport {
  int64_t step = 0;  // steps taken, with this one
  double loss = 0.0;
  double learning_rate = 0.0;
  double gradient_norm = 0.0;  // before clipping
  double flip_rate = 0.0;      // changed mask bits per weight, of the sparse layers
  double density = 1.0;        // of the forward operands, sparse layers only
  double seconds = 0.0;
};

class TrainerListener {
 public:
  virtual ~TrainerListener() = default;
  virtual void on_step(const StepReport&) {}
  virtual void on_eval(const EvalReport&) {}
  // During an evaluation: the samples done, of all.
  virtual void on_evaluating(int64_t /*done*/, int64_t /*all*/) {}
  virtual void on_note(const std::string&) {}  // what a user should know
  // How the products of these layers run from the next step on: it has been decided, or changed.
  virtual void on_plan(const std::vector<PlannedLayer>&) {}
};

struct TrainerSetup {
  TrainerListener* listener = nullptr;
  std::shared_ptr<Planner> planner = nullptr;     // null: as options.plan says
  std::shared_ptr<ProcessGroup> ranks = nullptr;  // null: one process
  bool may_change = true;  // may be resumed with other options; not so a run of a comparison
  // For begin and resume, if they take long (find_lambda.h): then they throw Stopped. May be null.
  const std::atomic<int>* stop = nullptr;
};

class Trainer {
 public:
  // Sets the threads of weft and torch. Throws Error if the folder holds a run. Weights of
  // options.init go into the model, and into a checkpoint of step 0 before there is a run.json.
  // If it fails, no folder is left.
  static Trainer begin(const std::filesystem::path& folder, RunParts parts,
                       const TrainerSetup& setup = {});
  // The parts must be made of the options in run.json (resume_options), but for those that may
  // change: with more steps, a finished run is extended. Its schedules are then those of a run of
  // that many steps; fewer are refused. Takes the newest checkpoint that is whole, and notes those
  // that are not; restarts if there is none, but for a run with options.init, which always has one.
  // That file is not looked at again.
  static Trainer resume(const std::filesystem::path& folder, RunParts parts,
                        const TrainerSetup& setup = {});
  Trainer(Trainer&&) noexcept;
  ~Trainer();

  int64_t step() const;
  bool finished() const;  // all steps are taken
  bool stopped() const;   // the last advance() ended early, because of `stop` on some rank
  const RunOptions& options() const;
  const BatchSource& source() const;
  Model& model();
  const std::vector<PlannedLayer>& layers() const;

  // Takes at most `steps` steps; evaluates and saves where it is due. Ends early if `stop` is set:
  // an unfinished step or evaluation is repeated when the run is resumed. Throws Error if the loss
  // or a gradient is not finite; the run can be resumed from its last checkpoint. If `stop` is set on
  // one rank, all of them stop after the same step.
  void advance(int64_t steps, const std::atomic<int>* stop = nullptr);
  void save_checkpoint();
  EvalReport evaluate();
  // After the last step: evaluates, writes the model, and marks the run as done. Nothing if `stop`
  // is set before the evaluation has ended; then the run is where it was. On other ranks than 0 the
  // result has the evaluation and no more.
  std::optional<RunResult> finish(const std::atomic<int>* stop);
  RunResult finish() { return *finish(nullptr); }

 private:
  struct State;
  static Trainer follow(RunParts parts, const TrainerSetup& setup);
  explicit Trainer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Of a finished run: packed.safetensors is written or removed, as RunOptions::exports would have it,
// and the record says so. Throws Error if the run is not finished.
RunResult export_finished(const std::filesystem::path& folder, const std::string& exports);

struct EvalOptions {
  int64_t batch = 1;
  int64_t samples = 0;                     // spread evenly over the test samples; 0: all
  const std::atomic<int>* stop = nullptr;  // looked at before every batch
  std::function<void(int64_t done, int64_t all)> progress = {};
};

// Loss and accuracy of a model on test samples, with the weights as they are. The last batch is
// filled up with samples that do not count: all batches have one shape. Nothing if it was stopped.
std::optional<EvalReport> evaluate(Model& model, const BatchSource& source,
                                   const EvalOptions& options);
EvalReport evaluate(Model& model, const BatchSource& source, int64_t batch, int64_t samples);

}  // namespace weft
