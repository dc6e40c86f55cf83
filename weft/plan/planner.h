// Planner: dense or sparse, for each of the three products of a layer? And in which arithmetic, if
// its numbers are kept in bf16: on a tile unit, where there is one, or in fp32. And, forward with
// few tokens and weights that never change, from panels or from a stream.
//
//   Planner planner;
//   LayerPlan plan = planner.plan({.shape = {2048, 768, 3072}, .pattern = Pattern(2, 4)});
//   plan[Product::kForward].choice    Choice::kSparse, with the times and the reason
//
// It decides from a measured model: for the instruction set, the number of threads, the form of
// the product and the pattern, both paths are timed on a few shapes (about a second, once; cached, see
// timings.h), and times of other shapes are interpolated. Where the model sees less than a
// clear difference, or does not cover the shape, the shape itself is measured; so is every small
// product, which takes no time, and every convolution. Sparse is chosen only if it wins with its
// packing counted in. Products are timed again and again, so weights that fit a cache come from
// there; from memory, streams win by more.
//
// A run that is to be repeated to the bit saves the plans and gives them back: see `saved`.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "weft/kernel/kernels.h"
#include "weft/plan/timings.h"

namespace weft {

enum class Choice : uint8_t { kDense, kSparse };
std::string_view choice_name(Choice choice);  // "dense", "sparse"
// "dense", "sparse", "sparse stream", "dense bf16", "sparse bf16": the latter two multiply in bf16
// arithmetic.
std::string path_text(Choice choice, const Arithmetic& arithmetic);

struct PlanRequest {
  LayerShape shape;
  Pattern pattern;
  // Whether the transposed operand of the backward-data product is N:M along outputs too; if not,
  // it is ragged. (Under a row order it is, in other places: what that costs is not modelled.)
  bool transposable = false;
  // Products computed with one packing of the weights: micro-batches per step, 0 for weights that
  // never change: only then streams compete, which take long to pack. The gradient of the
  // backward-weight product is packed for every product.
  int products_per_pack = 1;
  // Whether the gradient of the weights is wanted only where their mask keeps it (static masks,
  // LBC). Then it is computed only there, or dense and masked, whichever is faster.
  bool masked_gradient = false;
  // Of operands and activations. In bf16 both arithmetics compete.
  Precision precision = Precision::kFp32;
};

// A convolution: masks and packs as in pack_conv.h. In bf16 it is expanded to fp32, dense or
// sparse alike; what that takes is left out, and the fp32 products decide.
struct ConvRequest {
  ConvShape conv;
  Pattern pattern;
  bool transposable = false;  // as above
  int products_per_pack = 1;
};

// All that competes for a product of the request; its dense paths may be the same.
std::vector<Arithmetic> contestants(const PlanRequest& request, const ProductForm& form);

// Why a product runs as it does.
enum class PlanCause : uint8_t {
  kNothingPruned,
  kAskedFor,
  kMeasured,        // at this shape
  kPredicted,       // by the model
  kSaved,           // in a plan that is repeated
  kExactGradient,   // of a recipe that computes all of dW
  kMaskedGradient,  // computed dense, and masked
};

struct ProductPlan {
  Choice choice = Choice::kDense;
  Arithmetic arithmetic;  // of the chosen path
  ProductForm form = Product::kForward;
  // Dense and sparse each in the arithmetic that is faster for it.
  std::optional<ProductTimes> predicted;  // by the model, where it covers the shape
  ProductTimes times;     // that decided; zero if nothing was timed: the plan was forced, or saved
  bool measured = false;  // at this shape, not predicted from the model
  PlanCause cause = PlanCause::kAskedFor;
  double ratio = 0.0;  // measured or predicted: dense time / (sparse time + packing)
  bool packs = false;  // whether there is packing in it
  // Of bf16 operands: what multiplies them, and why nothing better; empty in fp32.
  std::string note;

  std::string path() const { return path_text(choice, arithmetic); }
  bool was_timed() const { return cause == PlanCause::kMeasured || cause == PlanCause::kPredicted; }
  std::string reason() const;  // for people
};

struct LayerPlan {
  std::array<ProductPlan, 3> products;  // in the order of kProducts

  const ProductPlan& operator[](Product product) const {
    return products[static_cast<size_t>(product)];
  }
};

// A product runs sparse if dense time / (sparse time + packing) is above it: a tie is no reason.
// Nor is a small gain of a small product that has to be packed for: what else a machine does slows
// packing by more than multiplying, and a choice that was right when it was made should stay right.
inline constexpr double kSparseMargin = 1.03;
inline constexpr double kSmallProductMargin = 1.2;
inline constexpr double kSmallProductMs = 1.0;
constexpr double sparse_margin(double dense_ms, bool packs) {
  return packs && dense_ms < kSmallProductMs ? kSmallProductMargin : kSparseMargin;
}

enum class PlanMode : uint8_t { kAuto, kDense, kSparse };
PlanMode parse_plan_mode(std::string_view text);  // "auto", "dense", "sparse"

// The fastest dense and the fastest sparse product, packing counted in, and in which arithmetic.
struct Contest {
  double dense_ms = 0.0;
  double sparse_ms = 0.0;
  Arithmetic dense, sparse;

  double ratio() const { return dense_ms / sparse_ms; }
};

class Planner {
 public:
  explicit Planner(PlanMode mode = PlanMode::kAuto,
                   std::filesystem::path cache = default_timings_path());

  LayerPlan plan(const PlanRequest& request);
  LayerPlan plan(const ConvRequest& request);

  // The choices made so far, and a planner that repeats them: a request that is not among them is
  // an Error.
  std::string saved() const;  // JSON
  static Planner from_saved(std::string_view json);
  // Keeps to saved choices from here on, where it has made none, and decides what is not among them
  // as usual: a run that goes on meets shapes that it had not met when its choices were written.
  void remember(std::string_view json);
  size_t decisions() const { return plans_.size(); }
  // A decision that has to measure throws Stopped while this is not 0. Null: never.
  void stop_when(const std::atomic<int>* stop) { timings_.stop_when(stop); }

 private:
  template <typename Request>
  LayerPlan plan_products(const Request& request, const std::string& shape);
  template <typename Request>
  ProductPlan decide(const Request& request, Product product);
  template <typename Request>
  Arithmetic forced_arithmetic(const Request& request, const ProductPlan& plan);

  // What decides, when each product pays for `packs` packings; fills in the times.
  Contest time(const PlanRequest& request, double packs, ProductPlan& plan);
  Contest time(const ConvRequest& request, double packs, ProductPlan& plan);

  PlanMode mode_;
  bool only_saved_ = false;
  Timings timings_;
  // "<shape>/<pattern>[T][M]/<per pack>[/bf16]". Decided once: layers of one shape run alike, and
  // as saved.
  std::map<std::string, LayerPlan> plans_;
};

}  // namespace weft
