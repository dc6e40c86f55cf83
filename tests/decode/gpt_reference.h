// A byte-level GPT to decode with: in a file, and in double, by an implementation that keeps nothing and
// has no loop in common with the decoder.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/core/error.h"
#include "weft/core/pattern.h"
#include "weft/core/rng.h"
#include "weft/decode/gpt_decoder.h"

namespace weft::test {

struct NamedTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  std::vector<float> values;  // written as zeros if the type is not F32
};

inline void write_file(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const Metadata& metadata) {
  std::vector<TensorInfo> infos;
  for (const NamedTensor& tensor : tensors) {
    infos.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
  }
  SafetensorsWriter writer(path, infos, metadata);
  for (const NamedTensor& tensor : tensors) {
    std::vector<std::byte> bytes(tensor_bytes(tensor.dtype, tensor.shape));
    if (tensor.dtype == Dtype::kF32 && !bytes.empty()) {
      std::memcpy(bytes.data(), tensor.values.data(), bytes.size());
    }
    writer.write(tensor.name, 0, bytes);
  }
  writer.commit();
}

struct Sizes {
  int64_t width, context, depth, hidden, heads;

  std::string str() const {
    return fmt::format("width {}, context {}, depth {}, hidden {}, heads {}, seed {}", width,
                       context, depth, hidden, heads, test_seed());
  }
};

// Weights such that activations stay of the size of one and attention prefers some tokens.
class Model {
 public:
  explicit Model(const Sizes& sizes) : sizes_(sizes) {
    const int64_t w = sizes.width, h = sizes.hidden;
    add("tokens.weight", {256, w}, 1);
    add("positions.weight", {sizes.context, w}, 1);
    for (int64_t i = 0; i < sizes.depth; ++i) {
      const std::string block = fmt::format("blocks.{}.", i);
      add_norm(block + "norm1");
      add_linear(block + "attention.qkv", 3 * w, w, 2);
      add_linear(block + "attention.proj", w, w, 1);
      add_norm(block + "norm2");
      add_linear(block + "fc1", h, w, 1.5);
      add_linear(block + "fc2", w, h, 1.5);
    }
    add_norm("norm");
    add("head.weight", {256, w}, 2 / std::sqrt(static_cast<double>(w)));
  }

  const Sizes& sizes() const { return sizes_; }
  std::vector<NamedTensor>& tensors() { return tensors_; }
  NamedTensor& at(const std::string& name) {
    for (NamedTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    throw Error("no tensor " + name);
  }
  const std::vector<float>& values(const std::string& name) const {
    return const_cast<Model*>(this)->at(name).values;
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const NamedTensor& tensor) { return tensor.name == name; });
  }

  // The names of the matrices that a product takes.
  std::vector<std::string> matrices() const {
    std::vector<std::string> names;
    for (const NamedTensor& tensor : tensors_) {
      if (tensor.shape.size() == 2 && tensor.name != "tokens.weight" &&
          tensor.name != "positions.weight") {
        names.push_back(tensor.name);
      }
    }
    return names;
  }

  // Keeps the first `keep` of each group of all matrices, shifted from row to row.
  void make_sparse(const Pattern& pattern) {
    for (const std::string& name : matrices()) {
      NamedTensor& tensor = at(name);
      const int64_t ins = tensor.shape[1];
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / ins, col = static_cast<int64_t>(i) % ins;
        if ((col + row) % pattern.group() >= pattern.keep()) tensor.values[i] = 0;
      }
    }
  }

  std::string write(const ScratchFolder& folder, const std::string& name,
                    const Metadata& metadata = {}) const {
    const std::string path = folder / name;
    write_file(path, tensors_, metadata);
    return path;
  }

 private:
  void add(const std::string& name, const std::vector<int64_t>& shape, double scale,
           double offset = 0) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    const Rng rng(test_seed(), tensors_.size());
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(offset + scale * rng.normal(i));
    }
    tensors_.push_back({name, Dtype::kF32, shape, std::move(values)});
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", {sizes_.width}, 0.3, 1);
    add(name + ".bias", {sizes_.width}, 0.3);
  }
  void add_linear(const std::string& name, int64_t outs, int64_t ins, double gain) {
    add(name + ".weight", {outs, ins}, gain / std::sqrt(static_cast<double>(ins)));
    add(name + ".bias", {outs}, 0.3);
  }

  Sizes sizes_;
  std::vector<NamedTensor> tensors_;
};

// ---- the same in double, whole sequences at a time, straight from the definition

using Vector = std::vector<double>;

inline Vector normed(const Model& model, const std::string& name, const Vector& x) {
  double mean = 0, variance = 0;
  for (const double v : x) mean += v / static_cast<double>(x.size());
  for (const double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) / std::sqrt(variance + 1e-5) * double{model.values(name + ".weight")[i]} +
           double{model.values(name + ".bias")[i]};
  }
  return y;
}

inline Vector linear(const Model& model, const std::string& name, const Vector& x,
                     bool bias = true) {
  const std::vector<float>& w = model.values(name + ".weight");
  Vector y(w.size() / x.size());
  for (size_t o = 0; o < y.size(); ++o) {
    if (bias) y[o] = double{model.values(name + ".bias")[o]};
    for (size_t i = 0; i < x.size(); ++i) y[o] += double{w[o * x.size() + i]} * x[i];
  }
  return y;
}

inline void add_to(Vector& x, const Vector& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// What token t gets from tokens 0 .. t. qkv: of every token.
inline Vector attention(const std::vector<Vector>& qkv, size_t t, size_t width, size_t heads) {
  const size_t dim = width / heads;
  Vector out(width, 0.0);
  for (size_t h = 0; h < heads; ++h) {
    Vector weight(t + 1);
    double sum = 0;
    for (size_t p = 0; p <= t; ++p) {
      double dot = 0;
      for (size_t i = h * dim; i < (h + 1) * dim; ++i) dot += qkv[t][i] * qkv[p][width + i];
      weight[p] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
      sum += weight[p];
    }
    for (size_t p = 0; p <= t; ++p) {
      for (size_t i = h * dim; i < (h + 1) * dim; ++i) {
        out[i] += weight[p] / sum * qkv[p][2 * width + i];
      }
    }
  }
  return out;
}

// The logits after the last of these tokens, which begin at position 0.
inline Vector reference_window(const Model& model, const std::vector<uint8_t>& tokens) {
  const auto width = static_cast<size_t>(model.sizes().width);
  std::vector<Vector> x(tokens.size(), Vector(width));
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (size_t i = 0; i < width; ++i) {
      x[t][i] = double{model.values("tokens.weight")[tokens[t] * width + i]} +
                double{model.values("positions.weight")[t * width + i]};
    }
  }
  for (int64_t b = 0; b < model.sizes().depth; ++b) {
    const std::string block = fmt::format("blocks.{}.", b);
    std::vector<Vector> qkv;
    for (const Vector& v : x) {
      qkv.push_back(linear(model, block + "attention.qkv", normed(model, block + "norm1", v)));
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector mixed = attention(qkv, t, width, static_cast<size_t>(model.sizes().heads));
      add_to(x[t], linear(model, block + "attention.proj", mixed));
      Vector hidden = linear(model, block + "fc1", normed(model, block + "norm2", x[t]));
      for (double& v : hidden) v *= 0.5 * (1 + std::erf(v / std::sqrt(2.0)));
      add_to(x[t], linear(model, block + "fc2", hidden));
    }
  }
  return linear(model, "head", normed(model, "norm", x.back()), false);
}

// The tokens that the decoder sees after all of these: with a full context it goes on from half.
inline std::vector<uint8_t> window_of(const std::vector<uint8_t>& tokens, int64_t context) {
  std::vector<uint8_t> window;
  for (const uint8_t token : tokens) {
    if (static_cast<int64_t>(window.size()) == context) {
      window.erase(window.begin(), window.end() - context / 2);
    }
    window.push_back(token);
  }
  return window;
}

inline std::vector<uint8_t> draw_tokens(size_t count, uint64_t stream = 0) {
  std::vector<uint8_t> tokens(count);
  const Rng rng(test_seed(), 1000 + stream);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<uint8_t>(rng.below(i, 256));
  return tokens;
}

// Logits are of the size of two; the worst that rounding in float did to one was 1.1e-5.
inline constexpr double kBound = 1e-4;

inline std::string mismatch(std::span<const float> found, const Vector& wanted,
                            double bound = kBound) {
  if (found.size() != wanted.size()) return "other number of logits";
  size_t worst = 0;
  double error = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    double e = std::abs(double{found[i]} - wanted[i]);
    if (std::isnan(e)) e = INFINITY;
    if (e > error) error = e, worst = i;
  }
  if (error <= bound) return "";
  return fmt::format("logit {} is {}, wanted {}", worst, found[worst], wanted[worst]);
}

inline std::vector<float> copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

inline Vector widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Takes the tokens in pieces of these sizes, again and again.
inline std::vector<float> take_in(GptDecoder& decoder, const std::vector<uint8_t>& tokens,
                                  const std::vector<size_t>& sizes) {
  decoder.reset();
  std::vector<float> logits;
  for (size_t at = 0, i = 0; at < tokens.size(); ++i) {
    const size_t count = std::min(sizes[i % sizes.size()], tokens.size() - at);
    logits = copy(decoder.take(std::span(tokens).subspan(at, count)));
    at += count;
  }
  return logits;
}

inline const std::vector<Sizes> kSizes = {
    {12, 9, 1, 20, 1}, {12, 9, 2, 20, 2},   {20, 16, 2, 7, 4},  {5, 1, 1, 3, 1},
    {7, 2, 1, 1, 7},   {66, 33, 1, 130, 2}, {64, 40, 3, 96, 4}, {48, 150, 1, 192, 2}};

inline std::map<std::string, Pattern> patterns_for(const Model& model, const Pattern& pattern) {
  std::map<std::string, Pattern> patterns;
  for (const std::string& name : model.matrices()) patterns.emplace(name, pattern);
  return patterns;
}

}  // namespace weft::test
