// keep:group for every layer, chosen from what the layer is like.
//
// By its zeros (Hubara et al. 2021): if a share z of its weights is zero, spread at random, a group
// has at most `keep` non-zeros with
//
//   P(keep) = Σ_{i ≥ group − keep} C(group, i) zⁱ (1 − z)^(group − i)
//
// and `keep` is the least with P(keep) > confidence: the share of groups that need not lose
// anything.
//
// By a budget: of all weights together at most a share `density` stays, and the sum of the layers'
// errors is as small as steps along their convex hulls make it: always the step that costs the
// least error per weight. Optimal for convex curves up to the last step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

double chance_to_fit(int group, int keep, double zeros);
int keep_for_zeros(int group, double zeros, double confidence);  // 1 to group

// Both [group], for keep = 1, 2, ... group. A group that the edge cuts keeps more than its share,
// so what stays is counted, not multiplied.
struct KeepCosts {
  std::vector<int64_t> kept;   // weights that stay, never falling; the last is all
  std::vector<double> errors;  // the last is 0
};
// One keep per layer. density in (0, 1]; at least one of a group stays, whatever the budget.
std::vector<int> keeps_for_density(const std::vector<KeepCosts>& layers, double density);

}  // namespace weft
