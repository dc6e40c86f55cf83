// What a run is set up from: the environment, the planner, the recipes of layers, and how all that
// is written into run.json.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/json.h"
#include "weft/run/run_options.h"
#include "weft/torch/model.h"
#include "weft/torch/sparsify.h"
#include "weft/train/init_weights.h"

namespace weft {

// A layer as the run begins: what it trains by, and how its products run while it is sparse.
struct PlannedLayer {
  LayerReport report;
  std::optional<LayerPlan> plan;
  // Of a finished run, where rows share by an order: the magnitude that the mask retains, with the
  // order and without it.
  struct OrderGain {
    double retained = 0.0;
    double retained_unpermuted = 0.0;
  };
  std::optional<OrderGain> order = std::nullopt;
};
Json layers_json(const std::vector<PlannedLayer>& layers);

// ranks: mentioned if there are several.
Json environment_json(int threads, Precision precision, int ranks = 1);

// What a checkpoint must agree with to be of this run: all that its numbers depend on, but for how
// fast it runs and what may change when it is resumed. data: the checksum of the data; teacher: of
// the network that it learns from, if there is one.
std::string run_name(const RunOptions& options, uint32_t data,
                     const std::optional<InitRecord>& init,
                     const std::optional<uint32_t>& teacher = std::nullopt);

// As options.plan says: a mode, or the choices of another run's file.
std::shared_ptr<Planner> planner_of(const std::string& plan);
// Of a run that goes on: its choices are in its record, whatever file they came from.
std::shared_ptr<Planner> planner_of_mode(const std::string& plan);
// Keeps to saved choices. Throws Error that names the file they are from.
void remember_plan(Planner& planner, const Json& plan, const std::string& file);

// With `init`, a layer with a fixed mask (recipe static) is sparse from its first step, unless its
// recipe names a dense head, and where the file promises a pattern for it, at that one; layers that
// it promises nothing for are dense then, if it promises anything. Rules of the user come first.
// Throws Error that names the tensor if a promise is along outputs only: no layer can keep that.
SparsifyConfig sparsify_config(const RunOptions& options, const std::optional<InitRecord>& init,
                               std::shared_ptr<Planner> planner);

// A line for each way in which layers that should keep the zeros of a file do not: the weights
// break its promise, so that some are pruned; or the layer cannot be sparse.
std::vector<std::string> lost_promises(const RunOptions& options, const InitRecord& init,
                                       const std::vector<PlannedLayer>& layers, Model& model);

}  // namespace weft
