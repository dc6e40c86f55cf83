// Planner: dense or sparse, for each of the three products of a layer? And in which arithmetic, if
// its numbers are kept in bf16: on a tile unit, where there is one, or in fp32. And, forward with
// few tokens and weights that never change, from panels or from a stream.
//
// Layers that train ask for every product, and the planner decides by what the run itself measures
// (trial.h): in the first steps both paths take turns on the real products.
//
//   step 0 ................... 15 | 16 .........................
//   every path is timed, and the  | the faster one, on disk
//   result of a fixed one counts  | before step 16 begins (step 32, if it was too close to call)
//
// So the numbers of a run depend on its choices and on the step from which they hold, and on no
// time: saved() has both, and a run that is given them has the same bits.
//
// Others ask once, before they begin (`weft plan`, generating text):
//
//   Planner planner;
//   LayerPlan plan = planner.plan({.shape = {2048, 768, 3072}, .pattern = Pattern(2, 4)});
//   plan[Product::kForward].choice    Choice::kSparse, with the times and the reason
//
// That is decided from a measured model: for the instruction set, the number of threads, the form
// of the product and the pattern, both paths are timed on a few shapes (about a second, once;
// cached, see timings.h), and times of other shapes are interpolated. Where the model sees less
// than a clear difference, or does not cover the shape, the shape itself is measured; so is every
// small product, which takes no time, and every convolution. Products are timed again and again, so
// weights that fit a cache come from there; from memory, streams win by more.
//
// Sparse is chosen only if it wins with its packing counted in.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/core/aligned_buffer.h"
#include "weft/core/bf16.h"
#include "weft/core/json.h"
#include "weft/kernel/kernels.h"
#include "weft/plan/timings.h"
#include "weft/plan/trial.h"
#include "weft/plan/way.h"

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

  friend bool operator==(const PlanRequest&, const PlanRequest&) = default;
};

// A convolution: masks and packs as in pack_conv.h. In bf16 it is expanded to fp32, dense or
// sparse alike; what that takes is left out, and the fp32 products decide.
struct ConvRequest {
  ConvShape conv;
  Pattern pattern;
  bool transposable = false;  // as above
  int products_per_pack = 1;
  bool masked_gradient = false;

  friend bool operator==(const ConvRequest&, const ConvRequest&) = default;
};

// All that competes for a product of the request when it is asked for once; its dense paths may be
// the same.
std::vector<Arithmetic> contestants(const PlanRequest& request, const ProductForm& form);

// Why a product runs as it does.
enum class PlanCause : uint8_t {
  kNothingPruned,
  kAskedFor,
  kMeasuring,      // nothing is decided yet: both paths run, and sparse results count
  kTrial,          // by what the run has measured
  kMeasured,       // at this shape
  kPredicted,      // by the model
  kSaved,          // in a plan that is repeated
  kExactGradient,  // of a recipe that computes all of dW
  kNotComputed,    // not needed: dx of the first layer
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
  double ratio_low = 0.0, ratio_high = 0.0;  // its quartiles, if a trial decided
  bool packs = false;                        // whether there is packing in it
  // Of bf16 operands: what multiplies them, and why nothing better; empty in fp32.
  std::string note;

  std::string path() const { return path_text(choice, arithmetic); }
  Way way() const { return {choice == Choice::kSparse, arithmetic.compute}; }
  bool was_timed() const {
    return cause == PlanCause::kTrial || cause == PlanCause::kMeasured ||
           cause == PlanCause::kPredicted;
  }
  std::string reason() const;  // for people
};

struct LayerPlan {
  std::array<ProductPlan, 3> products;  // in the order of kProducts

  const ProductPlan& operator[](Product product) const {
    return products[static_cast<size_t>(product)];
  }
  bool is_decided() const;  // nothing is being measured
  bool has_paths_of(const LayerPlan& other) const;
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

// How a product of a training step runs.
struct Route {
  Way way;             // its result counts
  bool chosen = true;  // if not, nothing is decided yet, or the choice holds only from a later step
  // Unless it is empty: the planner measures, and the layer is to take all of these and time them.
  std::span<const Way> contestants = {};
};

// What choices were measured on: the CPU's name and the instruction set.
struct PlanMachine {
  std::string cpu, isa;

  static PlanMachine here();
  std::string text() const { return cpu + ", " + isa; }
  friend bool operator==(const PlanMachine&, const PlanMachine&) = default;
};

class Planner {
 public:
  explicit Planner(PlanMode mode = PlanMode::kAuto,
                   std::filesystem::path cache = default_timings_path());

  // ---- asked once
  LayerPlan plan(const PlanRequest& request);
  LayerPlan plan(const ConvRequest& request);

  // ---- asked by layers, for every product
  // `layer` is the caller: of all layers with the same request, one measures.
  Route route(const PlanRequest& request, Product product, int64_t step, const void* layer);
  Route route(const ConvRequest& request, Product product, int64_t step, const void* layer);
  // What a layer that measures has found: milliseconds of every contestant, in this step.
  void add_times(const PlanRequest& request, Product product, int64_t step,
                 std::span<const double> ms);
  void add_times(const ConvRequest& request, Product product, int64_t step,
                 std::span<const double> ms);
  // Evaluation follows the choice of training for the nearest number of tokens or images; a layer
  // that was never trained asks the model.
  Way evaluation_way(const PlanRequest& request, Product product, int64_t step);
  Way evaluation_way(const ConvRequest& request, Product product, int64_t step);
  // While it previews, a layer that has not been trained takes the fixed way, and nothing is timed:
  // for a pass that only shows whether a model fits its data.
  void preview(bool previews) { previews_ = previews; }
  // As decided so far, also for about as many tokens or images; cause kMeasuring where nothing is.
  LayerPlan known(const PlanRequest& request) const;
  LayerPlan known(const ConvRequest& request) const;
  // Decides what has been measured long enough when this step begins. A caller that
  // records choices calls it between steps; otherwise the first product of the step does.
  void settle(int64_t step);
  bool measured_before(
      int64_t step) const;  // something was under trial in the step before this one
  // Of a rank that follows another one: it measures as that does, so that both compute the same, and
  // decides nothing. Its choices are those that it adopts: saved(), of the other.
  void follow() { follows_ = true; }
  void adopt(std::string_view json);
  // Drops unfinished trials, whose layers no longer exist.
  void drop_trials();
  // Decided choices hold from step 0. Otherwise they hold from the step at which they were made,
  // and earlier steps take the fixed way.
  void apply_at_once();
  // Scratch memory for dense copies of layers under trial. Freed when the last trial ends.
  template <typename T>
  AlignedBuffer<T>& spare();

  // ---- choices as text
  // The choices made so far, and a planner that repeats them: a request that is not among them is
  // an Error.
  std::string saved() const;  // JSON
  static Planner from_saved(std::string_view json);
  // Keeps to saved choices from here on, where it has made none, and decides what is not among them
  // as usual: a run that goes on meets shapes that it had not met when its choices were written.
  void remember(std::string_view json);
  // Where the saved choices that it keeps to were measured; nothing if it has none, or if they do
  // not say.
  const std::optional<PlanMachine>& saved_on() const { return saved_on_; }
  // A line for people if that is another machine than this one; else empty. name: of the plan.
  std::string note_on_machine(const std::string& name) const;
  // Why timings could not be kept, in one line; empty if they were.
  const std::string& cache_problem() const { return timings_.problem(); }
  // Changes whenever saved() does.
  int64_t revision() const { return revision_; }

 private:
  // What is known of one product of a request.
  struct Entry {
    std::string weights;  // the request without tokens or images: what evaluation looks for
    int64_t size = 0;     // tokens or images
    int64_t begun = 0;    // evaluations from this step on follow training: one after it asked first
    int64_t since = 0;    // training steps from this one on follow the plan
    bool decided = false;  // if not, it is under trial
    ProductPlan plan;
    std::optional<Trial> trial;   // nothing: it is decided, or was saved before it was
    const void* layer = nullptr;  // that measures
    int64_t warm_up = 0;          // the step in which the trial began
    int64_t last_step = -2;       // in which that layer asked; before the first one, none did
    bool extended = false;        // the trial was too close to call, and goes on
  };

  template <typename Request>
  LayerPlan plan_once(const Request& request);
  template <typename Request>
  Route route_of(const Request& request, Product product, int64_t step, const void* layer);
  template <typename Request>
  void add_times_of(const Request& request, Product product, int64_t step,
                    std::span<const double> ms);
  template <typename Request>
  Way way_in_evaluation(const Request& request, Product product, int64_t step);
  template <typename Request>
  LayerPlan known_plan(const Request& request) const;
  template <typename Request>
  Entry& entry_for(const Request& request, Product product, int64_t step);
  template <typename Request>
  void require_not_only_saved(const Request& request) const;
  template <typename Request>
  bool is_given(const Request& request) const;
  template <typename Request>
  ProductPlan decide(const Request& request, Product product);
  template <typename Request>
  Arithmetic forced_arithmetic(const Request& request, const ProductPlan& plan);
  template <typename Request>
  void begin_trial(const Request& request, int64_t step, Entry& entry);
  // The entry of a request, or one for the same weights and about as many tokens; null: none.
  const Entry* similar(const std::string& key, const std::string& weights, int64_t size) const;
  const Entry* nearest_for_evaluation(const std::string& weights, int64_t size, int64_t step) const;
  void judge(Entry& entry, int64_t step);
  static std::map<std::string, Entry> entries_from(const Json& root);

  // What decides, when each product pays for `packs` packings; fills in the times.
  Contest time(const PlanRequest& request, double packs, ProductPlan& plan);
  Contest time(const ConvRequest& request, double packs, ProductPlan& plan);

  PlanMode mode_;
  bool only_saved_ = false;
  bool previews_ = false;
  bool follows_ = false;
  int64_t revision_ = 0;
  Timings timings_;
  std::optional<PlanMachine> saved_on_;
  // By "<shape>/<pattern>/<per pack>[/bf16]/<form>". Decided once: layers of one shape run alike,
  // and as saved.
  std::map<std::string, Entry> entries_;
  std::map<std::string, ProductPlan> untrained_;  // of evaluations before any training
  AlignedBuffer<float> spare_;
  AlignedBuffer<Bf16> spare_bf16_;
};

}  // namespace weft
