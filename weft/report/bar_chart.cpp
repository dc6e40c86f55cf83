#include "weft/report/bar_chart.h"

#include <algorithm>
#include <numeric>

#include "weft/report/axis.h"

namespace weft {
namespace {

constexpr double kBarsWidth = 440, kBarsRight = 432, kRowHeight = 34, kBarHeight = 13;

double sum_of(const BarRow& row) {
  return std::accumulate(row.parts.begin(), row.parts.end(), 0.0);
}

Html bar_of(const BarChart& chart, const BarRow& row, double top, double scale) {
  Html out = html(
      "<text class=\"name\" x=\"2\" y=\"{:.1f}\">{} <tspan class=\"tick\">{} {}</tspan>"
      "</text>\n",
      top + 12, row.name, figure_text(sum_of(row), 3), chart.unit);
  double x = 2;
  for (size_t p = 0; p < row.parts.size(); ++p) {
    const double width = row.parts[p] * scale;
    if (width <= 0) continue;
    out += html(
        "<rect class=\"part p{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\">"
        "<title>{}, {}: {} {}</title></rect>\n",
        p, x, top + 17, width, kBarHeight, row.name, chart.parts[p], figure_text(row.parts[p], 3),
        chart.unit);
    x += width;
  }
  return out;
}

Html legend_of(const BarChart& chart) {
  Html items;
  for (size_t p = 0; p < chart.parts.size(); ++p) {
    items += html(
        "<li><svg class=\"swatch\" viewBox=\"0 0 12 12\" width=\"12\" height=\"12\" "
        "aria-hidden=\"true\"><rect class=\"p{}\" width=\"12\" height=\"12\"/></svg>"
        "<span>{}</span></li>\n",
        p, chart.parts[p]);
  }
  return html("<ul class=\"legend\" aria-label=\"Parts of a bar\">\n{}</ul>\n", items);
}

Html table_of(const BarChart& chart) {
  std::vector<std::string> heads = {"run"};
  for (const std::string& part : chart.parts) heads.push_back(">" + part);
  heads.emplace_back(">total");
  HtmlTable table(fmt::format("{} ({})", chart.heading, chart.unit), heads);
  for (const BarRow& row : chart.rows) {
    std::vector<Html> cells = {html("{}", row.name)};
    for (const double part : row.parts) cells.push_back(html("{}", figure_text(part, 3)));
    cells.push_back(html("{}", figure_text(sum_of(row), 3)));
    table.add(cells);
  }
  return html("<details><summary>Figures as a table</summary>\n{}</details>\n", table.html());
}

}  // namespace

Html figure_of(const BarChart& chart) {
  double longest = 0.0;
  for (const BarRow& row : chart.rows) longest = std::max(longest, sum_of(row));
  if (!(longest > 0.0)) {
    return html(
        "<figure class=\"chart\"><h3>{}</h3>\n<p class=\"note\">No figures to draw.</p>"
        "</figure>\n",
        chart.heading);
  }
  Html bars, notes;
  for (size_t i = 0; i < chart.rows.size(); ++i) {
    bars += bar_of(chart, chart.rows[i], kRowHeight * static_cast<double>(i),
                   (kBarsRight - 2) / longest);
  }
  for (const std::string& note : chart.notes) notes += html("<p class=\"note\">{}</p>\n", note);
  return html(
      "<figure class=\"chart\"><h3 id=\"{}\">{}</h3>\n"
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{}-title {}-text\">\n"
      "<title id=\"{}-title\">{}</title><desc id=\"{}-text\">{} bars, the longest {} {}. The "
      "figures are in the table below.</desc>\n{}</svg>\n{}{}{}</figure>\n",
      chart.id, chart.heading, kBarsWidth, kRowHeight * static_cast<double>(chart.rows.size()),
      chart.id, chart.id, chart.id, chart.heading, chart.id, chart.rows.size(),
      figure_text(longest, 3), chart.unit, bars, legend_of(chart), notes, table_of(chart));
}

}  // namespace weft
