// The inputs of the layers of a network while it runs on its training samples, and the batch
// normalisation statistics of these samples.
//
// Samples are spread evenly over the training set, so that all classes and places are among them;
// the network is in evaluation mode and stays as it is.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "weft/core/matrix_view.h"
#include "weft/torch/model.h"
#include "weft/train/batch_source.h"

namespace weft {

struct NetworkSamples {
  Model& model;
  const BatchSource& source;
  int64_t samples = 512;  // at most as many as there are
  int64_t batch = 64;
};

// Calls see(layer, rows) for the inputs of the layers of these names, batch by batch; rows: [n,
// columns of its weight]. Throws Error if there is no such layer. Runs the whole network once:
// memory is that of a batch.
void for_each_layer_input(
    const NetworkSamples& on, const std::set<std::string>& layers,
    const std::function<void(const std::string& layer, MatrixView<const float>)>& see);

// Running means and variances of all batch normalisation become those of the samples, as the
// network is now: the mean over batches, without momentum. Returns how many there are.
int64_t estimate_norms(const NetworkSamples& on);

}  // namespace weft
