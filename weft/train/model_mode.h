// ModelMode: a model in training or evaluation mode while this is in scope; restores the mode at
// the end.
#pragma once

#include "weft/torch/model.h"

namespace weft {

class ModelMode {
 public:
  ModelMode(Model& model, bool training) : model_(model), before_(model.is_training()) {
    model.train(training);
  }
  ~ModelMode() { model_.train(before_); }
  ModelMode(const ModelMode&) = delete;
  ModelMode& operator=(const ModelMode&) = delete;

 private:
  Model& model_;
  bool before_;
};

}  // namespace weft
