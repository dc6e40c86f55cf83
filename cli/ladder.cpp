// weft ladder: what each structure would keep of the weights of a checkpoint, best first.
#include <algorithm>
#include <cmath>

#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/text.h"
#include "weft/mask/diversity.h"
#include "weft/mask/retained.h"
#include "weft/mask/solver.h"
#include "weft/pack/packed_file.h"
#include "weft/prune/tensor_values.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

struct Rung {
  const char* pattern;
  const char* solver;
  Retained retained;
  Diversity diversity;
};

// Half of the weights in every structure, so that the rungs compare.
std::vector<Rung> rungs() {
  std::vector<Rung> list;
  for (const char* pattern : {"2:4", "4:8", "8:16", "2:4x2", "2:4x4", "2:4x16"}) {
    list.push_back({pattern, "magnitude", {}, {}});
    list.push_back({pattern, "exact", {}, {}});
  }
  for (const char* pattern : {"2:4", "4:8", "8:16"}) {
    list.push_back({pattern, "greedy-keep", {}, {}});
    list.push_back({pattern, "greedy-prune", {}, {}});
  }
  return list;
}

template <typename T>
Retained unstructured_half(std::span<const T> weights) {
  std::vector<T> magnitudes;
  for (const T weight : weights) magnitudes.push_back(std::abs(weight));
  const auto half = magnitudes.begin() + static_cast<std::ptrdiff_t>(magnitudes.size() / 2);
  std::nth_element(magnitudes.begin(), half, magnitudes.end(), std::greater<>());
  Retained sum;
  for (auto it = magnitudes.begin(); it != magnitudes.end(); ++it) {
    sum.total += *it;
    sum.kept += it < half ? *it : 0.0;
  }
  return sum;
}

class LadderCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("file", file_, "Checkpoint: .safetensors, .index.json, or a folder");
    names_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    const Checkpoint checkpoint = Checkpoint::open(file_);
    require_unpacked(checkpoint);
    const Selection selection = names_.selection(checkpoint);
    Progress progress("solving", checkpoint.bytes());
    for (const ShardedTensor& tensor : checkpoint.tensors()) {
      if (const auto reason = selection.left_alone(tensor.info)) {
        skipped_.push_back(skipped(tensor.info, *reason));
      } else if (tensor.info.bytes() > 0) {
        climb(checkpoint, selection.weight(tensor));
        ++climbed_;
      }
      progress.add(tensor.info.bytes());
    }
    progress.finish();
    WEFT_CHECK(climbed_ > 0, "{}: no weights to compare structures on: {}", file_,
               nothing_selected(skipped_));
    std::stable_sort(rungs_.begin(), rungs_.end(), [](const Rung& a, const Rung& b) {
      return a.retained.kept > b.retained.kept;
    });
    common_.json ? report_json() : report();
    return 0;
  }

 private:
  void climb(const Checkpoint& checkpoint, const StoredWeight& weight) {
    const std::vector<std::byte> bytes = read_weight(checkpoint, weight);
    const WeightShape shape = weight.shape();
    naming_weights(checkpoint, weight, 0, [&] {
      with_weights(weight.tensor.info.dtype, bytes, [&](auto weights) {
        for (Rung& rung : rungs_) {
          const Pattern pattern = Pattern::parse(rung.pattern);
          const Mask mask = find_mask(solver(rung.solver), weights.data(), shape, pattern);
          rung.retained += retained(weights.data(), shape, mask);
          rung.diversity += weft::diversity(shape, pattern);
        }
        unstructured_ += unstructured_half(weights);
      });
    });
  }

  void report() const {
    Table table({"structure", "solver", ">retained L1", ">mask bits/weight"});
    const auto bits = [](double log2, const Diversity& of) {
      return fmt::format("{:.3f}", log2 / static_cast<double>(of.weights));
    };
    const Diversity& any = rungs_.front().diversity;
    table.add({"unstructured 50%", "-", fmt::format("{:.4f}", unstructured_.fraction()),
               bits(any.log2_unstructured, any)});
    for (const Rung& rung : rungs_) {
      const bool transposable = solver(rung.solver).transposable;
      table.add({std::string(rung.pattern) + (transposable ? " transposable" : ""), rung.solver,
                 fmt::format("{:.4f}", rung.retained.fraction()),
                 bits(transposable ? rung.diversity.log2_transposable : rung.diversity.log2_nm,
                      rung.diversity)});
    }
    print(table.str());
    print(fmt::format("\n{}: {} tensors, {} weights; {} tensors skipped\n", file_, climbed_,
                      any.weights, skipped_.size()));
  }

  void report_json() const {
    Json list = Json::array();
    list.push_back({{"structure", "unstructured"},
                    {"transposable", false},
                    {"solver", nullptr},
                    {"retained_l1", unstructured_.fraction()}});
    for (const Rung& rung : rungs_) {
      list.push_back({{"structure", rung.pattern},
                      {"transposable", solver(rung.solver).transposable},
                      {"solver", rung.solver},
                      {"retained_l1", rung.retained.fraction()}});
    }
    print_json({{"file", file_}, {"ladder", list}, {"skipped", to_json(skipped_)}});
  }

  std::string file_;
  CommonFlags common_;
  NameFilter names_;
  std::vector<Rung> rungs_ = rungs();
  Retained unstructured_;
  size_t climbed_ = 0;
  std::vector<Skipped> skipped_;
};

}  // namespace

CommandEntry ladder_command() {
  return {
      "ladder", "Show how much magnitude each structure would keep, best first",
      "  weft ladder model.safetensors\n"
      "  weft ladder model.safetensors --include 'mlp' --json\n"
      "\n"
      "Every structure keeps half of the weights, or a little less for the greedy solvers and at\n"
      "the edges. Memory: about three times the largest tensor.",
      std::make_unique<LadderCommand>()};
}

}  // namespace weft::cli
