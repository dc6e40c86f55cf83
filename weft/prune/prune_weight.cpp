#include "weft/prune/prune_weight.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "weft/core/row_order.h"
#include "weft/mask/row_order.h"
#include "weft/prune/support.h"
#include "weft/prune/tensor_values.h"

namespace weft {
namespace {

// An order that retains more than the identity, or the identity.
template <typename T>
std::vector<int64_t> better_order(const PruneTask& task, std::span<const T> weights,
                                  const WeightShape& shape, PruneFigures& figures) {
  const auto retained_by = [&](std::span<const int64_t> order) {
    const Mask mask = find_mask(task.solver, weights.data(), shape, task.pattern, order);
    return retained(weights.data(), shape, mask);
  };
  figures.unpermuted = retained_by({});
  const std::vector<float> floats(weights.begin(), weights.end());
  std::vector<int64_t> found = find_row_order(floats.data(), shape, task.pattern,
                                              task.solver.transposable, RowOrderOptions());
  if (retained_by(found).kept > figures.unpermuted.kept) return found;
  return identity_order(shape.outs);
}

template <typename T>
Mask solve_band(const PruneTask& task, std::span<const T> weights, const WeightShape& shape,
                PruneFigures& figures) {
  const auto begun = std::chrono::steady_clock::now();
  if (task.reorder) figures.order = better_order(task, weights, shape, figures);
  Mask found = find_mask(task.solver, weights.data(), shape, task.pattern, figures.order);
  const auto ended = std::chrono::steady_clock::now();
  figures.seconds += std::chrono::duration<double>(ended - begun).count();
  return found;
}

template <typename T>
double bound_of(const PruneTask& task, std::span<const T> weights, const WeightShape& shape,
                const std::vector<int64_t>& order) {
  if (order.empty()) return transposable_bound(weights.data(), shape, task.pattern);
  const std::vector<T> ordered = in_row_order(weights.data(), shape, order);
  return transposable_bound(ordered.data(), shape, task.pattern);
}

// Whether the band obeys as it is. `nonzero`: of its weights.
bool count_band_input(const PruneTask& task, const Mask& nonzero, const WeightShape& shape,
                      int64_t first_row, PruneFigures& figures) {
  GroupCount part = count_groups_in(nonzero, shape, task.pattern);
  if (part.first_violation) part.first_violation->out += first_row;
  figures.groups += part;
  figures.zeros += nonzero.rows() * nonzero.cols() - nonzero.count();
  return obeys(nonzero, shape, task.pattern, task.solver.transposable);
}

}  // namespace

Mask find_band_mask(const PruneTask& task, const Band& band, PruneFigures& figures) {
  const Dtype dtype = task.weight.tensor.info.dtype;
  WeightShape shape = task.weight.shape();
  WEFT_CHECK(!task.reorder || band.rows == shape.outs,
             "a band of {} of {} rows cannot be reordered: accepted are all rows", band.rows,
             shape.outs);
  shape.outs = band.rows;
  Mask mask;
  bool sparse = false;
  if (task.leave_sparse) {
    mask = nonzero_mask(dtype, band.bytes, band.rows, shape.cols());
    sparse = count_band_input(task, mask, shape, band.first_row, figures);
  }
  naming_weights(task.checkpoint, task.weight, band.first_row, [&] {
    with_weights(dtype, band.bytes, [&](auto weights) {
      if (!sparse) mask = solve_band(task, weights, shape, figures);
      const Retained part = retained(weights.data(), shape, mask);
      figures.kept += mask.count();
      figures.retained += part;
      figures.bound +=
          task.solver.exact ? part.kept : bound_of(task, weights, shape, figures.order);
    });
  });
  return mask;
}

PruneFigures prune_weight(const PruneTask& task,
                          const std::function<void(const Band&, const Mask&)>& write) {
  PruneFigures figures;
  // Rows that share may come from anywhere: with an order, the weight is one band.
  const int64_t multiple =
      std::max<int64_t>(task.pattern.block(), task.reorder ? task.weight.dims().front() : 0);
  for_each_band(task.checkpoint, task.weight, multiple, [&](const Band& band) {
    const Mask mask = find_band_mask(task, band, figures);
    zero_outside(mask, task.weight.tensor.info.dtype, band.bytes);
    write(band, mask);
  });
  if (task.reorder && figures.order.empty()) {  // a weight without elements
    figures.order = identity_order(task.weight.dims().front());
  }
  return figures;
}

}  // namespace weft
