#include "weft/run/run_metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

constexpr size_t kMostMetricsLine = size_t{16} << 20;  // weft's have some kB per hundred layers
constexpr uint64_t kMostSteps = uint64_t{1} << 40;
constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();

// What is not finite is written as null.
double figure_of(const Json& object, std::string_view name, const std::string& where) {
  if (!object.contains(name) || object[name].is_null()) return kNoFigure;
  WEFT_CHECK(object[name].is_number(), "{}: '{}' is not a number", where, name);
  return object[name].get<double>();
}

int64_t step_of(const Json& line, const std::string& where) {
  WEFT_CHECK(line.is_object() && line.contains("step") && line["step"].is_number_unsigned() &&
                 line["step"].get<uint64_t>() <= kMostSteps,
             "{}: not a line of metrics: 'step' is not a number from 0 to {}", where, kMostSteps);
  return line["step"].get<int64_t>();
}

// An object, or an empty one if there is none.
Json object_of(const Json& line, std::string_view name, const std::string& where) {
  if (!line.contains(name)) return Json::object();
  WEFT_CHECK(line[name].is_object(), "{}: '{}' is not an object", where, name);
  return line[name];
}

Json layers_of(const Json& line, const std::string& where) {
  Json layers = object_of(line, "layers", where);
  for (const Json::Member& layer : layers.members()) {
    WEFT_CHECK(layer.value.is_object(), "{}: layer '{}' is not an object", where,
               printable(layer.name));
  }
  return layers;
}

StepMetrics step_from(const Json& line, const std::string& where) {
  StepMetrics step;
  step.step = step_of(line, where);
  step.loss = figure_of(line, "loss", where);
  step.learning_rate = figure_of(line, "learning_rate", where);
  step.gradient_norm = figure_of(line, "gradient_norm", where);
  step.flip_rate = figure_of(line, "flip_rate", where);
  step.density = figure_of(line, "density", where);
  step.step_ms = figure_of(line, "step_ms", where);
  WEFT_CHECK(step.step_ms >= 0.0, "{}: 'step_ms' is not a time", where);
  const Json split = object_of(line, "split_ms", where);
  for (size_t i = 0; i < kStepParts.size(); ++i) {
    step.part_ms[i] = figure_of(split, kStepParts[i], where);
  }
  step.measuring = line.contains("measuring") && line["measuring"] == true;
  step.layers = layers_of(line, where);
  step.dense_flips = object_of(line, "dense_flips", where);
  return step;
}

EvalReport eval_from(const Json& line, const std::string& where) {
  EvalReport eval;
  eval.step = step_of(line, where);
  eval.loss = figure_of(line, "eval_loss", where);
  eval.accuracy = figure_of(line, "eval_accuracy", where);
  const double samples = figure_of(line, "eval_samples", where);
  eval.samples = samples >= 0 && samples < 0x1p62 ? static_cast<int64_t>(samples) : 0;
  eval.seconds = figure_of(line, "eval_seconds", where);
  return eval;
}

// The next line, without its end; nothing at the end of the file, or if the last line is cut off.
std::optional<std::string_view> next_line(std::ifstream& stream, std::vector<char>& buffer,
                                          const std::string& where) {
  stream.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  const auto bytes = static_cast<size_t>(stream.gcount());
  if (stream.eof()) return std::nullopt;
  WEFT_CHECK(stream.good(), "{}: a line of more than {} bytes", where, kMostMetricsLine);
  return std::string_view(buffer.data(), bytes - 1);
}

}  // namespace

void read_metrics(const std::filesystem::path& path, const MetricsListener& listener) {
  const std::string name = printable(path.string(), 4096);
  std::error_code failure;
  std::ifstream stream;
  if (std::filesystem::is_regular_file(path, failure)) stream.open(path, std::ios::binary);
  WEFT_CHECK(stream.is_open(), "{}: cannot be read", name);
  std::vector<char> buffer(kMostMetricsLine + 1);
  int64_t last_step = 0;
  double seconds = 0.0;
  for (int64_t number = 1;; ++number) {
    const std::string where = fmt::format("{}:{}", name, number);
    const auto text = next_line(stream, buffer, where);
    if (!text) return;
    const Json line = Json::parse(*text, where);
    if (line.is_object() && line.contains("eval_loss")) {
      const EvalReport eval = eval_from(line, where);
      if (listener.on_eval) listener.on_eval(eval, seconds);
      continue;
    }
    StepMetrics step = step_from(line, where);
    WEFT_CHECK(step.step > last_step, "{}: step {} after step {}: steps must be in order", where,
               step.step, last_step);
    seconds += 1e-3 * step.step_ms * static_cast<double>(step.step - last_step);
    step.train_seconds = seconds;
    last_step = step.step;
    if (listener.on_step) listener.on_step(step);
  }
}

double mean_over_layers(const Json& layers, std::string_view figure) {
  double sum = 0.0;
  int count = 0;
  for (const Json::Member& layer : layers.members()) {
    if (!layer.value.contains(figure) || !layer.value[figure].is_number()) continue;
    sum += layer.value[figure].get<double>();
    ++count;
  }
  return count > 0 ? sum / count : kNoFigure;
}

}  // namespace weft
