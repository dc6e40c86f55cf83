// decay=auto: the λ of a run, found in short trials before its first step (recipe/lambda_search.h).
//
// A trial trains the first steps of the run, on its data, weights and learning rates, and counts
// how often masks change in the second half of them, past the beginning of the warm-up: once with
// the layers that have decay=auto dense, for the flips of their masks on dense weights, then with
// one λ after the other. All of them have the same λ. Recipes begin sparse in a trial, also if they
// have a dense head or tail.
//
// Products of trials run dense, so that no time that is measured decides anything: the same options
// find the same λ. Cost: five trials at most, each of a tenth of the run (40 to 200 steps).
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "weft/run/found_lambda.h"
#include "weft/train/init_weights.h"
#include "weft/train/trainer.h"

namespace weft {

// Of each trial.
int64_t lambda_trial_steps(int64_t steps);

// parts.options have decay=auto somewhere, and no checks to fail. Leaves the weights, the buffers
// and torch's random numbers as they were, and the recipes of layers to be given again. `note` is
// told what happens. Throws Stopped if `stop` (may be null) is set, Error if masks of dense weights
// never change in a trial.
FoundLambda find_lambda(const RunParts& parts, const std::optional<InitRecord>& init,
                        const std::atomic<int>* stop,
                        const std::function<void(const std::string&)>& note);

}  // namespace weft
