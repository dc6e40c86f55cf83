#include "bench/conv.h"

#include <algorithm>
#include <cmath>

#include "bench/clock.h"
#include "bench/conv_peers.h"
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

ConvPeer fastest_peer(SyntheticConv& product, const ConvRecord& record) {
  const ConvOperands operands{record.form.product, record.shape, product.activations().data(),
                              product.operand().data(), product.result().data()};
  std::vector<ConvPeer> peers = onednn_convolutions(operands);
  peers.push_back({"weft", [&product] { product.run_dense(); }});
  std::vector<double> least;
  for (const ConvPeer& peer : peers) {
    peer.run();
    least.push_back(time_ms(peer.run));
  }
  for (int turn = 0; turn < 2; ++turn) {
    for (size_t i = 0; i < peers.size(); ++i) least[i] = std::min(least[i], time_ms(peers[i].run));
  }
  return peers[static_cast<size_t>(std::min_element(least.begin(), least.end()) - least.begin())];
}

void time_conv(int rounds, ConvRecord& record) {
  set_threads(record.threads);
  SyntheticConv product(record.form, record.shape, record.pattern);
  compare_conv_paths(product, record);
  const ConvPeer peer = fastest_peer(product, record);
  record.dense_peer = peer.name;
  const bool samples = record.form.packs_gradient();
  std::vector<double> dense, sparse, pack, ratios;
  for (Rounds all(rounds); all.next();) {
    const int round = all.number();
    const auto time_dense = [&] { dense.push_back(time_ms(peer.run)); };
    if (round % 2 == 0) time_dense();
    sparse.push_back(time_ms([&] { product.run_sparse(); }));
    if (round % 2 == 1) time_dense();
    pack.push_back(time_ms([&] { samples ? product.sample() : product.pack(); }));
    ratios.push_back(dense.back() / sparse.back());
  }
  record.dense_ms = spread_of(dense).median;
  record.sparse_ms = spread_of(sparse).median;
  record.ratio = spread_of(ratios);
  record.ratio.median = record.dense_ms / record.sparse_ms;
  record.pack_ms = spread_of(pack).median;
}

}  // namespace

const std::vector<std::string>& resnet50_convolutions() {
  static const std::vector<std::string> shapes = {
      "16x64x56x56:64x1x1",    "16x64x56x56:64x3x3,pad=1",
      "16x64x56x56:256x1x1",   "16x256x56x56:64x1x1",
      "16x256x56x56:128x1x1",  "16x128x56x56:128x3x3,stride=2,pad=1",
      "16x128x28x28:512x1x1",  "16x256x56x56:512x1x1,stride=2",
      "16x512x28x28:128x1x1",  "16x128x28x28:128x3x3,pad=1",
      "16x512x28x28:256x1x1",  "16x256x28x28:256x3x3,stride=2,pad=1",
      "16x256x14x14:1024x1x1", "16x512x28x28:1024x1x1,stride=2",
      "16x1024x14x14:256x1x1", "16x256x14x14:256x3x3,pad=1",
      "16x1024x14x14:512x1x1", "16x512x14x14:512x3x3,stride=2,pad=1",
      "16x512x7x7:2048x1x1",   "16x1024x14x14:2048x1x1,stride=2",
      "16x2048x7x7:512x1x1",   "16x512x7x7:512x3x3,pad=1",
  };
  return shapes;
}

const std::vector<std::string>& cifar_convolutions() {
  static const std::vector<std::string> shapes = {
      "16x16x32x32:16x3x3,pad=1", "16x16x32x32:32x3x3,stride=2,pad=1",
      "16x32x16x16:32x3x3,pad=1", "16x32x16x16:64x3x3,stride=2,pad=1",
      "16x64x8x8:64x3x3,pad=1",
  };
  return shapes;
}

std::vector<ConvRecord> bench_conv(const ConvOptions& options,
                                   const std::function<void(double)>& progress) {
  std::vector<ConvRecord> records;
  for (const ConvShape& shape : options.shapes) {
    for (const int count : options.threads) {
      for (const ProductForm& form : options.forms) {
        for (const Pattern& pattern : options.patterns) {
          records.push_back({form, pattern, shape, count});
        }
      }
    }
  }
  const int before = threads();
  for (size_t i = 0; i < records.size(); ++i) {
    progress(static_cast<double>(i + 1) / static_cast<double>(records.size()));
    time_conv(options.rounds, records[i]);
  }
  for (const int count : options.threads) {
    const double peak = fma_peak_gflops(count);
    for (ConvRecord& record : records) {
      if (record.threads == count) record.peak_gflops = peak;
    }
  }
  set_threads(before);
  return records;
}

}  // namespace weft::bench
