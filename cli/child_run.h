// Runs weft in a separate process, so that its memory can be measured.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/stop_signal.h"
#include "weft/run/run_options.h"

namespace weft::cli {

// Runs this program with other arguments and returns what it prints. Throws Error with what it
// complains of if it fails; ends it and throws Stopped if a signal comes.
std::string output_of_self(const std::vector<std::string>& arguments, const StopSignal& stop);

// The peak of resident memory of a run; `folder` is made for it and removed again.
uint64_t peak_memory_of(const RunOptions& options, const std::filesystem::path& folder,
                        const StopSignal& stop);

}  // namespace weft::cli
