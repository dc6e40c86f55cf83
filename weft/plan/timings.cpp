#include "weft/plan/timings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "weft/core/atomic_file.h"
#include "weft/core/cpu_name.h"
#include "weft/core/error.h"
#include "weft/core/isa.h"
#include "weft/core/json.h"
#include "weft/core/median.h"
#include "weft/core/parallel.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"
#include "weft/core/version.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/pack/tiles.h"
#include "weft/plan/synthetic.h"

namespace weft {
namespace {

// Shapes on which the model stands: from what fits L1 to what fills L3.
constexpr std::array kModelShapes = {LayerShape{32, 64, 64}, LayerShape{128, 128, 128},
                                     LayerShape{256, 256, 256}, LayerShape{512, 512, 512},
                                     LayerShape{1024, 1024, 1024}};

// Of what is timed: raised when a kernel's speed changes, so that old times are forgotten.
constexpr int kKernelSpeeds = 10;

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double time_ms(int times, const std::function<void()>& body) {
  const double begin = now_ms();
  for (int i = 0; i < times; ++i) body();
  return (now_ms() - begin) / times;
}

double weights_packed(const ProductForm& form, const LayerShape& shape) {
  const auto outs = static_cast<double>(shape.outs);
  return outs * static_cast<double>(form.packs_gradient() ? shape.tokens : shape.ins);
}

// How often a body that took `once` runs for a sample: a quarter of a millisecond.
constexpr double kSampleMs = 0.25;
int repeats(double once) {
  return static_cast<int>(std::clamp(kSampleMs / std::max(once, 1e-6), 1.0, 1000.0));
}

// One of the bodies that take turns.
class Timed {
 public:
  explicit Timed(std::function<void()> body) : body_(std::move(body)) {
    body_();  // the first call sets up more than it computes
    once_ = time_ms(1, body_);
  }

  double once() const { return once_; }
  void sample() { samples_.push_back(time_ms(repeats(once_), body_)); }
  const std::vector<double>& samples() const { return samples_; }
  // What it takes of the other's time, in the same turn: the speed of a machine changes by half
  // from one moment to the next, so paths are compared within a turn.
  std::vector<double> shares_of(const Timed& other) const {
    std::vector<double> shares;
    for (size_t i = 0; i < samples_.size(); ++i) shares.push_back(samples_[i] / other.samples_[i]);
    return shares;
  }
  double share_of(const Timed& other) const { return median(shares_of(other)); }

 private:
  std::function<void()> body_;
  double once_ = 0.0;
  std::vector<double> samples_;
};

// Both paths of a SyntheticProduct or SyntheticConv.
template <typename Synthetic>
ProductTimes take_turns(Synthetic product) {
  std::vector<Timed> all;
  all.emplace_back([&] { product.run_dense(); });
  all.emplace_back([&] { product.pack_dense(); });
  if (product.has_sparse()) {
    all.emplace_back([&] { product.run_sparse(); });
    all.emplace_back([&] { product.pack(); });
  }
  // Small products, which are often near a tie, get some 30 ms; large ones a few samples.
  double turn_ms = 0.0;
  for (const Timed& one : all) turn_ms += std::max(one.once(), kSampleMs);
  const int turns = turn_ms > 100.0 ? 3 : static_cast<int>(std::clamp(30.0 / turn_ms, 7.0, 31.0));
  const Timed& dense = all[0];
  const bool sparse = product.has_sparse();
  double spread = 1.0;
  constexpr int kLongest = 4;
  for (int part = 0; part == 0 || (part < kLongest && ProductTimes{.spread = spread}.is_doubtful());
       ++part) {
    for (int i = 0; i < turns; ++i) {
      for (Timed& one : all) one.sample();
    }
    if (!sparse) break;
    const std::vector<double> shares = all[2].shares_of(dense);
    spread = quantile(shares, 0.75) / quantile(shares, 0.25);
  }
  const double dense_ms = quantile(dense.samples(), 0.25);  // other work only ever adds time
  return {.dense = dense_ms,
          .sparse = sparse ? dense_ms * all[2].share_of(dense) : ProductTimes::kNever,
          .pack = sparse ? dense_ms * all[3].share_of(dense) : 0.0,
          .dense_pack = dense_ms * all[1].share_of(dense),
          .spread = spread};
}

}  // namespace

std::span<const LayerShape> model_shapes() { return kModelShapes; }

void LayerShape::check() const {
  constexpr int64_t kMost = int64_t{1} << 31;  // elements of a matrix: 8 GB
  const bool right = tokens >= 1 && ins >= 1 && outs >= 1 && tokens <= kMost && ins <= kMost &&
                     outs <= kMost && tokens * ins <= kMost && tokens * outs <= kMost &&
                     ins * outs <= kMost;
  WEFT_CHECK(right,
             "shape {}: accepted are TOKENSxINSxOUTS of at least 1, with matrices of at most 2^31 "
             "elements",
             str());
}

std::string LayerShape::str() const { return fmt::format("{}x{}x{}", tokens, ins, outs); }

LayerShape LayerShape::parse(std::string_view text) {
  LayerShape shape;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  bool right = true;
  for (int64_t* size : {&shape.tokens, &shape.ins, &shape.outs}) {
    if (size != &shape.tokens) right = right && at < end && *at++ == 'x';
    const bool digit = at < end && *at >= '0' && *at <= '9';
    const auto [next, error] = std::from_chars(at, end, *size);
    right = right && digit && error == std::errc();
    at = next;
  }
  WEFT_CHECK(right && at == end, "shape '{}': accepted is TOKENSxINSxOUTS, as in 2048x768x3072",
             printable(text));
  shape.check();
  return shape;
}

PackLayout Arithmetic::layout() const {
  if (compute == Precision::kBf16) return PackLayout::kTile;
  return stream ? PackLayout::kStream : PackLayout::kPanel;
}

std::string Arithmetic::str() const {
  if (compute == Precision::kBf16) return fmt::format("bf16 on {}", tile_unit_name(tile_unit()));
  return fmt::format("{}{}", storage == Precision::kFp32 ? "fp32" : "bf16 in fp32",
                     stream ? ", stream" : "");
}

std::vector<Arithmetic> arithmetics(Precision storage, bool streams) {
  std::vector<Arithmetic> found = {{storage, Precision::kFp32}};
  if (streams) found.push_back({storage, Precision::kFp32, true});
  const bool tiles = storage == Precision::kBf16 && tile_unit() != TileUnit::kNone;
  if (tiles) found.push_back({storage, Precision::kBf16});
  return found;
}

bool has_tile_product(const ProductForm& form, const Pattern& pattern) {
  return !form.masked && !form.ragged && fills_tiles(pattern);
}

ProductTimes measure_product(const ProductForm& form, const LayerShape& shape,
                             const Pattern& pattern, const Arithmetic& arithmetic) {
  return take_turns(SyntheticProduct(form, shape, pattern, arithmetic));
}
ProductTimes measure_product(const ProductForm& form, const ConvShape& shape,
                             const Pattern& pattern) {
  check_measurable(shape);
  return take_turns(SyntheticConv(form, shape, pattern));
}

void check_measurable(const ConvShape& shape) {
  shape.check();
  constexpr int64_t kMost = int64_t{1} << 31;  // 8 GB
  const int64_t columns = shape.taps() * shape.group_ins() * shape.positions();
  WEFT_CHECK(
      shape.images >= 1 &&
          std::max({shape.x_size(), shape.w_size(), shape.y_size(), columns}) <= kMost,
      "convolution {}: to measure it, it must have an image, and tensors of at most 2^31 elements",
      shape.spec());
}

std::filesystem::path default_timings_path() {
  const auto from = [](const char* variable) -> std::filesystem::path {
    const char* value = std::getenv(variable);
    return value && value[0] == '/' ? value : "";
  };
  if (const auto cache = from("XDG_CACHE_HOME"); !cache.empty()) {
    return cache / "weft" / "timings.json";
  }
  const auto home = from("HOME");
  return home.empty() ? home : home / ".cache" / "weft" / "timings.json";
}

Timings::Timings(std::filesystem::path path) : path_(std::move(path)) { load(); }

namespace {

std::string key_of(const ProductForm& form, const Pattern& pattern, const std::string& shape,
                   const Arithmetic& arithmetic) {
  const std::string key =
      fmt::format("{}/{}/{}/{}/{}", current_isa(), threads(), form.name(), pattern.str(), shape);
  return arithmetic == Arithmetic() ? key : key + "/" + arithmetic.str();
}

}  // namespace

template <typename Measure>
ProductTimes Timings::measured(const std::string& key, Measure measure) {
  const auto found = known_.find(key);
  const bool known = found != known_.end();
  if (known && (!found->second.is_doubtful() || checked_.contains(key))) return found->second;
  const ProductTimes times = measure();
  checked_.insert(key);
  if (known && found->second.spread <= times.spread) return found->second;
  known_.insert_or_assign(key, times);
  save();
  return times;
}

ProductTimes Timings::measure(const ProductForm& form, const LayerShape& shape,
                              const Pattern& pattern, const Arithmetic& arithmetic) {
  shape.check();
  return measured(key_of(form, pattern, shape.str(), arithmetic),
                  [&] { return measure_product(form, shape, pattern, arithmetic); });
}
ProductTimes Timings::measure(const ProductForm& form, const ConvShape& shape,
                              const Pattern& pattern) {
  check_measurable(shape);
  return measured(key_of(form, pattern, shape.spec(), {}),
                  [&] { return measure_product(form, shape, pattern); });
}

bool Timings::covers(const LayerShape& shape) {
  const double side = std::cbrt(shape.flops() / 2.0);
  const auto near = [&](int64_t size) {
    return size >= 32 && static_cast<double>(size) >= side / 4.0 &&
           static_cast<double>(size) <= side * 4.0;
  };
  return near(shape.tokens) && near(shape.ins) && near(shape.outs);
}

// Cost per flop (per weight, for packing) is linear between the shapes of the model in the
// logarithm of their size, and constant beyond them.
ProductTimes Timings::predict(const ProductForm& form, const LayerShape& shape,
                              const Pattern& pattern, const Arithmetic& arithmetic) {
  shape.check();
  bool has_sparse = true;
  const auto cost = [&](size_t i) -> ProductTimes {
    const LayerShape& model = kModelShapes[i];
    const ProductTimes times = measure(form, model, pattern, arithmetic);
    has_sparse = times.has_sparse();
    const double weights = weights_packed(form, model);
    return {times.dense / model.flops(), times.sparse / model.flops(), times.pack / weights,
            times.dense_pack / weights, times.spread};
  };
  size_t upper = 0;
  while (upper < kModelShapes.size() && kModelShapes[upper].flops() < shape.flops()) ++upper;
  const size_t high = std::min(upper, kModelShapes.size() - 1);
  const size_t low = upper == 0 ? 0 : upper - 1;
  const ProductTimes below = cost(low), above = cost(high);
  const double span = std::log(kModelShapes[high].flops() / kModelShapes[low].flops());
  const double at = span == 0.0 ? 0.0 : std::log(shape.flops() / kModelShapes[low].flops()) / span;
  const auto between = [&](double a, double b) { return a + (b - a) * at; };
  const double weights = weights_packed(form, shape);
  return {between(below.dense, above.dense) * shape.flops(),
          has_sparse ? between(below.sparse, above.sparse) * shape.flops() : ProductTimes::kNever,
          between(below.pack, above.pack) * weights,
          between(below.dense_pack, above.dense_pack) * weights,
          std::max(below.spread, above.spread)};
}

void Timings::load() {
  // A cache that is not there or may not be read is measured again. What is there and is no small
  // file (a pipe, a folder, gigabytes) would never be replaced: that is for the user to mend.
  if (path_.empty() || ::access(path_.c_str(), R_OK) != 0) return;
  const Json root = Json::parse_or_null(read_small_file(path_));
  const auto has = [&](const char* name, const Json& value) {
    return root.contains(name) && root[name] == value;
  };
  const bool of_this =
      has("weft", kVersion) && has("kernels", kKernelSpeeds) && has("cpu", cpu_name());
  if (!of_this || !root.contains("ms")) return;
  for (const auto& [key, value] : root["ms"].members()) {
    const bool five_numbers = value.is_array() && value.size() == 5 &&
                              std::all_of(value.begin(), value.end(), [](const Json& v) {
                                return v.is_number() && v.get<double>() >= 0.0;
                              });
    if (!five_numbers) continue;
    const ProductTimes times{value[0].get<double>(), value[1].get<double>(), value[2].get<double>(),
                             value[3].get<double>(), value[4].get<double>()};
    if (times.dense > 0.0 && times.sparse > 0.0) known_[key] = times;
  }
}

void Timings::save() {
  if (path_.empty()) return;
  Json ms = Json::object();
  for (const auto& [key, times] : known_) {
    ms.append(key, {times.dense, times.sparse, times.pack, times.dense_pack, times.spread});
  }
  const std::string text =
      Json{{"cpu", cpu_name()}, {"kernels", kKernelSpeeds}, {"ms", ms}, {"weft", kVersion}}.dump(
          1) +
      "\n";
  // A cache that cannot be kept costs a second next time.
  std::error_code failure;
  std::filesystem::create_directories(path_.parent_path(), failure);
  try {
    WEFT_CHECK(!failure, "{}: cannot make the folder: {}", path_.parent_path().string(),
               failure.message());
    write_file_atomically(path_, text);
    problem_.clear();
  } catch (const Error& error) {
    problem_ = fmt::format("timings are not kept: {}", error.what());
  }
}

}  // namespace weft
