// LineChart: curves with bands as inline SVG, and its figures as a table.
//
//   <figure> heading, SVG, legend in the order of the last values, notes, <details> with the table
//
// Colours are classes that the style of the page gives a light and a dark value (page_style.cpp); a
// dash pattern says the same without colour. The SVG has a title and a description; screen readers
// get the table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/report/axis.h"
#include "weft/report/html.h"

namespace weft {

struct ChartPoint {
  int64_t step = 0;  // the row of the table
  double x = 0.0;
  double y = 0.0;  // NaN: a gap
  double low = 0.0, high = 0.0;
};

struct ChartSeries {
  std::string name;
  int style = 0;  // 0: the neutral one of dense; others: a colour and a dash pattern
  std::vector<ChartPoint> points;
};

struct LineChart {
  std::string id;       // unique in the page
  std::string heading;  // what is seen: "Test accuracy over steps"
  std::string x_label;  // "steps"
  std::string y_label;  // "accuracy, %"
  std::string unit;     // after a figure of the legend: " %"
  AxisScale scale = AxisScale::kLinear;
  bool high_first = true;  // the legend begins with the highest last value, or the lowest
  bool own_x = false;      // each curve has its own x: the table shows it
  std::vector<std::string> notes;
  std::vector<ChartSeries> series;
};

// A line with a heading if no series has a figure.
Html figure_of(const LineChart& chart);

// A short line in the style of a series, for legends and tables.
Html swatch(int style);
// "s3": the class of its colour; and its stroke-dasharray, empty for a solid line.
std::string style_class(int style);
std::string style_dashes(int style);

}  // namespace weft
