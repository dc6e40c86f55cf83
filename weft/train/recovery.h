// recovery: how much accuracy each way of converting a trained network costs, on the network itself.
//
//   RecoveryOptions options;
//   options.run = "runs/dense";
//   const RecoveryReport report = measure_recovery(options);
//
// For each pattern and step, the dense weights of the run are converted (prune/conversion.h) and the
// network is evaluated; the files of the run stay as they are. All layers are calibrated on the
// inputs that they have in the dense network.
//
// Memory: the network twice, and the Gram matrices of all converted layers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/pattern.h"
#include "weft/prune/job.h"
#include "weft/train/trainer.h"

namespace weft {

// In the order of the report. kAdaprune: on the support of kMagnitude. kNorms: adaprune, then batch
// normalisation estimated again; left out for networks without it.
enum class RecoveryStep : uint8_t {
  kMagnitude,
  kAbsorption,
  kAdaprune,
  kNorms,
  kWanda,
  kSparseGpt
};
std::string_view step_name(RecoveryStep step);  // "magnitude", "+ norms"

struct RecoveryOptions {
  std::filesystem::path run;  // folder of a finished run, best a dense one
  std::string data;           // instead of the run's, if not empty
  int64_t samples = 512;      // of the training data, to calibrate on
  std::vector<Pattern> patterns = {Pattern(2, 4), Pattern(4, 8), Pattern(1, 4)};
  bool transposable = false;
  bool sparse_ends = false;  // convert the first and the last layer too
};

// One conversion of the network.
struct RecoveryRung {
  Pattern pattern{2, 4};
  RecoveryStep step = RecoveryStep::kMagnitude;
  std::vector<double> errors;  // by layer, see LayerOutcome::error_after
  EvalReport eval;

  double mean_error() const;
  double worst_error() const;
};

struct RecoveryReport {
  RunOptions run;
  int64_t samples = 0;  // that were calibrated on
  EvalReport dense;
  std::vector<RecoveryRung> rungs;  // by pattern, then by step

  // Share of the accuracy lost by magnitude that this rung regains; 0 if magnitude loses none.
  double recovered(const RecoveryRung& rung) const;
  // Layers whose error is below that of another step with the same pattern.
  size_t layers_below(const RecoveryRung& rung, RecoveryStep step) const;

 private:
  const RecoveryRung& rung_of(const Pattern& pattern, RecoveryStep step) const;
};

// listener: progress counts conversions. Throws OptionError if there is no layer to convert without
// sparse_ends, Error that names the file otherwise.
RecoveryReport measure_recovery(const RecoveryOptions& options, const Listener& listener = {});

}  // namespace weft
