// Deltas: what a file of differences has for the tensors of another one, its base.
//
//   D = <name>                                       a full delta, of the same shape
//   D = scale * B A                                  a LoRA pair, for <layer>.weight:
//       A = <layer>.lora_A.weight  [rank, cols]      cols = ins, or ins * kh * kw for a convolution
//       B = <layer>.lora_B.weight  [outs, rank]
//
// For a convolution also A of [rank, ins, kh, kw] and B of [outs, rank, 1, 1]. A pair may also end
// in .lora_A, .lora_A.default or .lora_A.default.weight, and begin with `base_model.model.`, as in
// files of PEFT; then the base may lack the first part of the layer's name, as GPT-2's files lack
// `transformer.`. Other tensors with that prefix, or in an adapter of PEFT, are refused: PEFT
// stores whole weights there (modules_to_save, biases), and adding them would not be what they
// mean.
//
// scale is PEFT's if there is an adapter_config.json (peft.h). If the base stores a weight as
// [ins, outs], (B A)ᵀ is added to it.
//
// Memory: A in double (and B, if the product is transposed), and the rows that are asked for.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/stored_weight.h"
#include "weft/prune/peft.h"

namespace weft {

struct Delta {
  struct Lora {
    ShardedTensor a, b;
    int64_t rank = 0;
    double scale = 1;
    bool transposed = false;  // the base stores the weight as [ins, outs]
  };
  std::optional<ShardedTensor> full;  // or else
  std::optional<Lora> lora;
};

struct DeltaRules {
  std::optional<PeftConfig> peft;  // of the adapter
  std::optional<double> scale;     // of all pairs; nothing: as `peft` says, or 1
  // Tensors of the base that are known to be stored [ins, outs]; null: none.
  std::function<bool(const TensorInfo&)> is_transposed;
};

// By the name of the tensor of `base`. Reads no weights. Throws Error that names file and tensor if
// one of `deltas` has no tensor to change, no partner, a rival, or a wrong shape or type.
std::map<std::string, Delta> match_deltas(const Checkpoint& base, const Checkpoint& deltas,
                                          const DeltaRules& rules = {});

// The rows of one delta. The checkpoint must outlive this object.
class DeltaRows {
 public:
  // Reads A, if the delta is a LoRA pair. transposed: rows are columns of the tensor of the base.
  DeltaRows(const Checkpoint& deltas, const Delta& delta, bool transposed = false);

  // [rows, row length] from `first_row` of the first dimension; a scalar is one row. Throws Error
  // that names file, tensor and index of an element that is not finite.
  std::vector<double> read(int64_t first_row, int64_t rows) const;

 private:
  // left: [rows, rank], times right_.
  std::vector<double> product(const std::vector<double>& left, int64_t rows) const;

  const Checkpoint& deltas_;
  Delta delta_;
  bool transposed_;
  // Of a LoRA pair: rows of B A, or of (B A)ᵀ = Aᵀ Bᵀ.
  bool swapped_ = false;
  std::vector<double> right_;  // [rank, cols]: A, or Bᵀ
  std::vector<double> left_;   // if swapped, [rows, rank]: Aᵀ
  int64_t cols_ = 0;
};

}  // namespace weft
