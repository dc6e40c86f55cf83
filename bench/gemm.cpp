#include "bench/gemm.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "bench/peak.h"
#include "bench/peers.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/sparse.h"
#include "weft/kernel/synthetic.h"
#include "weft/mask/solver.h"

namespace weft::bench {
namespace {

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Milliseconds of one run, over at least a millisecond of runs.
template <typename Body>
double time_ms(Body body) {
  const double begun = now_ms();
  int runs = 0;
  do {
    body();
    ++runs;
  } while (now_ms() - begun < 1.0);
  return (now_ms() - begun) / runs;
}

DenseOp op_of(ProductKind kind) {
  switch (product_of(kind)) {
    case Product::kForward: return DenseOp::kForward;
    case Product::kBackwardData: return DenseOp::kBackwardData;
    case Product::kBackwardWeight: return DenseOp::kBackwardWeight;
  }
  return DenseOp::kForward;
}

// Peers take the operands in the order of the formula: x wᵀ, g w, gᵀ x.
void run_peer(const DensePeer& peer, ProductKind kind, MatrixView<const float> activations,
              MatrixView<const float> operand, MatrixView<float> result) {
  const bool weight = kind == ProductKind::kBackwardWeight;
  peer.run(op_of(kind), weight ? operand : activations, weight ? activations : operand, result);
}

void run_dense(ProductKind kind, MatrixView<const float> activations,
               MatrixView<const float> operand, MatrixView<float> result) {
  LinearCall call;
  call.product = product_of(kind);
  call.activations = activations;
  call.dense = operand;
  call.result = result;
  multiply(call);
}

// One sparse product: its operand and how it is packed.
class Contender {
 public:
  Contender(ProductKind kind, const LayerShape& shape, const Pattern& pattern, PackLayout layout,
            ValueType values)
      : product_(kind, shape, pattern), kind_(kind), pattern_(pattern), values_(values) {
    if (layout == PackLayout::kStream) pack_stream_again();
  }

  void run() {
    if (!stream_) return product_.run_sparse();
    sparse_forward(product_.activations(), *stream_, nullptr, 0, product_.result());
  }
  double pack_ms() {
    return stream_ ? time_ms([&] { pack_stream_again(); }) : time_ms([&] { product_.pack(); });
  }

  // Of the operand that the product takes: by magnitude, along both axes if it is transposed.
  double mask_ms() const {
    const MatrixView<const float> w = product_.operand();
    const bool both = kind_ == ProductKind::kBackwardData;
    return time_ms([&] {
      find_mask(default_solver(both), w.data, WeightShape{w.rows, w.cols, 1}, pattern_);
    });
  }

  void check() {
    run();
    std::vector<float> masked(
        product_.operand().data,
        product_.operand().data + product_.operand().rows * product_.operand().cols);
    for (int64_t r = 0; r < product_.operand().rows; ++r) {
      for (int64_t c = 0; c < product_.operand().cols; ++c) {
        if (!product_.mask().at(r, c)) {
          masked[static_cast<size_t>(r * product_.operand().cols + c)] = 0.0f;
        }
      }
    }
    std::vector<float> wanted(static_cast<size_t>(product_.result().rows * product_.result().cols));
    run_dense(kind_, product_.activations(),
              {masked.data(), product_.operand().rows, product_.operand().cols},
              {wanted.data(), product_.result().rows, product_.result().cols});
    // Operands lie in [-1, 1]: rounding stays below 1e-3 at these depths, a wrong index would not.
    // bf16 has eight bits.
    const float bound = values_ == ValueType::kF32 ? 0.01f : 1.0f;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const float found = product_.result().data[i];
      WEFT_CHECK(std::abs(found - wanted[i]) <= bound,
                 "bench: {} at {}: element {} is {}, the dense product of the masked operand {}",
                 kind_name(kind_), pattern_.str(), i, found, wanted[i]);
    }
  }

  SyntheticProduct& product() { return product_; }

 private:
  void pack_stream_again() {
    stream_ = pack_stream(product_.operand(), product_.mask(), pattern_, values_);
  }

  SyntheticProduct product_;
  ProductKind kind_;
  Pattern pattern_;
  ValueType values_;
  std::optional<PackedMatrix> stream_;
};

struct Entry {
  std::unique_ptr<Contender> contender;
  GemmRecord record;
  std::vector<double> sparse_ms;
};

constexpr int64_t kFewTokens = 16;

// What runs against one dense product: every pattern, with few tokens in both value types.
std::vector<Entry> entries(const GemmPlan& plan, ProductKind kind, const LayerShape& shape,
                           int threads) {
  std::vector<Entry> list;
  const bool few = shape.tokens <= kFewTokens;
  for (const Pattern& pattern : plan.patterns) {
    for (const ValueType values : {ValueType::kF32, ValueType::kBf16}) {
      if (values == ValueType::kBf16 && !few) continue;
      const PackLayout layout = few ? PackLayout::kStream : PackLayout::kPanel;
      GemmRecord record{kind, pattern, shape, threads, values, layout,         "", 0,
                        0,    {},      0,     0,       0,      Choice::kDense, {}};
      list.push_back({std::make_unique<Contender>(kind, shape, pattern, layout, values),
                      std::move(record),
                      {}});
    }
  }
  return list;
}

struct Dense {
  std::string name;
  std::function<void()> run;
};

// All that compete for being the dense product of these operands. With few tokens the weights may
// lie as the library wants them beforehand, as the packed ones do.
std::vector<Dense> dense_products(ProductKind kind, SyntheticProduct& product) {
  std::vector<Dense> list;
  for (const DensePeer& peer : dense_peers().peers) {
    list.push_back({peer.name, [&peer, kind, &product] {
                      run_peer(peer, kind, product.activations(), product.operand(),
                               product.result());
                    }});
  }
  if (product.activations().rows <= kFewTokens) {
    list.push_back({"oneDNN matmul, weights laid out beforehand",
                    prepare_matmul(MatmulType::kFp32, op_of(kind), product.activations(),
                                   product.operand(), product.result())});
  }
  return list;
}

Dense fastest_dense(ProductKind kind, SyntheticProduct& product) {
  const std::vector<Dense> list = dense_products(kind, product);
  const Dense* fastest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 3; ++round) {
    for (const Dense& dense : list) {
      const double ms = time_ms(dense.run);
      if (ms >= least) continue;
      least = ms;
      fastest = &dense;
    }
  }
  return *fastest;
}

std::optional<double> bf16_ms(ProductKind kind, SyntheticProduct& product) {
  if (!no_bf16().empty()) return std::nullopt;
  const bool weight = kind == ProductKind::kBackwardWeight;
  const auto run = prepare_matmul(
      MatmulType::kBf16, op_of(kind), weight ? product.operand() : product.activations(),
      weight ? product.activations() : product.operand(), product.result());
  std::vector<double> times;
  run();
  for (int i = 0; i < 5; ++i) times.push_back(time_ms(run));
  return spread_of(times).median;
}

// One kind of product on one shape.
std::vector<GemmRecord> bench_product(const GemmPlan& plan, ProductKind kind,
                                      const LayerShape& shape, int threads, Planner& planner) {
  std::vector<Entry> list = entries(plan, kind, shape, threads);
  for (Entry& entry : list) entry.contender->check();
  SyntheticProduct& any = list.front().contender->product();
  const Dense dense = fastest_dense(kind, any);
  std::vector<double> dense_ms;
  double peak = 0;
  for (int round = 0; round < plan.rounds; ++round) {
    peak = std::max(peak, fma_peak_gflops(threads));
    dense_ms.push_back(time_ms(dense.run));
    for (Entry& entry : list) {
      entry.sparse_ms.push_back(time_ms([&] { entry.contender->run(); }));
    }
  }
  const std::optional<double> bf16 = bf16_ms(kind, any);
  std::vector<GemmRecord> records;
  for (Entry& entry : list) {
    GemmRecord& record = entry.record;
    std::vector<double> ratios;
    for (size_t i = 0; i < dense_ms.size(); ++i) {
      ratios.push_back(dense_ms[i] / entry.sparse_ms[i]);
    }
    record.dense_peer = dense.name;
    record.dense_ms = spread_of(dense_ms).median;
    record.sparse_ms = spread_of(entry.sparse_ms).median;
    record.ratio = spread_of(ratios);
    record.ratio.median = record.dense_ms / record.sparse_ms;
    record.peak_gflops = peak;
    record.pack_ms = entry.contender->pack_ms();
    record.mask_ms = entry.contender->mask_ms();
    record.dense_bf16_ms = bf16;
    PlanRequest request{shape, record.pattern};
    request.transposable = kind != ProductKind::kBackwardDataRagged;
    record.plan = planner.plan(request)[product_of(kind)].choice;
    records.push_back(record);
  }
  return records;
}

}  // namespace

std::vector<GemmRecord> bench_gemm(const GemmPlan& plan,
                                   const std::function<void(double)>& progress) {
  Planner planner;
  std::vector<GemmRecord> records;
  const double all =
      static_cast<double>(plan.threads.size() * plan.shapes.size() * plan.kinds.size());
  double done = 0;
  const int before = weft::threads();
  for (const int threads : plan.threads) {
    set_threads(threads);
    for (const LayerShape& shape : plan.shapes) {
      for (const ProductKind kind : plan.kinds) {
        progress(++done / all);
        if (shape.tokens <= kFewTokens && kind != ProductKind::kForward) continue;
        const auto found = bench_product(plan, kind, shape, threads, planner);
        records.insert(records.end(), found.begin(), found.end());
      }
    }
  }
  set_threads(before);
  return records;
}

}  // namespace weft::bench
