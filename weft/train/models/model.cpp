#include "weft/train/models/model.h"

#include <torch/utils.h>

#include "weft/core/error.h"

namespace weft {

std::shared_ptr<Model> make_model(const RunOptions& options, const ModelShape& shape) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  if (options.model == "mlp") return make_mlp(options, shape);
  if (options.model == "cnn") return make_cnn(options, shape);
  if (options.model == "vit") return make_vit(options, shape);
  WEFT_CHECK(options.model == "gpt", "model '{}': accepted are mlp, cnn, vit, gpt", options.model);
  return make_gpt(options, shape);
}

}  // namespace weft
