#include "weft/report/table.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft {
namespace {

// Columns of a terminal: bytes that do not continue a UTF-8 sequence. Good for what weft prints.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

Table::Table(const std::vector<std::string>& headings) {
  for (const std::string& heading : headings) {
    right_.push_back(heading.starts_with('>'));
    headings_.push_back(right_.back() ? heading.substr(1) : heading);
  }
}

void Table::add(std::vector<std::string> cells) {
  WEFT_CHECK(cells.size() == headings_.size(), "a row of {} cells in a table of {} columns",
             cells.size(), headings_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::line(const std::vector<std::string>& cells,
                        const std::vector<size_t>& widths) const {
  std::string text;
  for (size_t c = 0; c < cells.size(); ++c) {
    const std::string padding(widths[c] - width_of(cells[c]), ' ');
    if (c > 0) text += "  ";
    text += right_[c] ? padding + cells[c] : cells[c] + padding;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + '\n';
}

std::string Table::str() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < headings_.size(); ++c) {
    size_t width = width_of(headings_[c]);
    for (const auto& row : rows_) width = std::max(width, width_of(row[c]));
    widths.push_back(width);
  }
  std::vector<std::string> rule;
  rule.reserve(widths.size());
  for (const size_t width : widths) rule.emplace_back(width, '-');
  std::string text = line(headings_, widths) + line(rule, widths);
  for (const auto& row : rows_) text += line(row, widths);
  return text;
}

}  // namespace weft
