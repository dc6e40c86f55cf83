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
inline constexpr std::array kTrainCommands = {kBenchLayer};

CommandEntry bench_layer_command();

}  // namespace weft::cli
