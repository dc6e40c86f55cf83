// The result of a run, as in its run.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "weft/core/json.h"

namespace weft {

struct EvalReport {
  int64_t step = 0;
  double loss = 0.0;
  double accuracy = 0.0;
  int64_t samples = 0;
  double seconds = 0.0;
};

struct RunResult {
  EvalReport eval;
  double step_seconds = 0.0;  // the median
  double train_seconds = 0.0;
  double density = 1.0;  // of the weights of sparse layers, at the end
  // Changed mask bits per weight and step, the mean over the steps of the sparse phase. Of a dense
  // run that counts (counted_flips), the first of dense_flips.
  double flip_rate = 0.0;
  std::map<std::string, double> dense_flips;  // by RecipeAtPattern::str()
  bool ends_dense = false;                    // the recipe leaves dense weights, by design
  std::string products;                       // that ran sparse in some layer: "fwd, bwd_x"
  uint64_t model_bytes = 0;
  uint64_t packed_bytes = 0;  // 0: not asked for
  uint64_t peak_bytes = 0;    // of resident memory, of the whole process
};
Json to_json(const RunResult& result);
// The best evaluation so far, that best.safetensors is of: "best" in run.json. Nothing if there is
// none yet. `file`: the record's, for messages.
Json to_json(const EvalReport& eval);
std::optional<EvalReport> best_evaluation(const Json& record, const std::string& file);
// Of a finished run, from its run.json. Throws Error if it is not finished.
RunResult read_run_result(const std::filesystem::path& folder);

}  // namespace weft
