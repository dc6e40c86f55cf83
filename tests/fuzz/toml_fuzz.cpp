// Any bytes as a configuration file: either weft::Error that names the file, or options that are in
// range and survive run.json.
#include <cmath>

#include "tests/fuzz/target.h"
#include "weft/run/run_options.h"

namespace weft::fuzz {
namespace {

void require_finite(const RunOptions& options) {
  for (const double value :
       {options.learning_rate, options.momentum, options.beta2, options.weight_decay,
        options.warmup, options.final_rate, options.clip, options.label_smoothing}) {
    require(std::isfinite(value) && value >= 0.0, "an option that is no number");
  }
}

}  // namespace

void toml(Input input) {
  const MemoryFile file(input);
  error_or_success([&] {
    RunOptions options;
    read_config(file.path(), options);
    require_finite(options);
    const Json saved = options.to_json();
    require(RunOptions::from_json(saved, "again").to_json() == saved, "the options changed");
    options.resolved().check();
  });
}

}  // namespace weft::fuzz
