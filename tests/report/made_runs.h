// Folders of runs made by hand, as `weft train` leaves them: what the tests of reports read.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/checkpoint/tensor_files.h"
#include "tests/scratch_folder.h"
#include "weft/checkpoint/sparsity.h"
#include "weft/core/json.h"
#include "weft/run/run_options.h"

namespace weft::test {

struct MadeRun {
  RunOptions options = [] {
    RunOptions options;
    options.model = "mlp";
    options.steps = 40;
    return options;
  }();
  int64_t steps_done = -1;  // -1: all, and the run is finished
  std::string layer = "hidden1";
  // Figures of a step; what is not finite is written as null, as the trainer does.
  std::function<double(int64_t)> loss = [](int64_t step) {
    return 3.0 / static_cast<double>(step);
  };
  std::function<double(int64_t)> accuracy = [](int64_t step) {
    return 0.9 - 0.5 / static_cast<double>(step);
  };
  int64_t eval_every = 10;
  std::function<double(int64_t)> step_ms = [](int64_t) { return 10.0; };

  bool finished() const { return steps_done < 0; }
  int64_t steps() const { return finished() ? options.steps : steps_done; }
};

inline Json made_step(const MadeRun& run, int64_t step) {
  const double ms = run.step_ms(step);
  Json layer{{"flip_rate", 0.01 / static_cast<double>(step)}, {"density", 0.5}};
  if (step % 10 == 0) layer["retained"] = 0.7 + 0.001 * static_cast<double>(step);
  Json layers = Json::object();
  layers.append(run.layer, layer);
  return Json{{"step", step},
              {"loss", run.loss(step)},
              {"learning_rate", 1e-3},
              {"gradient_norm", 0.25},
              {"flip_rate", 0.01 / static_cast<double>(step)},
              {"density", 0.5},
              {"step_ms", ms},
              {"split_ms",
               {{"data", 0.1 * ms},
                {"forward", 0.3 * ms},
                {"backward", 0.4 * ms},
                {"clip", 0.1 * ms},
                {"step", 0.1 * ms},
                {"mask", 0.05 * ms},
                {"pack", 0.05 * ms},
                {"fwd", 0.2 * ms},
                {"bwd_x", 0.1 * ms},
                {"bwd_w", 0.2 * ms}}},
              {"layers", layers}};
}

inline Json made_eval(const MadeRun& run, int64_t step) {
  return Json{{"step", step},
              {"eval_loss", run.loss(step)},
              {"eval_accuracy", run.accuracy(step)},
              {"eval_samples", 500},
              {"eval_seconds", 0.5}};
}

inline Json made_record(const MadeRun& run) {
  const RunOptions options = run.options.resolved();
  Json record{{"format", "weft.run"},
              {"version", 1},
              {"options", options.to_json()},
              {"environment", {{"weft", "0.1.0"}, {"threads", 2}, {"isa", "avx2"}}},
              {"plan", Json::object()},
              {"layers", Json::array()},
              {"status", run.finished() ? "done" : "running"}};
  record["layers"].push_back({{"name", "first"},
                              {"kind", "linear 784 -> 32"},
                              {"recipe", "dense"},
                              {"pattern", ""},
                              {"reason", "the first layer"}});
  record["layers"].push_back({{"name", run.layer},
                              {"kind", "linear 32 -> 32"},
                              {"recipe", options.recipe},
                              {"pattern", options.pattern},
                              {"reason", "the recipe of the config"},
                              {"fwd", {{"choice", "sparse"}, {"reason", "measured: 1.50"}}},
                              {"bwd_x_ragged", {{"choice", "dense"}, {"reason", "measured: 0.90"}}},
                              {"bwd_w", {{"choice", "sparse"}, {"reason", "measured: 1.20"}}}});
  if (run.finished()) {
    record["result"] = Json{{"step", options.steps},
                            {"eval_loss", run.loss(options.steps)},
                            {"eval_accuracy", run.accuracy(options.steps)},
                            {"eval_samples", 500},
                            {"step_ms", 10.0},
                            {"train_seconds", 0.4},
                            {"density", 0.5},
                            {"flip_rate", 1e-3},
                            {"ends_dense", false},
                            {"sparse_products", "fwd, bwd_w"},
                            {"model_bytes", 111856},
                            {"packed_bytes", 0},
                            {"peak_resident_bytes", 195416064}};
  }
  return record;
}

// A weight [outs, ins] in F32 that keeps the first two of every four.
inline void write_made_model(const std::filesystem::path& path, const std::string& weight,
                             int64_t outs = 8, int64_t ins = 12) {
  Metadata metadata;
  Sparsity sparsity;
  sparsity.tensors.emplace(weight, Promise{Pattern(2, 4), Axis::kIn});
  sparsity.store_in(metadata);
  std::vector<float> values(static_cast<size_t>(outs * ins));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 4 < 2 ? 1.0f : 0.0f;
  SafetensorsWriter writer(path, {tensor(weight, Dtype::kF32, {outs, ins})}, metadata);
  writer.write(weight, 0, std::as_bytes(std::span(values)));
  writer.commit();
}

inline std::string made_metrics(const MadeRun& run) {
  std::string metrics;
  for (int64_t step = 1; step <= run.steps(); ++step) {
    metrics += made_step(run, step).dump() + "\n";
    const bool last = run.finished() && step == run.options.steps;
    const bool evaluated = run.eval_every > 0 && step % run.eval_every == 0;
    if (last || evaluated) metrics += made_eval(run, step).dump() + "\n";
  }
  return metrics;
}

inline void write_made_run(const std::filesystem::path& folder, const MadeRun& run) {
  std::filesystem::create_directories(folder);
  put(folder / "run.json", made_record(run).dump(2) + "\n");
  put(folder / "metrics.jsonl", made_metrics(run));
  if (run.finished()) write_made_model(folder / "model.safetensors", run.layer + ".weight");
}

inline MadeRun made_run(const std::string& recipe, int64_t seed) {
  MadeRun run;
  run.options.recipe = recipe;
  run.options.seed = seed;
  return run;
}

// Two recipes with two seeds each, in one folder.
inline void write_made_comparison(const std::filesystem::path& folder) {
  for (const int64_t seed : {1, 2}) {
    for (const std::string recipe : {"dense", "s-ste"}) {
      MadeRun run = made_run(recipe, seed);
      const double better = (recipe == "dense" ? 0.02 : 0.0) + 0.01 * static_cast<double>(seed);
      run.accuracy = [better](int64_t step) {
        return 0.8 + better - 1.0 / static_cast<double>(step + 1);
      };
      write_made_run(folder / fmt::format("{}-seed{}", recipe, seed), run);
    }
  }
}

}  // namespace weft::test
