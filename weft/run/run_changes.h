// What a run was resumed with instead of the options that it had: "changes" in its run.json.
//
//   [{"step": 12, "was": {"steps": 12}, "is": {"steps": 18}}]
//
// "options" of run.json are those of the last change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/json.h"
#include "weft/run/run_options.h"

namespace weft {

struct RunChange {
  int64_t step = 0;  // steps taken before it
  Json was, is;      // the options that changed, by name

  // The options that the run had before it, by those after it.
  RunOptions undone(const RunOptions& after) const;
  // "learning-rate 0.01 to 0.001, clip 1 to 0.5"
  std::string text() const;
};

// Of a run.json; none if it has no such member. Throws Error that begins with `file`.
std::vector<RunChange> read_changes(const Json& record, const std::string& file);
Json to_json(const std::vector<RunChange>& changes);

// The changes of a run that goes on after `step` with the options `now`: what it went through after
// that step is forgotten. there: the options that it has had last.
std::vector<RunChange> changes_with(std::vector<RunChange> changes, RunOptions there,
                                    const RunOptions& now, int64_t step);

}  // namespace weft
