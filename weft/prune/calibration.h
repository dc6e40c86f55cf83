// What layers see: a source of Gram matrices, one layer at a time.
//
// A calibration file is a safetensors checkpoint, of any program, that has for every layer
//
//   <layer>.input    [samples, cols]   what went into it, one sample (token, position) per row
//   <layer>.gram     [cols, cols]      or the mean of x xᵀ over samples,
//   <layer>.mean     [cols]            with this, the mean of x, the bias can be corrected
//   <layer>.samples  []                an integer; with it, too few samples are noticed
//
// in F32, F16, BF16 or F64, grams in F32 or F64. <layer> is the name of the weight without
// ".weight"; cols are its columns: inputs, or, of a convolution, channels x kernel height x kernel
// width, as torch's unfold has them. Without a mean a gram may have any scale.
#pragma once

#include <filesystem>
#include <string>

#include "weft/checkpoint/checkpoint.h"
#include "weft/core/weight_shape.h"
#include "weft/prune/gram.h"

namespace weft {

class LayerInputs {
 public:
  virtual ~LayerInputs() = default;

  // Throws Error that names file and tensor if there is nothing usable for a layer of this shape,
  // as far as that shows without reading; fewer than `samples` are not enough.
  virtual void check(const std::string& layer, const WeightShape& shape, int64_t samples) const = 0;
  virtual Gram gram(const std::string& layer, const WeightShape& shape) const = 0;
};

class CalibrationFile : public LayerInputs {
 public:
  explicit CalibrationFile(const std::filesystem::path& path);

  std::vector<std::filesystem::path> paths() const { return checkpoint_.paths(); }

  void check(const std::string& layer, const WeightShape& shape, int64_t samples) const override;
  // Reads inputs in pieces: memory is that of one Gram matrix. Throws Error at NaN and infinity,
  // and if a gram is not one.
  Gram gram(const std::string& layer, const WeightShape& shape) const override;

 private:
  std::string place(const ShardedTensor& tensor) const;  // file and tensor, for messages
  Gram gram_of_inputs(const ShardedTensor& tensor) const;
  void add_mean(const ShardedTensor& tensor, const ShardedTensor& mean, Gram& gram) const;
  Gram saved_gram(const std::string& layer, const ShardedTensor& tensor) const;
  int64_t saved_samples(const std::string& layer) const;  // 0: not known

  Checkpoint checkpoint_;
};

// What calibration calls the layer of a weight: "blocks.0.fc1.weight" -> "blocks.0.fc1".
std::string calibration_name(const std::string& tensor);

}  // namespace weft
