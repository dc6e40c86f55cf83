// The options with which a run goes on.
#pragma once

#include <filesystem>
#include <functional>

#include "weft/run/run_options.h"

namespace weft {

// The options of a run, as its run.json has them, with the number of threads that it ran on.
RunOptions resume_options(const std::filesystem::path& folder);

// For a command that starts a run or continues it: the options of the run in the folder, with those
// of `wanted` that were given (by their names) and may change. wanted: resolved. Throws Error that
// names the folder and the option if it is another run.
RunOptions options_to_continue(const std::filesystem::path& folder, const RunOptions& wanted,
                               const std::vector<std::string>& given);

// Throws Error that names the folder and the first option that differs.
void require_same_options(const std::filesystem::path& folder, const RunOptions& there,
                          const RunOptions& wanted,
                          const std::function<bool(const OptionField&)>& may_differ);

}  // namespace weft
