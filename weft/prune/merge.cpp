#include "weft/prune/merge.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/mask/solver.h"
#include "weft/mask/verify.h"
#include "weft/mask/within.h"
#include "weft/prune/elements.h"

namespace weft {
namespace {

// Four vectors of double are held for a band: for BF16 sixteen times this.
constexpr uint64_t kMergeBandBytes = uint64_t{4} << 20;

// Of sums and deltas; squares of more than this, added up, could overflow.
constexpr double kLargestMerged = 0x1p400;

// [rows, row length] of a band
struct BandSum {
  std::vector<double> delta;
  std::vector<double> sum;
};

// values: [mask.rows, mask.cols]
void keep_within(const Mask& mask, std::vector<double>& values) {
  parallel_for(mask.rows(), [&](int64_t r) {
    double* row = values.data() + r * mask.cols();
    const uint64_t* words = mask.row_words(r);
    for (int64_t c = 0; c < mask.cols(); ++c) {
      if ((words[c / 64] >> (c % 64) & 1) == 0) row[c] = 0;
    }
  });
}

bool obeys_promise(const Mask& nonzero, const WeightShape& shape, const Promise& promise) {
  const auto good = [](const GroupCount& count) { return count.violations == 0; };
  return (promise.axis == Axis::kOut || good(count_groups_in(nonzero, shape, promise.pattern))) &&
         (promise.axis == Axis::kIn || good(count_groups_out(nonzero, shape, promise.pattern)));
}

// N:M along outputs alone is N:M along the inputs of every tap, transposed.
Mask find_mask_out(const std::vector<double>& weights, const WeightShape& shape,
                   const Pattern& pattern) {
  Mask mask(shape.outs, shape.cols());
  std::vector<double> w_transposed(static_cast<size_t>(shape.ins * shape.outs));
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    for (int64_t i = 0; i < shape.ins; ++i) {
      for (int64_t o = 0; o < shape.outs; ++o) {
        w_transposed[static_cast<size_t>(i * shape.outs + o)] =
            weights[static_cast<size_t>(o * shape.cols() + i * shape.taps + tap)];
      }
    }
    const Mask found =
        find_mask(default_solver(false), w_transposed.data(), {shape.ins, shape.outs, 1}, pattern)
            .transposed();
    for (int64_t o = 0; o < shape.outs; ++o) {
      for (int64_t i = 0; i < shape.ins; ++i) {
        if (found.at(o, i)) mask.set(o, i * shape.taps + tap, true);
      }
    }
  }
  return mask;
}

Mask find_promised_mask(const std::vector<double>& weights, const WeightShape& shape,
                        const Promise& promise) {
  if (promise.axis == Axis::kOut) return find_mask_out(weights, shape, promise.pattern);
  return find_mask(default_solver(promise.axis == Axis::kBoth), weights.data(), shape,
                   promise.pattern);
}

// The mask within the non-zero weights of the base.
Mask base_mask(const Mask& nonzero, std::vector<double> sum, const WeightShape& shape,
               const Promise& promise) {
  if (obeys_promise(nonzero, shape, promise)) return nonzero;
  keep_within(nonzero, sum);
  return mask_within(nonzero, find_promised_mask(sum, shape, promise), shape, promise.pattern);
}

class BandMerger {
 public:
  explicit BandMerger(const MergeTask& task)
      : task_(task), weight_(task.weight()), rows_(task.deltas, task.delta, weight_.transposed) {}

  // Changes the bytes of the band from W to W'.
  void merge(const Band& band) {
    BandSum values = add(band);
    if (task_.promise) {
      restore(band, values);
    } else {
      store(band, values.sum);
    }
  }

  const MergeFigures& figures() const { return figures_; }

 private:
  BandSum add(const Band& band) const {
    BandSum values{rows_.read(band.first_row, band.rows),
                   finite_elements(task_.base, weight_, first_element(band), band.bytes)};
    WEFT_CHECK(values.delta.size() == values.sum.size(), "{}: a delta of {} elements for {}",
               place_of(task_.base, task_.tensor), values.delta.size(), values.sum.size());
    for_each_piece(static_cast<int64_t>(values.sum.size()), [&](int64_t first, int64_t count) {
      for (int64_t i = first; i < first + count; ++i) {
        const double delta = values.delta[static_cast<size_t>(i)];
        double& sum = values.sum[static_cast<size_t>(i)];
        sum += delta;
        // Written so that NaN, from the product of a LoRA pair that overflowed, does not pass.
        const bool held = std::abs(delta) <= kLargestMerged && std::abs(sum) <= kLargestMerged;
        if (!held) refuse(band, i, sum);
      }
    });
    return values;
  }

  void restore(const Band& band, BandSum& values) {
    const Promise& promise = *task_.promise;
    const TensorInfo& info = task_.tensor.info;
    WeightShape shape = weight_.shape();
    shape.outs = band.rows;
    const auto nonzero = [&] {
      return nonzero_mask(info.dtype, band.bytes, shape.outs, shape.cols());
    };
    const Mask before = nonzero();
    const Mask mask = task_.mask == MergeMask::kBase
                          ? base_mask(before, values.sum, shape, promise)
                          : find_promised_mask(values.sum, shape, promise);
    figures_.magnitude += retained(values.sum.data(), shape, mask);
    count_lost(values.delta, mask);
    keep_within(mask, values.sum);
    store(band, values.sum);
    figures_.changed += Mask::differing(before, nonzero());
  }

  // Row by row in a fixed order: the same for any number of threads.
  void count_lost(const std::vector<double>& delta, const Mask& mask) {
    std::vector<MergeFigures> rows(static_cast<size_t>(mask.rows()));
    parallel_for(mask.rows(), [&](int64_t r) {
      MergeFigures& row = rows[static_cast<size_t>(r)];
      const uint64_t* words = mask.row_words(r);
      for (int64_t c = 0; c < mask.cols(); ++c) {
        const double d = delta[static_cast<size_t>(r * mask.cols() + c)];
        row.delta_squares += d * d;
        row.lost_squares += (words[c / 64] >> (c % 64) & 1) == 0 ? d * d : 0.0;
      }
    });
    for (const MergeFigures& row : rows) figures_ += row;
  }

  void store(const Band& band, const std::vector<double>& sum) const {
    const Dtype dtype = task_.tensor.info.dtype;
    const auto size = static_cast<size_t>(dtype_bits(dtype) / 8);
    for_each_piece(static_cast<int64_t>(sum.size()), [&](int64_t first, int64_t count) {
      const auto begin = static_cast<size_t>(first), length = static_cast<size_t>(count);
      const auto bytes = band.bytes.subspan(begin * size, length * size);
      round_weights(std::span(sum).subspan(begin, length), dtype, bytes);
      with_weights(dtype, bytes, [&](auto rounded) {
        for (size_t i = 0; i < rounded.size(); ++i) {
          if (!std::isfinite(rounded[i])) {
            refuse(band, first + static_cast<int64_t>(i), sum[begin + i]);
          }
        }
      });
    });
  }

  [[noreturn]] void refuse(const Band& band, int64_t element, double sum) const {
    const TensorInfo& info = task_.tensor.info;
    throw Error(fmt::format(
        "{}: element {} plus its delta is {}: accepted are values of {}{}",
        place_of(task_.base, task_.tensor), index_text(weight_, first_element(band) + element), sum,
        dtype_name(info.dtype), info.dtype == Dtype::kF64 ? ", at most 2^400" : ""));
  }

  // Of [outs, ins].
  int64_t first_element(const Band& band) const {
    return static_cast<int64_t>(band.offset) / (dtype_bits(task_.tensor.info.dtype) / 8);
  }

  const MergeTask& task_;
  StoredWeight weight_;
  DeltaRows rows_;
  MergeFigures figures_;
};

}  // namespace

MergeFigures& MergeFigures::operator+=(const MergeFigures& other) {
  delta_squares += other.delta_squares;
  lost_squares += other.lost_squares;
  magnitude += other.magnitude;
  changed += other.changed;
  seconds += other.seconds;
  return *this;
}

MergeFigures merge_tensor(const MergeTask& task, const std::function<void(const Band&)>& write) {
  const TensorInfo& info = task.tensor.info;
  WEFT_CHECK(is_weight_dtype(info.dtype) && (!task.promise || WeightShape::accepts(info.shape)),
             "{}: {} of shape {} cannot be merged{}", place_of(task.base, task.tensor),
             dtype_name(info.dtype), shape_text(info.shape), task.promise ? " to a pattern" : "");
  const auto begun = std::chrono::steady_clock::now();
  StoredWeight weight = task.weight();
  if (info.shape.empty()) weight.tensor.info.shape = {1};  // a scalar is one row
  BandMerger merger(task);
  for_each_band(
      task.base, weight, task.promise ? task.promise->pattern.block() : 1,
      [&](const Band& band) {
        merger.merge(band);
        write(band);
      },
      kMergeBandBytes);
  MergeFigures figures = merger.figures();
  figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return figures;
}

}  // namespace weft
