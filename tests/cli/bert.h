// A folder of Hugging Face with a small BERT: names, biases and norms as a real one has them.
#pragma once

#include <string>
#include <vector>

#include "tests/model_files.h"

namespace weft::test {

inline constexpr int64_t kBertWidth = 16, kBertWords = 40;

inline std::vector<NamedTensor> bert_tensors(int layers) {
  constexpr int64_t n = kBertWidth;
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    tensors.push_back({name, Dtype::kF32, std::move(shape), gaussian(count, tensors.size())});
  };
  const auto add_both = [&](const std::string& name, std::vector<int64_t> shape) {
    add(name + ".weight", shape);
    add(name + ".bias", {shape[0]});
  };
  add("embeddings.word_embeddings.weight", {kBertWords, n});
  add("embeddings.position_embeddings.weight", {32, n});
  add("embeddings.token_type_embeddings.weight", {2, n});
  add_both("embeddings.LayerNorm", {n});
  for (int l = 0; l < layers; ++l) {
    const std::string layer = fmt::format("encoder.layer.{}.", l);
    for (const char* name : {"self.query", "self.key", "self.value", "output.dense"}) {
      add_both(layer + "attention." + name, {n, n});
    }
    add_both(layer + "attention.output.LayerNorm", {n});
    add_both(layer + "intermediate.dense", {4 * n, n});
    add_both(layer + "output.dense", {n, 4 * n});
    add_both(layer + "output.LayerNorm", {n});
  }
  add_both("pooler.dense", {n, n});
  return tensors;
}
inline size_t bert_weights(int layers) { return static_cast<size_t>(6 * layers + 1); }

}  // namespace weft::test
