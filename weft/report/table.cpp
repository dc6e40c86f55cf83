#include "weft/report/table.h"

#include <algorithm>
#include <numeric>

#include "weft/core/error.h"

namespace weft {
namespace {

constexpr size_t kGap = 2;         // between columns
constexpr size_t kLeastText = 32;  // of a wrapped column, as long as another one can be spared
constexpr size_t kNarrowestText = 16;
constexpr size_t kNarrowestName = 24;

bool continues_letter(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Columns of a terminal: bytes that do not continue a UTF-8 sequence. Good for what weft prints.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_letter(c); }));
}

// Where the letter with this number begins.
size_t place_of_letter(const std::string& text, size_t number) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!continues_letter(text[at]) && number-- == 0) break;
  }
  return at;
}

// "encoder.layer.0.at…tput.dense.weight"
std::string cut_in_the_middle(const std::string& text, size_t width) {
  const size_t all = width_of(text);
  if (all <= width) return text;
  const size_t kept = width - 1, front = kept / 2;
  return text.substr(0, place_of_letter(text, front)) + "…" +
         text.substr(place_of_letter(text, all - (kept - front)));
}

size_t total(const std::vector<size_t>& widths) {
  const size_t gaps = widths.empty() ? 0 : kGap * (widths.size() - 1);
  return std::accumulate(widths.begin(), widths.end(), gaps);
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

void Table::can_spare(const std::vector<std::string>& headings) {
  for (const std::string& heading : headings) {
    bool found = false;
    for (size_t c = 0; c < headings_.size(); ++c) {
      if (headings_[c] != heading) continue;
      spare_.push_back(c);
      found = true;
    }
    WEFT_CHECK(found, "a table has no column '{}' to spare", heading);
  }
}

size_t Table::natural_width(size_t column) const {
  size_t width = width_of(headings_[column]);
  for (const Cells& row : rows_) width = std::max(width, width_of(row[column]));
  return width;
}

bool Table::says_nothing(size_t column) const {
  return std::all_of(rows_.begin(), rows_.end(),
                     [&](const Cells& row) { return row[column] == "-"; });
}

// The columns that are shown.
std::vector<size_t> Table::columns_within(size_t limit) const {
  std::vector<size_t> columns(headings_.size());
  std::iota(columns.begin(), columns.end(), size_t{0});
  const auto is_too_wide = [&] {
    std::vector<size_t> widths;
    for (const size_t c : columns) widths.push_back(natural_width(c));
    if (columns.size() > 1 && is_text(columns.back())) {
      widths.back() = std::min(widths.back(), kLeastText);
    }
    return total(widths) > limit;
  };
  std::vector<size_t> order = spare_;
  std::stable_partition(order.begin(), order.end(), [&](size_t c) { return says_nothing(c); });
  for (const size_t c : order) {
    if (!is_too_wide()) break;
    std::erase(columns, c);
  }
  return columns;
}

std::string Table::line(const Cells& cells, const std::vector<size_t>& columns,
                        const std::vector<size_t>& widths) const {
  std::string text;
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string padding(widths[i] - width_of(cells[i]), ' ');
    if (i > 0) text.append(kGap, ' ');
    text += right_[columns[i]] ? padding + cells[i] : cells[i] + padding;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + '\n';
}

std::string Table::str(size_t limit) const {
  if (limit == 0) limit = SIZE_MAX;
  const std::vector<size_t> columns = columns_within(limit);
  std::vector<size_t> widths;
  for (const size_t c : columns) widths.push_back(natural_width(c));
  // The last column gives what it can, then the first.
  const auto give = [&](size_t& width, size_t least) {
    const size_t all = total(widths);
    if (all > limit && width > least) width -= std::min(all - limit, width - least);
  };
  const bool wraps = columns.size() > 1 && is_text(columns.back());
  if (wraps) {
    give(widths.back(), std::max(kNarrowestText, width_of(headings_[columns.back()])));
  }
  if (!columns.empty() && is_text(columns.front())) {
    give(widths.front(), std::max(kNarrowestName, width_of(headings_[columns.front()])));
  }

  const auto shown = [&](const Cells& row) {
    Cells cells;
    for (const size_t c : columns) cells.push_back(row[c]);
    return cells;
  };
  Cells rule;
  for (const size_t width : widths) rule.emplace_back(width, '-');
  std::string text = line(shown(headings_), columns, widths) + line(rule, columns, widths);
  for (const Cells& row : rows_) {
    Cells cells = shown(row);
    if (!cells.empty()) cells.front() = cut_in_the_middle(cells.front(), widths.front());
    if (!wraps) {
      text += line(cells, columns, widths);
      continue;
    }
    for (std::string& part : wrapped(cells.back(), widths.back())) {
      widths.back() = std::max(widths.back(), width_of(part));  // a word that is longer
      cells.back() = std::move(part);
      text += line(cells, columns, widths);
      std::fill(cells.begin(), cells.end(), "");
    }
  }
  return text;
}

std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    if (lines.back().empty()) {
      lines.back() = word;
    } else if (width_of(lines.back()) + 1 + width_of(word) <= width) {
      lines.back() += ' ' + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

}  // namespace weft
