// What a run is set up from: the environment, the planner, the recipes of layers, and how all that
// is written into run.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/json.h"
#include "weft/train/run/run_options.h"
#include "weft/train/sparsify.h"

namespace weft {

// A layer as the run begins: what it trains by, and how its products run while it is sparse.
struct PlannedLayer {
  LayerReport report;
  std::optional<LayerPlan> plan;
};
Json layers_json(const std::vector<PlannedLayer>& layers);

Json environment_json(int threads);

// What a checkpoint must agree with to be of this run: all that its numbers depend on, but for
// where and how fast it runs. data: the checksum of the data.
std::string run_name(const RunOptions& options, uint32_t data);

// As options.plan says: a mode, or the choices of another run's file.
std::shared_ptr<Planner> planner_of(const std::string& plan);
// Of a run that goes on: its choices are in its record, whatever file they came from.
std::shared_ptr<Planner> planner_of_mode(const std::string& plan);
// Keeps to saved choices. Throws Error that names the file they are from.
void remember_plan(Planner& planner, const Json& plan, const std::string& file);

TrainingPlan training_plan(const RunOptions& options, std::shared_ptr<Planner> planner);

}  // namespace weft
