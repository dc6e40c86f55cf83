#include "bench/gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "bench/clock.h"
#include "bench/peak.h"
#include "bench/peers.h"
#include "bench/rounds.h"
#include "weft/core/bf16.h"
#include "weft/core/error.h"
#include "weft/core/masked_copy.h"
#include "weft/core/parallel.h"
#include "weft/core/transpose.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/stream/stream.h"
#include "weft/kernel/tile/tile_product.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/mask/solver.h"
#include "weft/pack/tiles.h"
#include "weft/plan/synthetic.h"

namespace weft::bench {
namespace {

// Milliseconds of one run whose operands are in no cache.
template <typename Body>
double cold_ms(Body body) {
  static const std::vector<char> other(size_t{256} << 20, 1);  // larger than any cache
  // Read, not written: lines that must go back to memory would hold up what is measured. By every
  // thread, for its own caches.
  parallel_for(threads(), [&](int64_t) {
    volatile int sum = 0;
    for (size_t i = 0; i < other.size(); i += 64) sum = sum + other[i];
  });
  const double begun = now_ms();
  body();
  return now_ms() - begun;
}

// Peers take the operands in the order of the formula: x wᵀ, g w, gᵀ x.
void run_peer(const DensePeer& peer, const ProductForm& form, MatrixView<const float> activations,
              MatrixView<const float> operand, MatrixView<float> result) {
  const bool weight = form.product == Product::kBackwardWeight;
  peer.run(form.product, weight ? operand : activations, weight ? activations : operand, result);
}

void run_dense(const ProductForm& form, MatrixView<const float> activations,
               MatrixView<const float> operand, MatrixView<float> result) {
  LinearCall call;
  call.product = form.product;
  call.activations = activations;
  call.dense = operand;
  call.result = result;
  multiply(call);
}

// How far a result may be from the right one, relative to it: half a unit of bf16 where it is kept
// so, and twice that.
float rounding_of(const Arithmetic& arithmetic, const ProductForm& form) {
  const bool bf16 = arithmetic.storage == Precision::kBf16;
  return bf16 && form.product != Product::kBackwardWeight ? 0x1p-7f : 0.0f;
}

// Compares the result that stands in `product` with weft's dense fp32 product of `operand`.
// Operands are in [-1, 1]: rounding of sums stays below 1e-3 at these depths, a wrong index or a
// wrong product does not.
void check_result(const std::string& what, const ProductForm& form, SyntheticProduct& product,
                  MatrixView<const float> operand, float rounding = 0.0f) {
  const MatrixView<float> found = product.result();
  std::vector<float> wanted(static_cast<size_t>(found.rows * found.cols));
  run_dense(form, product.activations(), operand, {wanted.data(), found.rows, found.cols});
  for (size_t i = 0; i < wanted.size(); ++i) {
    WEFT_CHECK(std::abs(found.data[i] - wanted[i]) <= 0.01f + rounding * std::abs(wanted[i]),
               "bench: {} {}: element {} is {}, weft's dense product has {}", what, form.name(), i,
               found.data[i], wanted[i]);
  }
}

// One sparse product: its operand and how it is packed.
class Contender {
 public:
  Contender(const ProductForm& form, const LayerShape& shape, const Pattern& pattern,
            Precision values, const Arithmetic& arithmetic)
      : product_(form, shape, pattern, arithmetic),
        form_(form),
        pattern_(pattern),
        values_(values),
        stream_(arithmetic.stream),
        rounding_(rounding_of(arithmetic, form)) {
    if (stream_ && values == Precision::kBf16) pack();
  }

  void run() {
    if (!narrow_stream_) return product_.run_sparse();
    LinearCall call;
    call.activations = product_.activations();
    call.packed = &*narrow_stream_;
    call.result = product_.result();
    multiply(call);
  }
  double time() {
    return stream_ ? cold_ms([&] { run(); }) : time_ms([&] { run(); });
  }
  double pack_ms() {
    return time_ms([&] { pack(); });
  }

  // The best mask of the operand along the axis that the product sums over, or along both.
  double mask_ms() {
    if (form_.masked) return mask_of_weights_ms();
    MatrixView<const float> w = product_.operand();
    std::vector<float> w_transposed;
    if (form_.product == Product::kBackwardWeight) {  // the gradient, N:M along tokens
      w_transposed.resize(static_cast<size_t>(w.rows * w.cols));
      transpose({w.data, w.row_stride, w.rows, w.cols, w_transposed.data(), w.rows});
      w = {w_transposed.data(), w.cols, w.rows};
    }
    const Solver& solver = default_solver(form_.product == Product::kBackwardData && !form_.ragged);
    return time_ms([&] { find_mask(solver, w.data, WeightShape{w.rows, w.cols, 1}, pattern_); });
  }

  void check() {
    if (form_.masked) return check_masked();
    run();
    const MatrixView<const float> operand = product_.operand();
    std::vector<float> masked(static_cast<size_t>(operand.rows * operand.cols), 0.0f);
    for (int64_t r = 0; r < operand.rows; ++r) {
      for (int64_t c = 0; c < operand.cols; ++c) {
        if (!product_.mask().at(r, c)) continue;
        const float value = operand.at(r, c);
        masked[static_cast<size_t>(r * operand.cols + c)] =
            values_ == Precision::kFp32 ? value : bf16_to_float(float_to_bf16(value));
      }
    }
    product_.expand_result();
    check_result("sparse", form_, product_, {masked.data(), operand.rows, operand.cols}, rounding_);
  }

  SyntheticProduct& product() { return product_; }

 private:
  // The weights whose gradient it is are not there; any matrix of their size will do.
  double mask_of_weights_ms() {
    const std::vector<float>& w = dense_gradient_;
    const MatrixView<float> dw = product_.result();
    const WeightShape shape{dw.rows, dw.cols, 1};
    return time_ms([&] { find_mask(default_solver(false), w.data(), shape, pattern_); });
  }

  void check_masked() {
    const MatrixView<float> dw = product_.result();
    const auto size = static_cast<size_t>(dw.rows * dw.cols);
    product_.run_dense();
    dense_gradient_.assign(dw.data, dw.data + size);
    std::fill_n(dw.data, size, 1e9f);
    run();
    for (size_t i = 0; i < size; ++i) {
      WEFT_CHECK(std::abs(dw.data[i] - dense_gradient_[i]) <= 0.01f,
                 "bench: masked: element {} is {}, weft's dense product has {}", i, dw.data[i],
                 dense_gradient_[i]);
    }
  }

  void pack() {
    if (!stream_ || values_ == Precision::kFp32) return product_.pack();
    narrow_stream_ = pack_stream(product_.operand(), product_.mask(), pattern_, values_);
  }

  SyntheticProduct product_;
  ProductForm form_;
  Pattern pattern_;
  Precision values_;
  bool stream_;
  float rounding_;
  std::optional<PackedMatrix> narrow_stream_;  // weights of bf16 for activations of fp32
  std::vector<float> dense_gradient_;          // masked
};

struct Entry {
  std::unique_ptr<Contender> contender;
  GemmRecord record;
  std::vector<double> sparse_ms, pack_ms;
};

// The best that there is for a pattern: tiles where it fills them, on a CPU that multiplies tiles.
Arithmetic sparse_arithmetic(Precision precision, const ProductForm& form, const Pattern& pattern) {
  const std::vector<Arithmetic> all = arithmetics(precision);
  return has_tile_product(form, pattern) ? all.back() : all.front();
}

// What runs against one dense product: every pattern, with few tokens in both value types.
std::vector<Entry> entries(const GemmOptions& options, const ProductForm& form,
                           const LayerShape& shape, int threads) {
  std::vector<Entry> list;
  const bool fp32 = options.precision == Precision::kFp32;
  const bool few = fp32 && shape.tokens <= kFewTokens && form.product == Product::kForward;
  for (const Pattern& pattern : options.patterns) {
    for (const Precision values : {Precision::kFp32, Precision::kBf16}) {
      if (fp32 ? values == Precision::kBf16 && !few : values == Precision::kFp32) continue;
      Arithmetic arithmetic = sparse_arithmetic(options.precision, form, pattern);
      arithmetic.stream = few;
      GemmRecord record{form, pattern, shape, threads, values, arithmetic};
      list.push_back({std::make_unique<Contender>(form, shape, pattern, values, arithmetic),
                      std::move(record),
                      {},
                      {}});
    }
  }
  return list;
}

struct Dense {
  std::string name;
  std::function<void()> run;
};

// All candidates for the dense product of these operands. With few tokens the weights may be
// reordered for the library beforehand, as the packed ones are.
std::vector<Dense> dense_products(const ProductForm& form, SyntheticProduct& product) {
  std::vector<Dense> list;
  for (const DensePeer& peer : dense_peers().peers) {
    list.push_back({peer.name, [&peer, form, &product] {
                      run_peer(peer, form, product.activations(), product.operand(),
                               product.result());
                    }});
  }
  if (form.product == Product::kForward && product.activations().rows <= kFewTokens) {
    list.push_back({"oneDNN matmul, weights reordered beforehand",
                    prepare_matmul(Precision::kFp32, form.product, product.activations(),
                                   product.operand(), product.result())});
  }
  return list;
}

// Gᵀ X on tiles with G transposed beforehand, as a packed gradient is packed beforehand.
Dense transposed_product(const LayerShape& shape) {
  struct Operands {
    explicit Operands(const LayerShape& shape)
        : product(Product::kBackwardWeight, shape, Pattern(1, 1),
                  {Precision::kBf16, Precision::kBf16}),
          g(static_cast<size_t>(shape.outs * shape.tokens)),
          x(static_cast<size_t>(shape.tokens * shape.ins)) {
      const MatrixView<const float> from_g = product.operand(), from_x = product.activations();
      for (int64_t t = 0; t < shape.tokens; ++t) {
        for (int64_t o = 0; o < shape.outs; ++o) {
          g[static_cast<size_t>(o * shape.tokens + t)] = to_bf16(from_g.at(t, o));
        }
      }
      round_to_bf16(from_x.data, static_cast<int64_t>(x.size()), x.data());
    }
    SyntheticProduct product;
    std::vector<Bf16> g, x;
    DenseTiles tiles;
  };
  const auto all = std::make_shared<Operands>(shape);
  return {fmt::format("weft, bf16 on {}, g transposed beforehand", tile_unit_name(tile_unit())),
          [all, shape] {
            all->tiles.pack(MatrixView<const Bf16>(all->x.data(), shape.tokens, shape.ins), false);
            multiply_dense_tiles(DenseTileCall<float>{
                MatrixView<const Bf16>(all->g.data(), shape.outs, shape.tokens), &all->tiles,
                nullptr, 0.0f, all->product.result()});
          }};
}

// The same of bf16 operands. They are kept by the products themselves.
std::vector<Dense> bf16_products(const ProductForm& any_form, const LayerShape& shape) {
  const ProductForm form = any_form.masked ? Product::kBackwardWeight : any_form;
  std::vector<Dense> list;
  for (const Arithmetic& arithmetic : arithmetics(Precision::kBf16)) {
    const auto product = std::make_shared<SyntheticProduct>(form, shape, Pattern(1, 1), arithmetic);
    list.push_back({"weft, " + arithmetic.str(), [product] { product->run_dense(); }});
    product->run_dense();
    product->expand_result();
    check_result(list.back().name, form, *product, product->operand(),
                 rounding_of(arithmetic, form));
  }
  const bool tiles = tile_unit() != TileUnit::kNone;
  if (tiles && form.product == Product::kBackwardWeight) list.push_back(transposed_product(shape));
  if (no_bf16().empty()) {
    // Operands that bf16 holds exactly: what oneDNN rounds, the product it is compared with has, too.
    const auto product = std::make_shared<SyntheticProduct>(form, shape, Pattern(1, 1),
                                                            arithmetics(Precision::kBf16).front());
    const bool weight = form.product == Product::kBackwardWeight;
    const auto run = prepare_matmul(
        Precision::kBf16, form.product, weight ? product->operand() : product->activations(),
        weight ? product->activations() : product->operand(), product->result());
    list.push_back(
        {"oneDNN matmul in bf16, operands reordered beforehand", [product, run] { run(); }});
    run();
    check_result(list.back().name, form, *product, product->operand());  // sums stay fp32
  }
  return list;
}

const Dense& fastest_of(const std::vector<Dense>& list, bool cold = false) {
  const Dense* fastest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 3; ++round) {
    for (const Dense& dense : list) {
      const double ms = cold ? cold_ms(dense.run) : time_ms(dense.run);
      if (ms >= least) continue;
      least = ms;
      fastest = &dense;
    }
  }
  return *fastest;
}

Dense fastest_dense(const ProductForm& form, SyntheticProduct& product, bool cold = false) {
  const std::vector<Dense> list = dense_products(form, product);
  for (const Dense& dense : list) {
    dense.run();
    check_result(dense.name, form, product, product.operand());
  }
  return fastest_of(list, cold);
}

// A masked gradient is masked after the dense product; it then stands in `product`, or another
// matrix of its size does.
Dense with_masking(const ProductForm& form, Dense dense, SyntheticProduct& product) {
  if (!form.masked) return dense;
  return {dense.name, [run = std::move(dense.run), &product] {
            run();
            masked_copy(product.result().data, product.mask(), product.result().data);
          }};
}

std::optional<double> bf16_ms(const ProductForm& form, SyntheticProduct& product) {
  if (!no_bf16().empty()) return std::nullopt;
  const bool weight = form.product == Product::kBackwardWeight;
  const auto run = prepare_matmul(
      Precision::kBf16, form.product, weight ? product.operand() : product.activations(),
      weight ? product.activations() : product.operand(), product.result());
  std::vector<double> times;
  run();
  for (int i = 0; i < 5; ++i) times.push_back(time_ms(run));
  return spread_of(times).median;
}

// One product on one shape.
std::vector<GemmRecord> bench_product(const GemmOptions& options, const ProductForm& form,
                                      const LayerShape& shape, int threads, Planner& planner) {
  std::vector<Entry> list = entries(options, form, shape, threads);
  for (Entry& entry : list) entry.contender->check();
  const bool fp32 = options.precision == Precision::kFp32;
  SyntheticProduct& any = list.front().contender->product();
  const bool cold = list.front().record.arithmetic.stream;
  const Dense dense = with_masking(
      form, fp32 ? fastest_dense(form, any, cold) : fastest_of(bf16_products(form, shape)), any);
  const Dense dense_fp32 = fp32 ? Dense() : with_masking(form, fastest_dense(form, any), any);
  std::vector<double> dense_ms, dense_fp32_ms;
  const auto time_dense = [&] {
    dense_ms.push_back(cold ? cold_ms(dense.run) : time_ms(dense.run));
    if (!fp32) dense_fp32_ms.push_back(time_ms(dense_fp32.run));
  };
  const bool tiles = !fp32 && tile_unit() != TileUnit::kNone;
  const auto peak_gflops = [&] {
    return tiles ? tile_peak_gflops(threads) : fma_peak_gflops(threads);
  };
  const double fma_peak = fma_peak_gflops(threads);
  double peak = peak_gflops();
  for (Rounds rounds(options.rounds); rounds.next();) {
    const bool forwards = rounds.number() % 2 == 0;
    if (forwards) time_dense();
    for (size_t i = 0; i < list.size(); ++i) {
      Entry& entry = list[forwards ? i : list.size() - 1 - i];
      entry.sparse_ms.push_back(entry.contender->time());
    }
    if (!forwards) time_dense();
    for (Entry& entry : list) entry.pack_ms.push_back(entry.contender->pack_ms());
  }
  peak = std::max(peak, peak_gflops());
  const std::optional<double> bf16 = fp32 ? bf16_ms(form, any) : std::nullopt;
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
    record.pack_ms = spread_of(entry.pack_ms).median;
    record.mask_ms = entry.contender->mask_ms();
    record.dense_bf16_ms = bf16;
    if (!fp32) {
      record.dense_fp32_ms = spread_of(dense_fp32_ms).median;
      record.fp32_share = shape.flops() / *record.dense_fp32_ms * 1e-6 / fma_peak;
    }
    PlanRequest request{shape, record.pattern};
    request.transposable = !form.ragged;
    request.masked_gradient = form.masked;
    request.precision = options.precision;
    if (cold) request.products_per_pack = 0;  // weights that never change
    // Weights of bf16 for activations of fp32 are nothing that it would decide.
    if (!cold || record.values == Precision::kFp32) {
      record.plan = planner.plan(request)[form.product];
    }
    records.push_back(record);
  }
  return records;
}

}  // namespace

std::vector<GemmRecord> bench_gemm(const GemmOptions& options,
                                   const std::function<void(double)>& progress) {
  std::vector<GemmRecord> records;
  const double all =
      static_cast<double>(options.threads.size() * options.shapes.size() * options.forms.size());
  double done = 0;
  const int before = weft::threads();
  for (const int threads : options.threads) {
    set_threads(threads);
    Planner planner;  // keeps to what it chose, whatever the threads
    for (const LayerShape& shape : options.shapes) {
      for (const ProductForm& form : options.forms) {
        progress(++done / all);
        const auto found = bench_product(options, form, shape, threads, planner);
        records.insert(records.end(), found.begin(), found.end());
      }
    }
  }
  set_threads(before);
  return records;
}

}  // namespace weft::bench
