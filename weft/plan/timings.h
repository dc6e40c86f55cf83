// Timings: how long dense and sparse products take on this machine, measured once and kept.
// Layers are predicted from a few shapes; a convolution is measured as it is, for there is no
// telling one from another.
//
// Times depend on the CPU, the instruction set, the number of threads, the form of the product, the
// pattern and the numbers. They are kept in one JSON file in the user's cache directory, which is
// forgotten when weft's version, its kernels or the CPU change. A file that cannot be read or
// written is no error: everything is measured again. So are times with a wide spread, once per
// process: they were taken on a busy machine.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/pattern.h"
#include "weft/core/precision.h"
#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/kernels.h"

namespace weft {

struct LayerShape {
  int64_t tokens = 0;
  int64_t ins = 0;
  int64_t outs = 0;

  double flops() const {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(ins) * static_cast<double>(outs);
  }
  void check() const;  // Error unless at least 1 each, and no matrix has more than 2^31 elements
  std::string str() const;  // "2048x768x3072"
  static LayerShape parse(std::string_view text);
  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

// The number types that operands are stored in and multiplied in, and the layout of a sparse one.
struct Arithmetic {
  Precision storage = Precision::kFp32;
  Precision compute = Precision::kFp32;  // bf16 only of bf16, and on a tile unit
  bool stream = false;                   // for few tokens; only with fp32

  PackLayout layout() const;  // of a sparse operand
  std::string str() const;    // "fp32", "fp32, stream", "bf16 in fp32", "bf16 on amx"
  friend bool operator==(const Arithmetic&, const Arithmetic&) = default;
};
// What this CPU can multiply operands of a precision in; fp32 first. With streams for few tokens
// only if they are asked for.
std::vector<Arithmetic> arithmetics(Precision storage, bool streams = false);
// Whether a tile unit multiplies a sparse operand of this form and pattern; of dense ones it takes
// all.
bool has_tile_product(const ProductForm& form, const Pattern& pattern);

// In milliseconds.
struct ProductTimes {
  // Of a product that there is not: tiles of a pattern that does not fill them.
  static constexpr double kNever = 1e30;

  double dense = 0.0;
  double sparse = 0.0;  // without packing the sparse operand
  double pack = 0.0;  // the sparse operand, from weights and mask; or the kept entries, from a mask
  double dense_pack = 0.0;  // the dense operand, where it is packed once for several products
  // Upper over lower quartile of what sparse takes of dense, without packing: 1 on a quiet machine.
  double spread = 1.0;

  bool has_sparse() const { return sparse < kNever; }
  // Measured beside other work: not to be relied on for long.
  bool is_doubtful() const { return spread > 1.3; }
};

// The shapes on which predictions stand.
std::span<const LayerShape> model_shapes();

// Times both paths, taking turns. Dense: lower quartile; others: median ratio to dense within a
// turn. Up to four times as many turns while the spread is wide. Operands are warm: who packs
// weights that an optimiser has just been through pays more.
ProductTimes measure_product(const ProductForm& form, const LayerShape& shape,
                             const Pattern& pattern, const Arithmetic& arithmetic = {});
ProductTimes measure_product(const ProductForm& form, const ConvShape& shape,
                             const Pattern& pattern);

// Error unless there is an image, and no tensor of the convolution, nor the columns of an image,
// has more than 2^31 elements.
void check_measurable(const ConvShape& shape);

// $XDG_CACHE_HOME/weft/timings.json, or ~/.cache/weft/timings.json; empty without a home.
std::filesystem::path default_timings_path();

class Timings {
 public:
  // An empty path keeps nothing.
  explicit Timings(std::filesystem::path path);

  // Whether a prediction would mean anything: the model stands on near-cubes, and a layer of one
  // token or eight inputs is another matter.
  static bool covers(const LayerShape& shape);
  // Interpolated between measured shapes, which are measured now if they are not known.
  ProductTimes predict(const ProductForm& form, const LayerShape& shape, const Pattern& pattern,
                       const Arithmetic& arithmetic = {});
  // At the shape itself, measured now if it is not known.
  ProductTimes measure(const ProductForm& form, const LayerShape& shape, const Pattern& pattern,
                       const Arithmetic& arithmetic = {});
  ProductTimes measure(const ProductForm& form, const ConvShape& shape, const Pattern& pattern);

  // Why times could not be kept, in one line; empty if they were.
  const std::string& problem() const { return problem_; }

 private:
  // The times under this key, or those that `measure` finds.
  template <typename Measure>
  ProductTimes measured(const std::string& key, Measure measure);
  void load();
  void save();

  std::filesystem::path path_;
  std::string problem_;
  // "<isa>/<threads>/<form>/<pattern>/<shape>", the shape as LayerShape::str() or
  // ConvShape::spec(), and "/<arithmetic>" unless that is fp32 in panels
  std::map<std::string, ProductTimes> known_;
  std::set<std::string> checked_;  // measured in this process, however doubtful they are still
};

}  // namespace weft
