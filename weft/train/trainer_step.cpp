// One step of a run and one evaluation: what they compute, write to metrics.jsonl, and report.
#include <cmath>

#include "weft/torch/step.h"
#include "weft/train/optimizer.h"
#include "weft/train/trainer_state.h"

namespace weft {
namespace {

// A step as a line of metrics.jsonl (docs/training.md).
Json step_line(const StepReport& report, const StepSplit& split, const ModelTelemetry& telemetry) {
  const auto ms = [](double seconds) { return std::round(1e6 * seconds) * 1e-3; };
  return Json{{"step", report.step},
              {"loss", report.loss},
              {"learning_rate", report.learning_rate},
              {"gradient_norm", report.gradient_norm},
              {"flip_rate", report.flip_rate},
              {"density", report.density},
              {"step_ms", ms(report.seconds)},
              {"split_ms",
               {{"data", ms(split.data)},
                {"forward", ms(split.forward)},
                {"backward", ms(split.backward)},
                {"clip", ms(split.clip)},
                {"step", ms(split.step)},
                {"mask", ms(telemetry.times.mask)},
                {"pack", ms(telemetry.times.pack)},
                {"fwd", ms(telemetry.times.products[0])},
                {"bwd_x", ms(telemetry.times.products[1])},
                {"bwd_w", ms(telemetry.times.products[2])}}},
              {"layers", telemetry.layers}};
}

}  // namespace

void Trainer::State::note(const std::string& text) {
  if (listener != nullptr) listener->on_note(text);
}

bool Trainer::State::take_step() {
  const RunOptions& options = parts.options;
  const auto start = StepClock::now();
  const bool costly =
      options.telemetry_every > 0 && (position.step + 1) % options.telemetry_every == 0;
  for (const auto& [name, layer] : named_layers) {
    layer->clear_times();
    layer->measure_cosine(costly);
  }
  StepSplit split;
  StepReport report;
  report.learning_rate = learning_rate_at(options, position.step);
  set_learning_rate(*optimizer, report.learning_rate);
  forget_gradients(*optimizer);
  const std::optional<double> loss = accumulate_gradients(
      {options, *parts.source, order, *parts.model, *optimizer, ranks ? nullptr : stop, ranks.get(),
       buckets.get(), [this](double own) { begin_report(own); }, parts.teacher.get()},
      position, split);
  if (!loss) return false;
  report.loss = *loss;
  auto part = StepClock::now();
  if (ranks) {
    buckets->finish();
    report.loss = end_report();
    split.reduce = seconds_since(part);
    part = StepClock::now();
  }
  report.gradient_norm =
      clip_gradients(*parts.model, named_layers, options.clip, position.step + 1);
  split.clip = seconds_since(part);
  part = StepClock::now();
  weft::step(*parts.model, *optimizer);
  split.step = seconds_since(part);
  report.seconds = seconds_since(start);
  report.step = ++position.step;
  after_step(report, split, costly);
  return true;
}

void Trainer::State::after_step(StepReport& report, const StepSplit& split, bool costly) {
  const ModelTelemetry telemetry = telemetry_of(named_layers, costly);
  report.flip_rate = telemetry.flip_rate;
  Json counted = Json::object();
  if (dense_flips) {
    dense_flips->count(position.step);
    report.flip_rate = dense_flips->rates(0).last;
    for (size_t i = 0; i < dense_flips->names().size(); ++i) {
      counted.append(dense_flips->names()[i], dense_flips->rates(i).last);
    }
  }
  report.density = telemetry.density;
  position.flips += report.flip_rate;
  position.train_seconds += report.seconds;
  // What ran sparse while nothing was decided says something only of a run that ends so.
  position.products.insert(telemetry.sparse_products.begin(), telemetry.sparse_products.end());
  if (position.step == parts.options.steps) {
    position.products.insert(telemetry.open_products.begin(), telemetry.open_products.end());
  }
  settle_plan();
  if (ranks) share_plan();
  if (!writes()) return;
  Json line = step_line(report, split, telemetry);
  if (buckets) {
    line["split_ms"]["reduce"] = 1e3 * split.reduce;
    line.append("reduced_bytes", buckets->traffic().bytes);
  }
  if (dense_flips) line.append("dense_flips", counted);
  if (telemetry.measured) line.append("measuring", true);
  if (position.step % parts.options.metrics_every == 0) metrics->add(line);
  if (listener != nullptr) listener->on_step(report);
}

std::optional<EvalReport> Trainer::State::evaluate_now() {
  if (!writes()) return share_evaluation(std::nullopt);
  EvalOptions options{parts.options.batch / parts.options.accumulate, parts.options.eval_samples,
                      stop};
  if (listener != nullptr) {
    options.progress = [this](int64_t done, int64_t all) { listener->on_evaluating(done, all); };
  }
  std::optional<EvalReport> found = weft::evaluate(*parts.model, *parts.source, options);
  if (!found) return ranks ? share_evaluation(found) : found;
  EvalReport& report = *found;
  report.step = position.step;
  if (!std::isfinite(report.loss)) {
    throw Diverged(fmt::format("step {}: the loss of the evaluation is {}: {}", position.step,
                               report.loss, parameter_not_finite(*parts.model)));
  }
  record_choices();
  metrics->add({{"step", report.step},
                {"eval_loss", report.loss},
                {"eval_accuracy", report.accuracy},
                {"eval_samples", report.samples},
                {"eval_seconds", report.seconds}});
  keep_best(report);
  if (listener != nullptr) listener->on_eval(report);
  return ranks ? share_evaluation(found) : found;
}

bool Trainer::State::is_evaluation_step() const {
  const int64_t every = parts.options.eval_every;
  return every > 0 && position.step > 0 && position.step % every == 0 &&
         position.step < parts.options.steps;
}

}  // namespace weft
