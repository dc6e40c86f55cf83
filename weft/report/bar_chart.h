// BarChart: one bar per row, stacked from parts that add up to it, as inline SVG with a table.
#pragma once

#include <string>
#include <vector>

#include "weft/report/html.h"

namespace weft {

struct BarRow {
  std::string name;
  std::vector<double> parts;  // as many as the chart has; none is negative
};

struct BarChart {
  std::string id;
  std::string heading;
  std::string unit;                // of all figures: "ms"
  std::vector<std::string> parts;  // their names, as they follow each other in a bar; at most 8
  std::vector<std::string> notes;
  std::vector<BarRow> rows;
};

Html figure_of(const BarChart& chart);

}  // namespace weft
