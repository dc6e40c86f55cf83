// What weft-train does: the work of each of its commands, whose arguments are checked.
#pragma once

#include "cli/train_commands.h"

namespace weft::cli {

int train_work(const TrainArguments& arguments);
// Whether threads of it wait for ranks that may never answer: the process must not wait for them.
bool has_hanging_threads();
int compare_work(const CompareArguments& arguments);
int eval_work(const EvalArguments& arguments);
int recovery_work(const RecoveryArguments& arguments);
int bench_layer_work(const BenchLayerArguments& arguments);
int bench_step_work(const BenchStepArguments& arguments);
int bench_ranks_work(const BenchStepArguments& arguments);  // --processes

std::string explain_torch_error(const std::exception& error);

}  // namespace weft::cli
