#include "weft/recipe/decay.h"

#include "weft/core/masked_copy.h"

namespace weft {

namespace {

template <typename T>
void decay_in_gradient(const DecayCall<T>& call) {
  add_where_pruned(static_cast<const T*>(call.weights), call.mask, static_cast<T>(call.lambda),
                   call.gradient);
}

template <typename T>
void decay_decoupled(const DecayCall<T>& call) {
  add_where_pruned(static_cast<const T*>(call.weights), call.mask,
                   static_cast<T>(-call.learning_rate * call.lambda), call.weights);
}

}  // namespace

const DecayPart kNoDecay = {.name = "none"};
const DecayPart kGradientDecay = {.name = "gradient",
                                  .apply = decay_in_gradient<float>,
                                  .apply_in_double = decay_in_gradient<double>};
const DecayPart kDecoupledDecay = {.name = "decoupled",
                                   .apply = decay_decoupled<float>,
                                   .apply_in_double = decay_decoupled<double>};
const DecayPart kAutoDecay = {.name = "auto",
                              .apply = decay_in_gradient<float>,
                              .apply_in_double = decay_in_gradient<double>,
                              .finds_lambda = true};

}  // namespace weft
