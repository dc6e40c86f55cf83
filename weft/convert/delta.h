// Deltas: what a file of differences has for the tensors of another one, its base.
//
//   D = <name>                                       a full delta, of the same shape
//   D = scale * B A                                  a LoRA pair, for <layer>.weight:
//       A = <layer>.lora_A.weight  [rank, cols]      cols = ins, or ins * kh * kw for a convolution
//       B = <layer>.lora_B.weight  [outs, rank]
//
// For a convolution also A of [rank, ins, kh, kw] and B of [outs, rank, 1, 1]. A pair may also end
// in .lora_A, .lora_A.default or .lora_A.default.weight, and begin with `base_model.model.`, as in
// files of PEFT. Other tensors with that prefix are refused: PEFT stores whole weights under it
// (modules_to_save, biases), and adding them would not be what they mean.
//
// Memory: A in double, and the rows that are asked for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint.h"

namespace weft {

struct Delta {
  struct Lora {
    ShardedTensor a, b;
    int64_t rank = 0;
  };
  std::optional<ShardedTensor> full;  // or else
  std::optional<Lora> lora;
};

// By the name of the tensor of `base`. Reads no weights. Throws Error that names file and tensor if
// one of `deltas` has no tensor to change, no partner, a rival, or a wrong shape or type.
std::map<std::string, Delta> match_deltas(const Checkpoint& base, const Checkpoint& deltas);

// The rows of one delta. The checkpoint must outlive this object.
class DeltaRows {
 public:
  // Reads A, if the delta is a LoRA pair; `scale` is for these alone.
  DeltaRows(const Checkpoint& deltas, const Delta& delta, double scale);

  // [rows, row length] from `first_row` of the first dimension; a scalar is one row. Throws Error
  // that names file, tensor and index of an element that is not finite.
  std::vector<double> read(int64_t first_row, int64_t rows) const;

 private:
  std::vector<double> product(const std::vector<double>& b, int64_t rows) const;

  const Checkpoint& deltas_;
  Delta delta_;
  double scale_;
  std::vector<double> a_;  // [rank, cols]
  int64_t cols_ = 0;       // of a LoRA pair
};

}  // namespace weft
