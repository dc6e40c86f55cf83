// The λ that a run with decay=auto has found (train/find_lambda.h), and how: "lambda" in run.json.
// It is found once, before the first step: a run that is resumed reads it, one that is repeated is
// given it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/json.h"
#include "weft/recipe/lambda_search.h"
#include "weft/run/run_options.h"

namespace weft {

struct FoundLambda {
  double lambda = 0.0;
  double ratio = 0.0;            // its flip rate / that of dense
  double dense_flip_rate = 0.0;  // of the same masks, in the steps that were counted
  int64_t steps = 0;             // of each trial
  std::vector<LambdaSearch::Trial> trials;
};
Json to_json(const FoundLambda& found);
// Of a record (run.json); nothing if it has none. Throws Error that begins with `file`.
std::optional<FoundLambda> found_lambda(const Json& record, const std::string& file);

// Whether the recipe of the run or of one of its rules has decay=auto.
bool finds_lambda(const RunOptions& options);
// With another recipe in place of each that has decay=auto.
RunOptions with_auto_recipes(const RunOptions& options,
                             const std::function<std::string(const std::string&)>& other);
// With this λ in place of each decay=auto.
RunOptions with_lambda(const RunOptions& options, double lambda);

}  // namespace weft
