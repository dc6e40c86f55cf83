// The sections of a report. Each is empty if the runs have nothing for it.
#pragma once

#include <vector>

#include "weft/report/html.h"
#include "weft/report/runs.h"

namespace weft {

struct PageSection {
  std::string id, heading;
  Html body;
};

PageSection summary_section(const std::vector<Variant>& variants);
PageSection curves_section(const std::vector<Variant>& variants);
PageSection time_section(const std::vector<Variant>& variants);
PageSection layers_section(const std::vector<Variant>& variants);
PageSection runs_section(const std::vector<Variant>& variants);
PageSection environment_section(const std::vector<Variant>& variants);
PageSection repeat_section(const std::vector<Variant>& variants);

}  // namespace weft
