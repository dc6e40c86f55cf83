// Trainer::State: a run between two steps, and what its trainer does with it.
//
//   trainer.cpp         the loop: begin or resume, advance, finish
//   trainer_setup.cpp   the state made from options, up to the first pass
//   trainer_step.cpp    one step (step_gradients.h) and one evaluation, and what they report
//   trainer_files.cpp   run.json and checkpoints: written as the run goes, read to resume it
//   trainer_ranks.cpp   what the ranks of a run tell each other
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/distributed/gradient_buckets.h"
#include "weft/run/found_lambda.h"
#include "weft/train/dense_flips.h"
#include "weft/train/step_gradients.h"
#include "weft/train/telemetry.h"
#include "weft/train/trainer.h"

namespace weft {

struct Trainer::State {
  // ─── trainer.cpp ───

  double typical_step_seconds();
  RunResult result_of_steps();
  // The model, and the record of a run that is done.
  RunResult write_results(const EvalReport& report);

  // ─── trainer_setup.cpp ───

  // saved: the record of a run that is resumed, and its file; null: a new run.
  State(RunParts run_parts, const TrainerSetup& setup, const Json* saved, const std::string& file);
  InitRecord new_init();
  std::vector<DenseFlips::Counted> flips_to_count() const;
  void require_same_teacher(const Json& saved, const std::string& file) const;
  // The recipes that layers train by, with the λ that is in the record or is found now.
  RunOptions options_of_layers(const TrainerSetup& setup, const Json* saved,
                               const std::string& file);
  // Of layers that keep the mask of a file.
  void give_row_orders();
  // A rule that matches no layer is noted: it is most likely misspelt.
  void note_idle_rules(const std::vector<LayerReport>& reports);
  // A plan of a file, after a pass: whether it was measured elsewhere, or has none of the shapes.
  void note_unsuitable_plan();
  // A pass without a step: a model that does not fit its data shows before anything is written, and
  // layers that begin sparse have their masks.
  void rehearse();

  // ─── trainer_step.cpp ───

  // Whether it was taken, and not stopped.
  bool take_step();
  void after_step(StepReport& report, const StepSplit& split, bool costly);
  // Nothing if it was stopped.
  std::optional<EvalReport> evaluate_now();
  bool is_evaluation_step() const;
  // With other ranks, what they have agreed on.
  bool stopped() const { return ranks ? agreed_to_stop : stop != nullptr && *stop != 0; }
  void note(const std::string& text);

  // ─── trainer_files.cpp ───

  // The weights of a file are in the folder before the record makes it a run: whenever it is
  // killed, it does not resume from other ones.
  void begin_in(RunFolder empty);
  void write_record();
  // Before anything depends on new choices of the planner, they are written down.
  void record_choices();
  // After a step: what has been measured long enough is decided, and on disk before the next step
  // follows it.
  void settle_plan();
  // What the row orders of layers have gained, at the end.
  void record_order_gains();
  void save();
  void write_checkpoint();
  // best.safetensors, and its evaluation in the record, if no evaluation so far had a lower loss. A
  // run that evaluates only at the end needs none: its model is the best.
  void keep_best(const EvalReport& report);
  // After a checkpoint was loaded: a best model of a later step is not of this run as it goes on.
  void forget_later_best();
  // What a finished run is extended from. The run is done without it: a failure is noted.
  void keep_last_checkpoint();
  // How a run that diverged goes on, for a message; empty if it has no checkpoint, or may not.
  std::string way_back() const;
  // The newest checkpoint that is whole; those that are not are put aside, so that they are not
  // counted among the last two. False if there are some, and none of them is.
  bool load_newest(const Json& saved);
  RunPosition load_checked(int64_t step, const std::string& run);
  void note_changed_environment(const Json& saved);
  // Into the record: the options that are not those of the saved one, which is still in its file.
  void record_changes(const Json& saved, const std::string& file);

  // ─── trainer_ranks.cpp ───

  // Whether this process has the folder: it is alone, or rank 0.
  bool writes() const { return !ranks || ranks->is_first(); }
  // Makes sure that data and weights are those of rank 0, and sets up what sums gradients.
  void join_ranks();
  // What all ranks must know of a step before the next one begins; some of it with the gradients.
  void begin_report(double loss);
  double end_report();
  // After a step: the choices of rank 0's planner, if there are new ones.
  void share_plan();
  // Of an evaluation by rank 0, to all. Nothing if it was stopped.
  std::optional<EvalReport> share_evaluation(const std::optional<EvalReport>& report);
  // The checkpoint that rank 0 has loaded, to all.
  void share_checkpoint();

  // ─── members ───

  std::optional<RunFolder> folder;  // none on ranks that do not write
  RunParts parts;
  TrainerListener* listener;
  bool may_change;
  SampleOrder order;
  std::shared_ptr<Planner> planner;
  std::shared_ptr<ProcessGroup> ranks;       // null: one process
  std::unique_ptr<GradientBuckets> buckets;  // with ranks
  torch::Tensor reported;                    // see begin_report
  std::unique_ptr<Transfer> reporting;
  bool agreed_to_stop = false;  // ranks have
  bool ended_early = false;     // the last advance() has
  bool plan_is_coming = false;
  int64_t plan_shared = -1;  // the revision that the other ranks know
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::map<std::string, std::shared_ptr<LayerModule>> named_layers;
  std::vector<PlannedLayer> layers;
  std::optional<MetricsFile> metrics;
  std::optional<DenseFlips> dense_flips;
  const std::atomic<int>* stop = nullptr;  // of the call that is under way
  bool evaluation_due = false;             // of this step, and not yet done
  std::optional<FoundLambda> lambda;       // if it was to be found
  std::optional<InitRecord> init;          // if the weights are those of a file
  std::optional<EvalReport> best;          // that best.safetensors is of
  RunPosition position;
  Json record;
  uint32_t data_checksum = 0;
  int64_t revision_written = 0;
  int64_t revision_told = -1;  // to the listener, and in the layers of the record
};

}  // namespace weft
