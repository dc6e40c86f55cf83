#include "weft/run/run_result.h"

#include <fmt/format.h>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/run/run_folder.h"

namespace weft {
namespace {

EvalReport eval_from(const Json& saved) {
  EvalReport eval;
  eval.step = saved["step"].get<int64_t>();
  eval.loss = saved["eval_loss"].get<double>();
  eval.accuracy = saved["eval_accuracy"].get<double>();
  eval.samples = saved["eval_samples"].get<int64_t>();
  return eval;
}

RunResult result_from(const Json& saved) {
  RunResult result;
  result.eval = eval_from(saved);
  result.step_seconds = 1e-3 * saved["step_ms"].get<double>();
  result.train_seconds = saved["train_seconds"].get<double>();
  result.density = saved["density"].get<double>();
  result.flip_rate = saved["flip_rate"].get<double>();
  if (saved.contains("dense_flips")) {
    for (const Json::Member& member : saved["dense_flips"].members()) {
      result.dense_flips[member.name] = member.value.get<double>();
    }
  }
  result.ends_dense = saved["ends_dense"].get<bool>();
  result.products = saved["sparse_products"].get<std::string>();
  result.model_bytes = saved["model_bytes"].get<uint64_t>();
  result.packed_bytes = saved["packed_bytes"].get<uint64_t>();
  result.peak_bytes = saved["peak_resident_bytes"].get<uint64_t>();
  return result;
}

}  // namespace

Json to_json(const RunResult& result) {
  Json dense_flips = Json::object();
  for (const auto& [name, rate] : result.dense_flips) dense_flips.append(name, rate);
  Json object = to_json(result.eval);
  object.append("step_ms", 1e3 * result.step_seconds);
  object.append("train_seconds", result.train_seconds);
  object.append("density", result.density);
  object.append("flip_rate", result.flip_rate);
  object.append("dense_flips", dense_flips);
  object.append("ends_dense", result.ends_dense);
  object.append("sparse_products", result.products);
  object.append("model_bytes", result.model_bytes);
  object.append("packed_bytes", result.packed_bytes);
  object.append("peak_resident_bytes", result.peak_bytes);
  return object;
}

Json to_json(const EvalReport& eval) {
  return {{"step", eval.step},
          {"eval_loss", eval.loss},
          {"eval_accuracy", eval.accuracy},
          {"eval_samples", eval.samples}};
}

std::optional<EvalReport> best_evaluation(const Json& record, const std::string& file) {
  if (!record.contains("best")) return std::nullopt;
  try {
    return eval_from(record["best"]);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: the best evaluation: {}", file, error.what()));
  }
}

RunResult read_run_result(const std::filesystem::path& folder) {
  const Json record = read_run_record(folder);
  const std::string name = printable((folder / "run.json").string(), 4096);
  WEFT_CHECK(record["status"] == "done" && record.contains("result"),
             "{}: the run is not finished: continue it with `weft train --resume`", name);
  try {
    return result_from(record["result"]);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: the result: {}", name, error.what()));
  }
}

}  // namespace weft
