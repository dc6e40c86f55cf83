#include "weft/report/line_chart.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace weft {
namespace {

// Of the SVG, in its own units. Text of 11.5 units is readable where the chart is as narrow as a
// phone, and not too large where two stand side by side.
constexpr double kWidth = 440, kHeight = 262;
constexpr double kLeft = 46, kRight = 424, kTop = 24, kBottom = 222;
constexpr size_t kMostMarked = 30;  // points of a curve that has a mark at each

bool is_drawn(const ChartPoint& point) { return std::isfinite(point.y) && std::isfinite(point.x); }

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

// Whether a point can be drawn on the scale of the chart.
bool fits(const LineChart& chart, double value) {
  return std::isfinite(value) && (chart.scale == AxisScale::kLinear || value > 0);
}

// A little room above and below.
ChartAxis y_axis(const LineChart& chart, const Range& range) {
  double low = range.low, high = range.high;
  if (high > low && chart.scale == AxisScale::kLinear) {
    const double room = 0.04 * (high - low);
    high += room;
    low = low >= 0 && low < room ? 0 : low - room;
  } else if (chart.scale == AxisScale::kLog) {
    const double room = high > low ? std::pow(high / low, 0.04) : 2.0;
    low /= room;
    high *= room;
  }
  return {chart.scale, low, high, kBottom, kTop, 6};
}

Html grid_of(const LineChart& chart, const ChartAxis& x, const ChartAxis& y) {
  Html out;
  for (const Tick& tick : y.ticks()) {
    out += html(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        kLeft, kRight, y.place(tick.value), y.place(tick.value), kLeft - 6, y.place(tick.value) + 4,
        tick.label);
  }
  for (const Tick& tick : x.ticks()) {
    out += html(
        "<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>"
        "<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
        x.place(tick.value), x.place(tick.value), kBottom, kBottom + 4, x.place(tick.value),
        kBottom + 17, tick.label);
  }
  out += html("<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n", kLeft, kRight,
              kBottom, kBottom);
  out += html(
      "<text class=\"name\" x=\"{}\" y=\"12\">{}</text>"
      "<text class=\"name\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
      2, chart.y_label, kRight, kHeight - 5, chart.x_label);
  return out;
}

// The stretches of a series without a gap.
std::vector<std::vector<ChartPoint>> stretches_of(const LineChart& chart,
                                                  const ChartSeries& series) {
  std::vector<std::vector<ChartPoint>> stretches(1);
  for (const ChartPoint& point : series.points) {
    if (is_drawn(point) && fits(chart, point.y)) {
      stretches.back().push_back(point);
    } else if (!stretches.back().empty()) {
      stretches.emplace_back();
    }
  }
  if (stretches.back().empty()) stretches.pop_back();
  return stretches;
}

std::string band_path(const LineChart& chart, const std::vector<ChartPoint>& stretch,
                      const ChartAxis& x, const ChartAxis& y) {
  const auto place = [&](double value, double otherwise) {
    return y.place(fits(chart, value) ? value : otherwise);
  };
  std::string path;
  for (const ChartPoint& p : stretch) {
    path +=
        fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : "L", x.place(p.x), place(p.high, p.y));
  }
  for (size_t i = stretch.size(); i-- > 0;) {
    const ChartPoint& p = stretch[i];
    path += fmt::format("L{:.1f},{:.1f}", x.place(p.x), place(p.low, p.y));
  }
  return path + "Z";
}

bool has_band(const std::vector<ChartPoint>& stretch) {
  return std::ranges::any_of(stretch, [](const ChartPoint& p) { return p.high > p.low; });
}

std::string words_for(const LineChart& chart, const ChartSeries& series, const ChartPoint& point) {
  std::string words =
      fmt::format("{}: {}{} at step {}", series.name, figure_text(point.y), chart.unit, point.step);
  if (chart.own_x) words += fmt::format(", {} s", figure_text(point.x, 3));
  if (point.high > point.low) {
    words += fmt::format(" ({} to {})", figure_text(point.low), figure_text(point.high));
  }
  return words;
}

Html marks_of(const LineChart& chart, const ChartSeries& series,
              const std::vector<ChartPoint>& stretch, const ChartAxis& x, const ChartAxis& y) {
  Html out;
  const bool alone = stretch.size() == 1;
  if (!alone && series.points.size() > kMostMarked) return out;
  for (const ChartPoint& p : stretch) {
    if (alone && p.high > p.low && fits(chart, p.low)) {
      out += html("<line class=\"bar\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>",
                  x.place(p.x), x.place(p.x), y.place(p.low), y.place(p.high));
    }
    out += html("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}</title></circle>\n",
                x.place(p.x), y.place(p.y), alone ? 3.5 : 2.2, words_for(chart, series, p));
  }
  return out;
}

Html curve_of(const LineChart& chart, const ChartSeries& series, const ChartAxis& x,
              const ChartAxis& y) {
  Html out;
  for (const std::vector<ChartPoint>& stretch : stretches_of(chart, series)) {
    if (stretch.size() > 1) {
      std::string path;
      for (const ChartPoint& p : stretch) {
        path +=
            fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : "L", x.place(p.x), y.place(p.y));
      }
      const std::string dashes = style_dashes(series.style);
      out += html("<path class=\"line\" d=\"{}\"{}><title>{}</title></path>\n", path,
                  dashes.empty() ? Html() : html(" stroke-dasharray=\"{}\"", dashes), series.name);
    }
    out += marks_of(chart, series, stretch, x, y);
  }
  return html("<g class=\"{}\">\n{}</g>\n", style_class(series.style), out);
}

// Below the curves, all of them: none hides a curve.
Html bands_of(const LineChart& chart, const ChartAxis& x, const ChartAxis& y) {
  Html out;
  for (const ChartSeries& series : chart.series) {
    for (const std::vector<ChartPoint>& stretch : stretches_of(chart, series)) {
      if (stretch.size() < 2 || !has_band(stretch)) continue;
      out += html("<path class=\"band {}\" d=\"{}\"/>\n", style_class(series.style),
                  band_path(chart, stretch, x, y));
    }
  }
  return out;
}

const ChartPoint* last_point(const ChartSeries& series) {
  for (size_t i = series.points.size(); i-- > 0;) {
    if (is_drawn(series.points[i])) return &series.points[i];
  }
  return nullptr;
}

// The series that have a figure, as they stand above each other at the end.
std::vector<const ChartSeries*> in_order(const LineChart& chart) {
  std::vector<const ChartSeries*> order;
  for (const ChartSeries& series : chart.series) {
    if (last_point(series) != nullptr) order.push_back(&series);
  }
  std::ranges::stable_sort(order, [&](const ChartSeries* a, const ChartSeries* b) {
    const double left = last_point(*a)->y, right = last_point(*b)->y;
    return chart.high_first ? left > right : left < right;
  });
  return order;
}

Html legend_of(const LineChart& chart) {
  Html items;
  for (const ChartSeries* series : in_order(chart)) {
    items += html("<li>{}<span>{} <b>{}{}</b></span></li>\n", swatch(series->style), series->name,
                  figure_text(last_point(*series)->y), chart.unit);
  }
  return html("<ul class=\"legend\" aria-label=\"Last figures, {} first\">\n{}</ul>\n",
              chart.high_first ? "highest" : "lowest", items);
}

std::string cell_of(const ChartPoint& point) {
  std::string text = figure_text(point.y);
  if (point.high > point.low) {
    text += fmt::format(" ({} to {})", figure_text(point.low), figure_text(point.high));
  }
  return text;
}

Html table_of(const LineChart& chart) {
  std::map<int64_t, std::vector<const ChartPoint*>> rows;
  std::vector<std::string> heads = {"step"};
  for (size_t s = 0; s < chart.series.size(); ++s) {
    if (chart.own_x) heads.push_back(">" + chart.series[s].name + ": seconds");
    heads.push_back(">" + chart.series[s].name);
    for (const ChartPoint& point : chart.series[s].points) {
      auto& row = rows[point.step];
      row.resize(chart.series.size());
      row[s] = &point;
    }
  }
  HtmlTable table(fmt::format("{} ({})", chart.heading, chart.y_label), heads);
  for (const auto& [step, points] : rows) {
    std::vector<Html> cells = {html("{}", step)};
    for (const ChartPoint* point : points) {  // none: the series has no such step
      if (chart.own_x) cells.push_back(html("{}", point ? figure_text(point->x, 3) : ""));
      cells.push_back(html("{}", point ? cell_of(*point) : ""));
    }
    table.add(cells);
  }
  return html("<details><summary>Figures as a table</summary>\n{}</details>\n", table.html());
}

Html notes_of(const LineChart& chart) {
  if (chart.notes.empty()) return {};
  return html("<p class=\"note\">{}</p>\n", fmt::format("{}", fmt::join(chart.notes, " ")));
}

}  // namespace

std::string style_class(int style) {
  constexpr int kColours = 7;
  return style <= 0 ? "s0" : fmt::format("s{}", 1 + (style - 1) % kColours);
}

// Seven colours and four patterns: 28 that differ.
std::string style_dashes(int style) {
  constexpr std::array<const char*, 4> kDashes = {"", "7 3", "2 2.5", "9 3 2 3"};
  return style <= 0 ? "" : kDashes[static_cast<size_t>(style - 1) % kDashes.size()];
}

Html swatch(int style) {
  const std::string dashes = style_dashes(style);
  return html(
      "<svg class=\"swatch {}\" viewBox=\"0 0 26 10\" width=\"26\" height=\"10\" "
      "aria-hidden=\"true\"><line class=\"line\" x1=\"1\" x2=\"25\" y1=\"5\" y2=\"5\"{}/></svg>",
      style_class(style), dashes.empty() ? Html() : html(" stroke-dasharray=\"{}\"", dashes));
}

Html figure_of(const LineChart& chart) {
  Range across, up;
  size_t curves = 0;
  for (const ChartSeries& series : chart.series) {
    bool any = false;
    for (const ChartPoint& point : series.points) {
      if (!is_drawn(point) || !fits(chart, point.y)) continue;
      any = true;
      across.take(point.x);
      if (!chart.own_x) across.take(static_cast<double>(point.step));  // the end of a stride
      for (const double value : {point.y, point.low, point.high}) {
        if (fits(chart, value)) up.take(value);
      }
    }
    curves += any;
  }
  if (up.empty()) {
    return html(
        "<figure class=\"chart\"><h3>{}</h3>\n<p class=\"note\">No figures to draw.</p>"
        "</figure>\n",
        chart.heading);
  }
  const ChartAxis x(AxisScale::kLinear, std::min(0.0, across.low), across.high, kLeft, kRight, 7);
  const ChartAxis y = y_axis(chart, up);
  Html curves_code;
  for (const ChartSeries& series : chart.series) curves_code += curve_of(chart, series, x, y);
  const std::string summary = fmt::format(
      "{} {} over {} from {} to {}; {} from {} to {}. The figures are in the table below.", curves,
      curves == 1 ? "curve" : "curves", chart.x_label, figure_text(across.low, 3),
      figure_text(across.high, 3), chart.y_label, figure_text(up.low), figure_text(up.high));
  return html(
      "<figure class=\"chart\"><h3 id=\"{}\">{}</h3>\n"
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{}-title {}-text\">\n"
      "<title id=\"{}-title\">{}</title><desc id=\"{}-text\">{}</desc>\n{}{}{}</svg>\n{}{}{}"
      "</figure>\n",
      chart.id, chart.heading, kWidth, kHeight, chart.id, chart.id, chart.id, chart.heading,
      chart.id, summary, grid_of(chart, x, y), bands_of(chart, x, y), curves_code, legend_of(chart),
      notes_of(chart), table_of(chart));
}

}  // namespace weft
