// The command lines that repeat a run.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "weft/run/run_changes.h"
#include "weft/run/run_options.h"

namespace weft {

// "weft train --model mlp --seed 2 --plan runs/a/run.json --out runs/a-again": the options that are
// not defaults, and the choices of the run's planner, so that the same machine computes the same
// bits. `options`: resume_options(folder).
std::string repeat_command(const std::filesystem::path& folder, const RunOptions& options);

// The same of a run with changes: a command per stretch, where each change came at the end of the
// run as it was until then. One that came on the way cannot be repeated by commands: then there are
// none, and the obstacle names it.
struct Repetition {
  std::vector<std::string> commands;
  std::string obstacle;  // "changed after step 40: learning-rate 0.01 to 0.001"
};
Repetition repetition_of(const std::filesystem::path& folder, const RunOptions& options,
                         const std::vector<RunChange>& changes);

// One word of a command for sh: in single quotes, if it needs any.
std::string shell_word(std::string_view text);

}  // namespace weft
