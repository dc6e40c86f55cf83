// The commands that need libtorch, and their arguments.
//
// Loading libtorch takes longer than most commands. So weft reads and checks arguments by itself,
// and help and wrong usage come at once; only then it becomes weft-train (main.cpp), which reads
// them again and does the work.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/step_shape.h"
#include "cli/command.h"
#include "cli/convert.h"
#include "cli/run_flags.h"
#include "cli/shared.h"
#include "weft/run/compare_options.h"

namespace weft::cli {

// Each has declare(), and check(), which throws UsageError if flags do not go together, and Error
// if a file that they name cannot be read.
struct TrainArguments {
  RunFlags run;
  std::string out, resume, tensorboard;
  int64_t port = 0, rank_timeout = 30;  // of several ranks
  bool json = false;
  TableFlags tables;

  void declare(Flags& flags);
  void check() const;
  // --out DIR --resume auto: starts the run, or continues it if there is one.
  bool starts_or_continues() const { return resume == "auto"; }
};

struct CompareArguments {
  RunFlags run;
  std::string recipes, out, tensorboard, budget;
  std::vector<std::string> patterns = {"2:4"};
  int64_t seeds = 3;
  bool no_memory = false, brief = false, json = false;
  TableFlags tables;

  void declare(Flags& flags);
  void check() const;
  CompareOptions options() const;
};

struct EvalArguments {
  std::string folder, weights, data;
  int64_t samples = -1, threads = 0;
  bool json = false;

  void declare(Flags& flags);
  void check() const {}
};

struct RecoveryArguments {
  ModelFlags model;
  std::vector<std::string> patterns = {"2:4", "4:8", "1:4"};
  bool transposable = false, sparse_ends = false;
  TableFlags tables;
  CommonFlags common;

  void declare(Flags& flags);
  void check() const {}
};

struct BenchLayerArguments {
  std::vector<std::string> shapes = {"2048x768x3072"};
  std::vector<std::string> recipes;  // all but dense
  std::vector<std::string> patterns = {"2:4"};
  std::string plan = "auto";
  int64_t rounds = 5, threads = 0;
  bool json = false;
  TableFlags tables;

  BenchLayerArguments();
  void declare(Flags& flags);
  static bool measures() { return true; }
  void check() const;
};

struct BenchStepArguments {
  std::string model = "block";
  bench::BlockShape block;
  bench::ResnetShape resnet;
  std::vector<std::string> recipes = {"t-sr-ste"};
  std::vector<std::string> patterns = {"2:4", "2:4x2", "1:4", "1:8x2"};
  std::string plan = "auto", precision = "fp32";
  int64_t width = 0;  // 0: that of the model
  int64_t rounds = 4, threads = 0, processes = 1;
  bool no_plain = false, no_memory = false, only_memory = false, json = false;
  TableFlags tables;

  void declare(Flags& flags);
  bool measures() const { return !only_memory; }
  void check() const;
  bench::StepShape shape() const;
  // With all recipes but dense in place of "all".
  std::vector<std::string> all_recipes() const;
};

// What follows once arguments are checked; returns the exit code.
template <typename Arguments>
using Work = std::function<int(const Arguments&)>;

CommandEntry train_command(Work<TrainArguments> work);
CommandEntry compare_command(Work<CompareArguments> work);
CommandEntry eval_command(Work<EvalArguments> work);
CommandEntry recovery_command(Work<RecoveryArguments> work);
CommandEntry bench_layer_command(Work<BenchLayerArguments> work);
CommandEntry bench_step_command(Work<BenchStepArguments> work);

}  // namespace weft::cli
