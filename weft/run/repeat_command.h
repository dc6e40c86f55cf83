// The command line that repeats a run.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "weft/run/run_options.h"

namespace weft {

// "weft train --model mlp --seed 2 --plan runs/a/run.json --out runs/a-again": the options that are
// not defaults, and the choices of the run's planner, so that the same machine computes the same
// bits. `options`: resume_options(folder).
std::string repeat_command(const std::filesystem::path& folder, const RunOptions& options);

// One word of a command for sh: in single quotes, if it needs any.
std::string shell_word(std::string_view text);

}  // namespace weft
