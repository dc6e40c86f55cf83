#include "weft/prune/least_squares.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <vector>

#include "weft/core/aligned_buffer.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/kernels.h"
#include "weft/prune/double_product.h"

namespace weft {
namespace {

constexpr int64_t kPanelRows = 384;
constexpr int kDelay = 5;   // steps whose gain stands for what is left
constexpr int kCycles = 8;  // at most; one is the rule

// Of G scaled to a diagonal of ones, along a direction of length one: what products take for its
// curvature where there is none. A step along such a direction would be of any length, and move the
// weights where no sample can tell. (Float: 1e-7 and 1e-6 were worse, the one on singular, the
// other on ill-conditioned problems.)
template <typename Real>
constexpr double kNoise = std::is_same_v<Real, float> ? 3e-7 : 1e-15;

// Products in float cannot tell the last of a tight tolerance from their own rounding.
constexpr double kFloatTolerance = 1e-5;

// One row of a panel.
struct RowState {
  int64_t row = 0;                       // of the panel
  double rz = 0.0;                       // residual · preconditioned residual
  double unit = 1.0;                     // of the product at hand: about √rz, a power of two
  double gained = 0.0;                   // by all steps
  double gained_here = 0.0;              // by those of this cycle
  std::array<double, kDelay> last = {};  // gains of the last steps
  int64_t steps = 0;                     // of all cycles
  int64_t steps_here = 0;                // of this one
  bool converged = false;                // as far as this cycle can tell
  bool ended = false;                    // this cycle
  bool done = false;                     // takes no more steps
  bool unfinished = false;               // because it ran into the limit
};

// Real: the type of the products in a step.
template <typename Real>
class PanelSolver {
 public:
  PanelSolver(MatrixView<const double> g, const LeastSquaresOptions& options)
      : g_(g), options_(options), scaled_(static_cast<size_t>(g.rows * g.cols)) {
    for (int64_t c = 0; c < g.cols; ++c) {
      root_.push_back(g.at(c, c) > 0 ? std::sqrt(g.at(c, c)) : 0.0);
      inverse_diagonal_.push_back(g.at(c, c) > 0 ? 1.0 / g.at(c, c) : 0.0);
    }
    parallel_for(g.rows, [&](int64_t r) {
      for (int64_t c = 0; c < g.cols; ++c) {
        const double scale = root_[static_cast<size_t>(r)] * root_[static_cast<size_t>(c)];
        scaled_.data()[r * g.cols + c] =
            scale > 0 ? static_cast<Real>(g.row(r)[c] / scale) : Real{0};
      }
    });
  }

  LeastSquaresReport solve(MatrixView<const double> w, const Mask& support, int64_t first_row,
                           MatrixView<double> x) {
    w_ = w, x_ = x, support_ = &support, first_row_ = first_row;
    const auto size = static_cast<size_t>(w.rows * w.cols);
    for (auto* each : {&r_, &p_, &d_, &true_r_}) each->resize(size);
    step_.reserve(size), product_.reserve(size);
    states_.assign(static_cast<size_t>(w.rows), {});
    for (int64_t r = 0; r < w.rows; ++r) states_[static_cast<size_t>(r)].row = r;

    compute_true_residual();
    for_rows_not_done([&](RowState& state) { begin(state); });
    for (int cycle = 0; cycle < kCycles && anything_left(); ++cycle) {
      run_cycle();
      compute_true_residual();
      for_rows_not_done([&](RowState& state) { judge(state); });
    }
    return report();
  }

 private:
  double* r(const RowState& s) { return r_.data() + s.row * w_.cols; }
  double* p(const RowState& s) { return p_.data() + s.row * w_.cols; }
  double* d(const RowState& s) { return d_.data() + s.row * w_.cols; }
  const double* true_r(const RowState& s) { return true_r_.data() + s.row * w_.cols; }

  template <typename Body>
  void for_rows_not_done(Body body) {
    parallel_for(w_.rows, [&](int64_t row) {
      RowState& state = states_[static_cast<size_t>(row)];
      if (!state.done) body(state);
    });
  }

  bool anything_left() const {
    return std::ranges::any_of(states_, [](const RowState& state) { return !state.done; });
  }

  // ((w − x) G) on the support, in double.
  void compute_true_residual() {
    parallel_for(w_.rows, [&](int64_t row) {
      double* to = d_.data() + row * w_.cols;
      for (int64_t c = 0; c < w_.cols; ++c) to[c] = w_.row(row)[c] - x_.row(row)[c];
    });
    std::ranges::fill(true_r_, 0.0);
    add_product(1.0, {d_.data(), w_.rows, w_.cols}, g_, {true_r_.data(), w_.rows, w_.cols});
    parallel_for(w_.rows, [&](int64_t row) {
      double* residual = true_r_.data() + row * w_.cols;
      for (int64_t c = 0; c < w_.cols; ++c) {
        if (!support_->at(first_row_ + row, c)) residual[c] = 0.0;
      }
    });
  }

  // A cycle of its own, from the true residual.
  void begin(RowState& state) {
    std::copy_n(true_r(state), w_.cols, r(state));
    state.rz = 0.0;
    for (int64_t c = 0; c < w_.cols; ++c) {
      p(state)[c] = r(state)[c] * inverse_diagonal_[static_cast<size_t>(c)];
      state.rz += r(state)[c] * p(state)[c];
    }
    state.last = {};
    state.steps_here = 0;
    state.gained_here = 0.0;
    state.converged = state.ended = false;
    state.done = !(state.rz > 0);
  }

  // Steps with products in float, until every row has ended; then x takes them in.
  void run_cycle() {
    std::ranges::fill(d_, 0.0);
    std::vector<RowState*> active;
    for (RowState& state : states_) {
      if (!state.done) active.push_back(&state);
    }
    while (!active.empty()) {
      multiply(active);
      parallel_for(static_cast<int64_t>(active.size()), [&](int64_t i) {
        take_step(*active[static_cast<size_t>(i)], product_.data() + i * w_.cols);
      });
      std::erase_if(active, [](const RowState* state) { return state->ended; });
    }
    for_rows_not_done([&](RowState& state) {
      double* x = x_.row(state.row);
      for (int64_t c = 0; c < w_.cols; ++c) x[c] += d(state)[c];
    });
  }

  // product: p G of the rows that are still going, one after the other, its columns divided by
  // root_ and by the row's unit, so that neither overflows float, whatever the scale of w and G.
  void multiply(const std::vector<RowState*>& active) {
    const auto count = static_cast<int64_t>(active.size());
    parallel_for(count, [&](int64_t i) {
      RowState& state = *active[static_cast<size_t>(i)];
      const double* from = p(state);
      state.unit = std::exp2(std::floor(0.5 * std::ilogb(state.rz)));
      std::transform(from, from + w_.cols, root_.begin(), step_.data() + i * w_.cols,
                     [unit = state.unit](double value, double root) {
                       return static_cast<Real>(value * root / unit);
                     });
    });
    const MatrixView<const Real> step(step_.data(), count, w_.cols);
    const MatrixView<const Real> g(scaled_.data(), g_.rows, g_.cols);
    const MatrixView<Real> product(product_.data(), count, w_.cols);
    if constexpr (std::is_same_v<Real, float>) {
      LinearCall call;
      call.activations = step;
      call.dense = g;  // symmetric
      call.result = product;
      weft::multiply(call);
    } else {
      std::fill_n(product_.data(), count * w_.cols, 0.0);
      add_product(1.0, step, g, product);
    }
  }

  void take_step(RowState& state, const Real* product) {
    double* direction = p(state);
    double curvature = 0.0, size = 0.0;
    for (int64_t c = 0; c < w_.cols; ++c) {
      const double scaled = direction[c] * root_[static_cast<size_t>(c)];
      curvature += scaled * static_cast<double>(product[c]);
      size += scaled * scaled;
    }
    curvature *= state.unit;
    if (!(curvature > kNoise<Real> * size)) {  // all that can be seen is gained
      state.ended = true;
      return;
    }
    const double length = state.rz / curvature;
    const double change = length * state.unit;
    double rz = 0.0;
    for (int64_t c = 0; c < w_.cols; ++c) {
      d(state)[c] += length * direction[c];
      if (!support_->at(first_row_ + state.row, c)) continue;
      r(state)[c] -= change * root_[static_cast<size_t>(c)] * static_cast<double>(product[c]);
      rz += r(state)[c] * r(state)[c] * inverse_diagonal_[static_cast<size_t>(c)];
    }
    count_gain(state, length * state.rz);
    const double turn = rz / state.rz;
    for (int64_t c = 0; c < w_.cols; ++c) {
      direction[c] = r(state)[c] * inverse_diagonal_[static_cast<size_t>(c)] + turn * direction[c];
    }
    state.rz = rz;
    state.ended = state.converged || !(rz > 0) || state.steps >= options_.iterations;
  }

  void count_gain(RowState& state, double gain) const {
    state.gained += gain;
    state.gained_here += gain;
    state.last[static_cast<size_t>(state.steps_here % kDelay)] = gain;
    ++state.steps, ++state.steps_here;
    const double recent = std::accumulate(state.last.begin(), state.last.end(), 0.0);
    state.converged = state.steps_here >= kDelay && recent <= options_.tolerance * state.gained;
  }

  // What the products in float have let the residual drift by is weighed like what is left to gain.
  void judge(RowState& state) {
    double drift = 0.0;
    for (int64_t c = 0; c < w_.cols; ++c) {
      const double off = true_r(state)[c] - r(state)[c];
      drift += off * off * inverse_diagonal_[static_cast<size_t>(c)];
    }
    const bool believed = drift <= options_.tolerance * state.gained;
    const bool exhausted = state.gained_here <= options_.tolerance * state.gained;
    if (believed && (state.converged || exhausted || !(state.rz > 0))) {
      state.done = true;
    } else if (state.steps < options_.iterations) {
      begin(state);
    } else {
      state.done = state.unfinished = true;
    }
  }

  LeastSquaresReport report() const {
    LeastSquaresReport report;
    for (const RowState& state : states_) {
      report.most_steps = std::max(report.most_steps, state.steps);
      report.unfinished_rows += state.done && !state.unfinished ? 0 : 1;
    }
    return report;
  }

  MatrixView<const double> g_;
  LeastSquaresOptions options_;
  AlignedBuffer<Real> scaled_;  // g scaled to a diagonal of ones, for the products of steps
  std::vector<double> root_;    // of the diagonal of g
  std::vector<double> inverse_diagonal_;  // 0 where that is 0
  MatrixView<const double> w_;
  MatrixView<double> x_;
  const Mask* support_ = nullptr;
  int64_t first_row_ = 0;
  std::vector<double> r_, p_, d_, true_r_;
  AlignedBuffer<Real> step_, product_;
  std::vector<RowState> states_;
};

template <typename Real>
LeastSquaresReport solve_panels(MatrixView<const double> w, MatrixView<const double> g,
                                const Mask& support, const LeastSquaresOptions& options,
                                MatrixView<double> x) {
  LeastSquaresReport report;
  PanelSolver<Real> solver(g, options);
  for (int64_t first = 0; first < w.rows; first += kPanelRows) {
    const int64_t rows = std::min(kPanelRows, w.rows - first);
    const LeastSquaresReport part =
        solver.solve(w.rows_from(first, rows), support, first, x.rows_from(first, rows));
    report.most_steps = std::max(report.most_steps, part.most_steps);
    report.unfinished_rows += part.unfinished_rows;
  }
  return report;
}

}  // namespace

LeastSquaresReport least_squares(MatrixView<const double> w, MatrixView<const double> g,
                                 const Mask& support, const LeastSquaresOptions& options,
                                 MatrixView<double> x) {
  WEFT_CHECK(g.rows == g.cols && w.cols == g.cols && x.rows == w.rows && x.cols == w.cols &&
                 support.rows() == w.rows && support.cols() == w.cols,
             "least squares of [{}, {}] on [{}, {}] with a support of [{}, {}]", w.rows, w.cols,
             g.rows, g.cols, support.rows(), support.cols());
  WEFT_CHECK(options.tolerance >= 0 && options.iterations >= 1, "a tolerance of {} within {} steps",
             options.tolerance, options.iterations);
  return options.tolerance < kFloatTolerance ? solve_panels<double>(w, g, support, options, x)
                                             : solve_panels<float>(w, g, support, options, x);
}

}  // namespace weft
