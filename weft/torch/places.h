// Places: the weights of a model that recipes can apply to, with the names that reports, rules and files
// have for them.
//
//   module                    layer               weight
//   fc1: Linear, Conv2d       fc1                 fc1.weight                          torch's or weft's
//   mha: MultiheadAttention   mha.in_proj         mha.in_proj_weight
//                             mha.q_proj, k, v    mha.q_proj_weight, ...              of other widths
//   others with a matrix      e.g. embedding      not computed by weft
//
// A layer of weft that computes for a module of torch is a descendant of it: the child "weft", or
// "weft.in_proj" where a module has several weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/torch/layer_module.h"

namespace weft {

struct Place {
  std::shared_ptr<torch::nn::Module> module;
  std::string name;        // of the layer
  std::string weight;      // of its weight
  std::string own_weight;  // in the module: "weight"
  std::string projection;  // "in_proj"; empty: the module is one layer
  // The member that a module of torch multiplies with or looks up; null if there is none. It need not be
  // the parameter that the module has registered: b->weight = a->weight changes the first only.
  torch::Tensor* member = nullptr;

  // The layer of weft that the module is, or that computes for it; null if there is none.
  std::shared_ptr<LayerModule> layer() const;
  // What is multiplied with or looked up; undefined if weft does not know the module.
  torch::Tensor value() const;
  bool is_product() const;  // of weft's or torch's, whether or not weft can compute it
};

// Every place of a model, in the order of registration; a module that is registered in several places
// is taken up at its first.
std::vector<Place> places_of(torch::nn::Module& model);

// The layer of weft for a product: itself, or one that is attached now.
std::shared_ptr<LayerModule> weft_layer(const Place& place);
// The module of torch computes by itself again, with the weight of the layer.
void detach_layer(const Place& place);

// Tied weights: memory that several modules of a model read.
class TiedWeights {
 public:
  explicit TiedWeights(torch::nn::Module& model);

  // Another tensor in the memory of this weight; empty: there is none.
  std::string other_owner(const Place& place) const;

 private:
  // The address range of the elements of a tensor; nothing if it has no memory of its own
  // (the stand-in of routed_weight.h).
  struct Extent {
    uintptr_t begin = 0, end = 0;

    explicit Extent(const torch::Tensor& tensor);
    bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
  };
  struct Owned {
    const torch::nn::Module* module;
    std::string own_name, name;
    Extent extent;
  };
  void add(const std::string& prefix, const std::shared_ptr<torch::nn::Module>& module);

  std::vector<Owned> all_;
};

}  // namespace weft
