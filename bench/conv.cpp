#include "bench/conv.h"

#include <algorithm>
#include <cmath>

#include "bench/clock.h"
#include "bench/peak.h"
#include "bench/rounds.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/plan/synthetic.h"

namespace weft::bench {
namespace {

// Operands are in [-1, 1]: rounding of sums stays far below this, a wrong index does not.
void compare_conv_paths(SyntheticConv& product, const ConvRecord& record) {
  product.prune_operand();
  product.run_dense();
  const std::vector<float> wanted = product.result();
  product.run_sparse();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const float found = product.result()[i];
    WEFT_CHECK(std::abs(found - wanted[i]) <= 0.02f,
               "bench: {} {} {}: element {} is {}, the dense product has {}", record.form.name(),
               record.pattern.str(), record.shape.spec(), i, found, wanted[i]);
  }
}

void time_conv(int rounds, ConvRecord& record) {
  SyntheticConv product(record.form, record.shape, record.pattern);
  compare_conv_paths(product, record);
  std::vector<double> dense, sparse, pack, ratios;
  for (Rounds all(rounds); all.next();) {
    const int round = all.number();
    const auto time_dense = [&] { dense.push_back(time_ms([&] { product.run_dense(); })); };
    if (round % 2 == 0) time_dense();
    sparse.push_back(time_ms([&] { product.run_sparse(); }));
    if (round % 2 == 1) time_dense();
    pack.push_back(time_ms([&] { product.pack(); }));
    ratios.push_back(dense.back() / sparse.back());
  }
  record.dense_ms = spread_of(dense).median;
  record.sparse_ms = spread_of(sparse).median;
  record.ratio = spread_of(ratios);
  record.ratio.median = record.dense_ms / record.sparse_ms;
  record.pack_ms = spread_of(pack).median;
}

}  // namespace

std::vector<ConvRecord> bench_conv(const ConvOptions& options,
                                   const std::function<void(double)>& progress) {
  std::vector<ConvRecord> records;
  for (const ConvShape& shape : options.shapes) {
    for (const ProductForm& form : options.forms) {
      for (const Pattern& pattern : options.patterns) records.push_back({form, pattern, shape});
    }
  }
  double peak = fma_peak_gflops(threads());
  for (size_t i = 0; i < records.size(); ++i) {
    progress(static_cast<double>(i + 1) / static_cast<double>(records.size()));
    time_conv(options.rounds, records[i]);
  }
  peak = std::max(peak, fma_peak_gflops(threads()));
  for (ConvRecord& record : records) record.peak_gflops = peak;
  return records;
}

}  // namespace weft::bench
