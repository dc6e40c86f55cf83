#include "weft/report/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "weft/core/error.h"

namespace weft {
namespace {

// "-0" is written as "0".
std::string decimal(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", value, decimals);
  const bool zero = text.find_first_not_of("-0.") == std::string::npos;
  return zero && text.starts_with('-') ? text.substr(1) : text;
}

std::string tick_label(double value, double step) {
  if (std::abs(value) >= 1e6) return fmt::format("{:g}", value);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  return decimals <= 5 ? decimal(value, decimals) : fmt::format("{:g}", value);
}

}  // namespace

std::vector<Tick> round_ticks(double low, double high, int most) {
  WEFT_CHECK(most >= 2 && high > low && std::isfinite(high - low),
             "an axis from {} to {} with {} ticks", low, high, most);
  double step = std::pow(10.0, std::floor(std::log10((high - low) / most)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0, 20.0}) {
    const double wider = step * factor;
    if (std::floor(high / wider + 1e-9) - std::ceil(low / wider - 1e-9) + 1 <= most) {
      step = wider;
      break;
    }
  }
  std::vector<Tick> ticks;
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  for (int i = 0; i < most && first + i <= last; ++i) {
    const double value = (first + i) * step;
    ticks.push_back({value, tick_label(value, step)});
  }
  return ticks;
}

std::vector<Tick> log_ticks(double low, double high, int most) {
  WEFT_CHECK(low > 0 && high > low && std::isfinite(high), "a logarithmic axis from {} to {}", low,
             high);
  std::vector<Tick> powers, between;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const int every = std::max(1, (last - first + most - 1) / most);
  for (int power = first; power <= last; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10.0, power);
      if (value < low * (1 - 1e-9) || value > high * (1 + 1e-9)) continue;
      const Tick tick{value, fmt::format("{:g}", value)};
      if (factor == 1.0 && (power - first) % every == 0) powers.push_back(tick);
      between.push_back(tick);
    }
  }
  return static_cast<int>(between.size()) <= most ? between : powers;
}

ChartAxis::ChartAxis(AxisScale scale, double low, double high, double from, double to, int most)
    : scale_(scale), low_(low), high_(high), from_(from), to_(to) {
  if (!(high > low)) {  // one value: in the middle
    const double around = low == 0.0 ? 1.0 : 0.5 * std::abs(low);
    low_ = low - around;
    high_ = low + around;
  }
  ticks_ = scale == AxisScale::kLog ? log_ticks(low_, high_, most) : round_ticks(low_, high_, most);
}

double ChartAxis::position(double value) const {
  return scale_ == AxisScale::kLog ? std::log(value) : value;
}

double ChartAxis::place(double value) const {
  const double share = (position(value) - position(low_)) / (position(high_) - position(low_));
  return from_ + share * (to_ - from_);
}

double ChartAxis::value_at(double place) const {
  const double share = (place - from_) / (to_ - from_);
  const double found = position(low_) + share * (position(high_) - position(low_));
  return scale_ == AxisScale::kLog ? std::exp(found) : found;
}

std::string figure_text(double value, int digits) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1e-4 || size >= 1e9) return fmt::format("{:.{}e}", value, digits - 1);
  return decimal(value, std::max(0, digits - 1 - static_cast<int>(std::floor(std::log10(size)))));
}

std::string share_text(double share) {
  return std::isfinite(share) ? decimal(100 * share, 2) + " %" : "–";
}

}  // namespace weft
