// The commands of weft-train, which weft lists and passes on.
#pragma once

#include <array>

#include "cli/command.h"

namespace weft::cli {

struct TrainCommandName {
  const char* name;
  const char* description;
};

inline constexpr TrainCommandName kBenchLayer = {
    "bench layer", "One layer's training step, recipes against dense"};
inline constexpr TrainCommandName kTrain = {"train", "Train a network by a recipe"};
inline constexpr TrainCommandName kCompare = {"compare", "Train by several recipes, side by side"};
inline constexpr TrainCommandName kEval = {"eval", "Evaluate the model of a run"};
inline constexpr TrainCommandName kBenchStep = {"bench step",
                                                "Whole training steps, recipes against dense"};
inline constexpr TrainCommandName kRecovery = {
    "recovery", "What converting a trained network costs, and what each step gives back"};
inline constexpr std::array kTrainCommands = {kTrain,    kCompare,    kEval,
                                              kRecovery, kBenchLayer, kBenchStep};

CommandEntry train_command();
CommandEntry compare_command();
CommandEntry eval_command();
CommandEntry recovery_command();
CommandEntry bench_layer_command();
CommandEntry bench_step_command();

}  // namespace weft::cli
