// DenseFlips: how often the masks of sparse runs would change on the weights of this one, which is dense: what
// the flip rate of a recipe is compared with. For every recipe that is counted
//
//   the layers   are those that sparsify would make sparse by it, with the same rules and ends, each
//                at the pattern that it would have
//   the masks    are those that the recipe would find, when it would find them: top-N, transposable
//                or fixed, shared by rows or not, every step or every few (layer_state.h)
//   the steps    are those of its sparse phase
//
// The masks are in buffers of the layers, so that they are saved and a run goes on to the bit. Not
// for lbc, whose masks follow from scores. Cost: a mask per step, layer and kind of mask.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/torch/layer_module.h"
#include "weft/torch/sparsify.h"
#include "weft/train/followed_mask.h"

namespace weft {

class DenseFlips {
 public:
  // What sparsify makes of the model by each plan; it is to be sparsified as it shall be after
  // this.
  struct Counted {
    std::string name;
    SparsifyConfig plan;
  };
  DenseFlips(torch::nn::Module& model, const std::vector<Counted>& counted);

  void begin();                // masks of the first weights
  void restore(int64_t step);  // masks from the buffers, which were loaded
  void count(int64_t step);    // that many steps are taken: new masks against those before
  struct Rates {
    double last = 0.0;  // changed bits per weight, by the last count
    double mean = 0.0;  // over all counts of the sparse phase
  };
  const std::vector<std::string>& names() const { return names_; }
  Rates rates(size_t counted) const;

 private:
  struct Shadow {
    FollowedMask followed;
    int64_t changed = 0, compared = 0;  // bits and weights, by the last count
    // The buffers. counts: both sums over all counts, and the bits that the next training pass
    // would change before it begins.
    torch::Tensor mask = {}, row_order = {}, counts = {};
  };
  void update(Shadow& shadow, int64_t step);

  std::vector<std::string> names_;
  std::vector<Shadow> shadows_;               // one for all recipes with the same masks
  std::vector<std::vector<size_t>> of_each_;  // the shadows of each recipe that is counted
};

}  // namespace weft
