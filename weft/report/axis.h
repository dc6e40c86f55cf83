// ChartAxis: from values to places on a chart, with ticks at round numbers.
#pragma once

#include <string>
#include <vector>

namespace weft {

enum class AxisScale { kLinear, kLog };

struct Tick {
  double value = 0.0;
  std::string label;
};

class ChartAxis {
 public:
  // Values from low to high lie between the places `from` and `to`; high may be below low or equal
  // to it if there is one value alone. On a logarithmic scale both are positive. `most`: of ticks.
  ChartAxis(AxisScale scale, double low, double high, double from, double to, int most);

  double place(double value) const;
  double value_at(double place) const;
  const std::vector<Tick>& ticks() const { return ticks_; }  // within low and high

 private:
  double position(double value) const;  // linear in the place

  AxisScale scale_;
  double low_, high_, from_, to_;
  std::vector<Tick> ticks_;
};

// Multiples of 1, 2 or 5 times a power of ten, in [low, high]: as many as fit into `most`.
std::vector<Tick> round_ticks(double low, double high, int most);
// Powers of ten, with 2 and 5 times them if there is room.
std::vector<Tick> log_ticks(double low, double high, int most);

// A figure with a few significant digits: "0.513", "12400", "3.1e-05"; NaN is "–".
std::string figure_text(double value, int digits = 4);
// A share of one as "53.80 %".
std::string share_text(double share);

}  // namespace weft
