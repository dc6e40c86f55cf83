#include "weft/prune/convert_layer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/mask/solver.h"
#include "weft/prune/absorb.h"
#include "weft/prune/sparsegpt.h"
#include "weft/prune/support.h"

namespace weft {
namespace {

constexpr std::array kMethods = {
    Method{"magnitude", SupportRule::kMagnitude, Recovery::kNone, "keeps the largest weights"},
    Method{"wanda", SupportRule::kWanda, Recovery::kNone, "Sun et al. 2023"},
    Method{"absorption", SupportRule::kMagnitude, Recovery::kAbsorb,
           "Hubara et al. 2021, its start"},
    Method{"sparsegpt", SupportRule::kSparseGpt, Recovery::kCompensate,
           "Frantar and Alistarh 2023"},
    Method{"adaprune", SupportRule::kSparseGpt, Recovery::kLeastSquares, "Hubara et al. 2021"},
};

SupportRule parse_support(std::string_view text) {
  for (const auto rule : {SupportRule::kMagnitude, SupportRule::kWanda, SupportRule::kSparseGpt}) {
    if (text == support_name(rule)) return rule;
  }
  throw Error(fmt::format("support '{}': accepted are magnitude, wanda, sparsegpt", text));
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

class LayerConversion {
 public:
  explicit LayerConversion(const LayerProblem& problem)
      : problem_(problem), rows_(problem.shape.outs), cols_(problem.shape.cols()) {
    if (problem.inputs == nullptr) return;
    if (problem.free_bias) centered_ = problem.inputs->centered();
    gram_ = problem.free_bias ? &centered_ : problem.inputs;
  }

  ConvertedLayer convert() {
    choose();
    if (problem_.method.recovery != Recovery::kNone) round(result_.weights);
    if (gram_ == nullptr) return std::move(result_);
    const std::vector<double> pruned = kept_only();
    const std::vector<double> energies = energies_of(pruned);
    const double output =
        sum_of(row_energies({problem_.weights, rows_, cols_}, problem_.inputs->view()));
    const auto relative = [&](double error) { return output > 0 ? error / output : 0.0; };
    // Before recovery the bias is where it was.
    result_.error_before = relative(sum_of(energies) + mean_energy(pruned));
    recover(pruned, energies);
    result_.error_after = relative(sum_of(after_));
    if (problem_.free_bias) result_.bias_change = bias_change(result_.weights);
    return std::move(result_);
  }

 private:
  MatrixView<const double> original() const { return {problem_.weights, rows_, cols_}; }

  void choose() {
    const SupportOptions options{problem_.pattern, problem_.transposable, problem_.row_scale,
                                 norms()};
    if (problem_.method.support == SupportRule::kSparseGpt) {
      result_.weights.resize(static_cast<size_t>(rows_ * cols_));
      result_.support =
          sparsegpt(problem_.weights, problem_.shape, gram_->view(),
                    {problem_.pattern, problem_.transposable, problem_.row_scale, problem_.damping},
                    result_.weights.data());
    } else {
      result_.support = find_support(problem_.weights, problem_.shape, options);
      result_.weights = kept_only();
      if (problem_.method.recovery == Recovery::kAbsorb) absorb_into(result_.weights);
    }
  }

  // Wanda's; empty for others.
  std::span<const double> norms() {
    if (problem_.method.support != SupportRule::kWanda) return {};
    for (int64_t c = 0; c < cols_; ++c) {
      norms_.push_back(std::sqrt(std::max(0.0, problem_.inputs->diagonal(c))));
    }
    // Among inputs that are never there the largest weights stay.
    const double least = 1e-6 * std::ranges::max(norms_);
    for (double& norm : norms_) norm = std::max(norm, least);
    return norms_;
  }

  std::vector<double> kept_only() const {
    std::vector<double> kept(static_cast<size_t>(rows_ * cols_));
    parallel_for(rows_, [&](int64_t r) {
      for (int64_t c = 0; c < cols_; ++c) {
        if (result_.support.at(r, c))
          kept[static_cast<size_t>(r * cols_ + c)] = original().row(r)[c];
      }
    });
    return kept;
  }

  void absorb_into(std::vector<double>& weights) const {
    weights.resize(static_cast<size_t>(rows_ * cols_));
    absorb_means(problem_.weights, problem_.shape, problem_.pattern.group(), result_.support,
                 weights.data());
  }

  // By row: mean ‖W'x − Wx‖², the bias moved if it may.
  std::vector<double> energies_of(const std::vector<double>& weights) const {
    return row_energies({difference(weights).data(), rows_, cols_}, gram_->view());
  }
  std::vector<double> difference(const std::vector<double>& weights) const {
    std::vector<double> d(weights.size());
    std::transform(weights.begin(), weights.end(), problem_.weights, d.begin(), std::minus<>());
    return d;
  }

  // (W − W') mean: what the bias has to gain.
  std::vector<double> bias_change(const std::vector<double>& weights) const {
    std::vector<double> change(static_cast<size_t>(rows_));
    parallel_for(rows_, [&](int64_t r) {
      double sum = 0.0;
      for (int64_t c = 0; c < cols_; ++c) {
        sum += (original().row(r)[c] - weights[static_cast<size_t>(r * cols_ + c)]) *
               problem_.inputs->mean[static_cast<size_t>(c)];
      }
      change[static_cast<size_t>(r)] = sum;
    });
    return change;
  }
  // What an error grows by if the bias stays.
  double mean_energy(const std::vector<double>& weights) const {
    if (!problem_.free_bias) return 0.0;
    double sum = 0.0;
    for (const double change : bias_change(weights)) sum += change * change;
    return sum;
  }

  void recover(const std::vector<double>& pruned, const std::vector<double>& energies) {
    if (problem_.method.recovery != Recovery::kLeastSquares) {
      after_ =
          problem_.method.recovery == Recovery::kNone ? energies : energies_of(result_.weights);
      return;
    }
    // Begins with the best that is at hand, row by row, and ends with nothing worse.
    std::vector<double> best = pruned;
    after_ = energies;
    take_better(result_.weights, best);  // sparsegpt's, if the support is its
    std::vector<double> absorbed;
    absorb_into(absorbed);
    round(absorbed);
    take_better(absorbed, best);
    std::vector<double> solved = best;
    result_.solver = least_squares(original(), gram_->view(), result_.support,
                                   problem_.least_squares, {solved.data(), rows_, cols_});
    round(solved);
    take_better(solved, best);
    result_.weights = std::move(best);
  }

  // To what the file can hold.
  void round(std::vector<double>& weights) const {
    if (problem_.dtype == Dtype::kF64) return;
    std::vector<std::byte> bytes(weights.size() * static_cast<size_t>(dtype_bits(problem_.dtype)) /
                                 8);
    round_weights(weights, problem_.dtype, bytes);
    with_weights(problem_.dtype, bytes,
                 [&](auto rounded) { std::copy(rounded.begin(), rounded.end(), weights.begin()); });
    for (const double weight : weights) {
      WEFT_CHECK(std::isfinite(weight), "a weight becomes too large for {}",
                 dtype_name(problem_.dtype));
    }
  }

  void take_better(const std::vector<double>& other, std::vector<double>& best) {
    if (other == best) return;
    const std::vector<double> energies = energies_of(other);
    for (int64_t r = 0; r < rows_; ++r) {
      const auto row = static_cast<size_t>(r);
      if (!(energies[row] < after_[row])) continue;
      after_[row] = energies[row];
      std::copy_n(other.begin() + r * cols_, cols_, best.begin() + r * cols_);
    }
  }

  const LayerProblem& problem_;
  int64_t rows_, cols_;
  Gram centered_;
  const Gram* gram_ = nullptr;  // what errors are measured by
  std::vector<double> norms_;
  std::vector<double> after_;  // energies of the result, by row
  ConvertedLayer result_;
};

void check_problem(const LayerProblem& problem) {
  problem.shape.check();
  const int64_t rows = problem.shape.outs, cols = problem.shape.cols();
  require_usable(MatrixView<const double>(problem.weights, rows, cols), 0);
  if (problem.inputs == nullptr) {
    WEFT_CHECK(!problem.method.needs_inputs(), "{} needs the inputs of the layer",
               problem.method.name);
    return;
  }
  WEFT_CHECK(problem.row_scale.empty() || static_cast<int64_t>(problem.row_scale.size()) == rows,
             "{} scales for {} rows", problem.row_scale.size(), rows);
  WEFT_CHECK(problem.inputs->cols == cols, "inputs of {} columns for weights of {}",
             problem.inputs->cols, cols);
  const int64_t needed = samples_needed(problem.method, problem.shape, problem.pattern);
  WEFT_CHECK(problem.inputs->samples == 0 || problem.inputs->samples >= needed,
             "{} samples: {} at {} needs {}, one per kept weight of a row", problem.inputs->samples,
             problem.method.name, problem.pattern.str(), needed);
}

}  // namespace

std::string_view support_name(SupportRule rule) {
  switch (rule) {
    case SupportRule::kMagnitude: return "magnitude";
    case SupportRule::kWanda: return "wanda";
    case SupportRule::kSparseGpt: return "sparsegpt";
  }
  return "?";
}

std::span<const Method> methods() { return kMethods; }

Method method_of(std::string_view name, std::string_view support) {
  std::string known;
  for (Method method : kMethods) {
    known += (known.empty() ? "" : ", ") + std::string(method.name);
    if (method.name != name) continue;
    if (support.empty()) return method;
    const SupportRule rule = parse_support(support);
    WEFT_CHECK(method.chooses_support(), "method {} has a support of its own", name);
    WEFT_CHECK(rule != SupportRule::kSparseGpt || method.recovery == Recovery::kLeastSquares,
               "method {}: accepted supports are magnitude and wanda", name);
    method.support = rule;
    return method;
  }
  throw Error(fmt::format("method '{}': known are {}", name, known));
}

int64_t kept_per_row(const WeightShape& shape, const Pattern& pattern) {
  const int64_t tail = shape.ins % pattern.group();
  return shape.taps *
         (shape.ins / pattern.group() * pattern.keep() + std::min<int64_t>(tail, pattern.keep()));
}

int64_t samples_needed(const Method& method, const WeightShape& shape, const Pattern& pattern) {
  const bool solves =
      method.recovery == Recovery::kLeastSquares || method.support == SupportRule::kSparseGpt;
  return solves ? kept_per_row(shape, pattern) : 1;
}

ConvertedLayer convert_layer(const LayerProblem& problem) {
  check_problem(problem);
  return LayerConversion(problem).convert();
}

}  // namespace weft
