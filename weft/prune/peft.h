// adapter_config.json of PEFT: by how much a LoRA pair counts, and what weft does not merge.
//
//   scale = lora_alpha / r              lora_alpha / sqrt(r) with use_rslora
//
// rank_pattern and alpha_pattern give some layers an r and a lora_alpha of their own. As in PEFT a
// key is a regular expression for the end of a layer's name: `q_proj` and `layers.0.q_proj` both
// match `model.layers.0.q_proj`, `proj` does not. Where two keys match one layer, PEFT takes the
// one that was written first; weft does not know which that is, and refuses if they differ.
//
// Refused, in one line each: what is not plain LoRA (peft_type, use_dora, lora_bias, initial values
// that changed the base, ...), and adapters that hold more than LoRA (modules_to_save, bias).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "weft/checkpoint/checkpoint.h"

namespace weft {

class PeftConfig {
 public:
  // The config beside the file of an adapter, if there is one. Throws Error that names the file and
  // the key if it is malformed or asks for what is not supported.
  static std::optional<PeftConfig> beside(const Checkpoint& adapter);
  // name: of the file, for messages.
  static PeftConfig parse(const std::string& text, const std::string& name);

  const std::string& name() const { return name_; }
  // The base's weights are stored [ins, outs] (Conv1D).
  bool fan_in_fan_out() const { return fan_in_fan_out_; }

  // layer: without `base_model.model.`. rank: of its tensors; Error if the config has another.
  double scale_of(const std::string& layer, int64_t rank) const;

 private:
  std::string name_;
  double alpha_ = 0;
  double rank_ = 0;
  bool rslora_ = false;
  bool fan_in_fan_out_ = false;
  std::map<std::string, double> alphas_, ranks_;  // alpha_pattern, rank_pattern
};

}  // namespace weft
