// weft recovery: what a conversion costs a trained network, and what each step gives back.
#include <cmath>

#include "bench/environment.h"
#include "cli/network.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "cli/train_work.h"
#include "weft/prune/conversion.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

// Keeps every Gram matrix: a ladder asks for each of them again and again.
class CachedInputs : public LayerInputs {
 public:
  explicit CachedInputs(const LayerInputs& inputs) : inputs_(inputs) {}
  void check(const std::string& layer, const WeightShape& shape, int64_t samples) const override {
    inputs_.check(layer, shape, samples);
  }
  Gram gram(const std::string& layer, const WeightShape& shape) const override {
    const auto [place, fresh] = grams_.try_emplace(layer);
    if (fresh) place->second = inputs_.gram(layer, shape);
    return place->second;
  }

 private:
  const LayerInputs& inputs_;
  mutable std::map<std::string, Gram> grams_;
};

struct Rung {
  std::string pattern, step;
  std::vector<double> errors;  // by layer
  EvalReport eval;
};

class RecoveryLadder {
 public:
  explicit RecoveryLadder(const RecoveryArguments& arguments) : arguments_(arguments) {}

  void climb_and_report() {
    ModelFlags model = arguments_.model;
    model.weights = model.folder + "/model.safetensors";
    const Checkpoint checkpoint = Checkpoint::open(model.weights);
    Network network(model);
    const CachedInputs inputs(network.inputs());
    const Network::Weights dense = network.weights();
    dense_ = network.evaluate();
    Progress progress("converting", arguments_.patterns.size() * kSteps.size());
    for (const std::string& pattern : arguments_.patterns) {
      for (const std::string step : kSteps) {
        if (step == kNorms && network.norm_tensors().empty()) continue;
        rungs_.push_back(climb(checkpoint, network, inputs, pattern, step));
        network.restore(dense);
        progress.add(1);
      }
    }
    progress.finish();
    arguments_.common.json ? report_json() : report(network);
  }

 private:
  static constexpr const char* kNorms = "+ norms";
  static constexpr std::array kSteps = {"magnitude", "absorption", "adaprune",
                                        kNorms,      "wanda",      "sparsegpt"};

  // One conversion of the dense network, evaluated. "+ norms" is adaprune and what follows it.
  Rung climb(const Checkpoint& checkpoint, Network& network, const LayerInputs& inputs,
             const std::string& pattern, const std::string& step) const {
    ConversionOptions options;
    options.method = method_of(step == kNorms ? "adaprune" : step);
    options.pattern = Pattern::parse(pattern);
    options.transposable = arguments_.transposable;
    options.leave = network.not_converted(arguments_.sparse_ends);
    NameExpressions names;
    names.with_heads = true;  // the network knows its ends
    const Conversion conversion(checkpoint, Selection(names, checkpoint), options, &inputs);
    WEFT_CHECK(!conversion.layers().empty(),
               "{}: no layer to convert: the ends stay dense (see "
               "--sparse-ends)",
               arguments_.model.folder);
    Rung rung{pattern, step, {}, {}};
    std::vector<LayerOutcome> outcomes;
    for (const LayerToConvert& layer : conversion.layers()) {
      outcomes.push_back(conversion.convert(layer, nullptr));
      rung.errors.push_back(*outcomes.back().error_after);
    }
    // Only now: what goes into a layer is what went into it in the dense network.
    for (const LayerOutcome& outcome : outcomes) {
      for (const auto& [tensor, values] : outcome.changed) network.set(tensor.info.name, values);
    }
    if (step == kNorms) network.estimate_norms();
    rung.eval = network.evaluate();
    return rung;
  }

  const Rung& one_shot(const Rung& rung) const {
    return *std::ranges::find_if(rungs_, [&](const Rung& other) {
      return other.pattern == rung.pattern && other.step == "magnitude";
    });
  }

  // Of the accuracy that magnitude alone loses.
  double recovered(const Rung& rung) const {
    const double lost = dense_.accuracy - one_shot(rung).eval.accuracy;
    return lost > 0 ? (rung.eval.accuracy - one_shot(rung).eval.accuracy) / lost : 0.0;
  }

  // Layers whose error is below that of another rung of this pattern.
  std::string better_than(const Rung& rung, const std::string& step) const {
    for (const Rung& other : rungs_) {
      if (other.pattern != rung.pattern || other.step != step) continue;
      size_t better = 0;
      for (size_t i = 0; i < rung.errors.size(); ++i) better += rung.errors[i] < other.errors[i];
      return fmt::format("{}/{}", better, rung.errors.size());
    }
    return "-";
  }

  static double mean(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) /
           static_cast<double>(std::max<size_t>(1, values.size()));
  }

  void report(const Network& network) const {
    Table table({"pattern", "step", ">mean error", ">worst error", ">below one-shot",
                 ">below absorption", ">eval loss", ">accuracy", ">recovered"});
    table.add({"-", "dense", "-", "-", "-", "-", fmt::format("{:.4f}", dense_.loss),
               percent(dense_.accuracy), "-"});
    for (const Rung& rung : rungs_) {
      const bool first = rung.step == "magnitude";
      table.add({rung.pattern, rung.step, fmt::format("{:.5f}", mean(rung.errors)),
                 fmt::format("{:.5f}", std::ranges::max(rung.errors)),
                 first ? "-" : better_than(rung, "magnitude"),
                 first || rung.step == "absorption" ? "-" : better_than(rung, "absorption"),
                 fmt::format("{:.4f}", rung.eval.loss), percent(rung.eval.accuracy),
                 first ? "-" : fmt::format("{:.0f}%", 100 * recovered(rung))});
    }
    const bench::Environment on = bench::environment();
    print(table.str());
    print(fmt::format(
        "\n{} on {}{}, {} training samples to calibrate on, {} test samples; errors are of "
        "layers,\n"
        "below: layers with less of it than that step of the pattern; recovered: of the accuracy "
        "that\nmagnitude loses. {}, {}, commit {}\n",
        network.options().model, network.options().data,
        arguments_.transposable ? ", transposable" : "",
        std::min(arguments_.model.samples, network.source().train_samples()), dense_.samples,
        on.cpu, on.isa, on.commit));
  }

  void report_json() const {
    Json list = Json::array();
    for (const Rung& rung : rungs_) {
      list.push_back({{"pattern", rung.pattern},
                      {"step", rung.step},
                      {"transposable", arguments_.transposable},
                      {"errors", rung.errors},
                      {"eval_loss", rung.eval.loss},
                      {"eval_accuracy", rung.eval.accuracy},
                      {"recovered", recovered(rung)}});
    }
    print_json({{"run", arguments_.model.folder},
                {"samples", arguments_.model.samples},
                {"dense", {{"eval_loss", dense_.loss}, {"eval_accuracy", dense_.accuracy}}},
                {"rungs", list}});
  }

  const RecoveryArguments& arguments_;
  EvalReport dense_;
  std::vector<Rung> rungs_;
};

}  // namespace

int recovery_work(const RecoveryArguments& arguments) {
  arguments.common.apply();
  RecoveryLadder(arguments).climb_and_report();
  return 0;
}

}  // namespace weft::cli
