// Table: rows of text in aligned columns, for terminals and for documents.
//
// A table that is wider than a limit gives up, until it fits: columns that it can do without, first
// those that say nothing ("-" in every row); then the last column is wrapped, if it is text; then
// long texts of the first column are cut in the middle ("encoder.layer.0.at…tput.dense.weight").
#pragma once

#include <string>
#include <vector>

namespace weft {

class Table {
 public:
  // A heading that begins with '>' is aligned to the right, without the sign: numbers.
  explicit Table(const std::vector<std::string>& headings);

  void add(std::vector<std::string> cells);  // as many as there are headings
  // The columns of these headings can be left out, the first one first.
  void can_spare(const std::vector<std::string>& headings);

  // Heading, rule, rows; every line ends in '\n', without trailing blanks. limit: columns of the
  // widest line; 0: as many as it takes.
  std::string str(size_t limit = 0) const;

 private:
  using Cells = std::vector<std::string>;

  size_t natural_width(size_t column) const;
  std::vector<size_t> columns_within(size_t limit) const;
  bool says_nothing(size_t column) const;
  bool is_text(size_t column) const { return !right_[column]; }
  std::string line(const Cells& cells, const std::vector<size_t>& columns,
                   const std::vector<size_t>& widths) const;

  Cells headings_;
  std::vector<bool> right_;
  std::vector<size_t> spare_;  // columns, the first to go first
  std::vector<Cells> rows_;
};

// Lines of at most `width` columns, broken at blanks; a word that is longer has a line of its own.
std::vector<std::string> wrapped(const std::string& text, size_t width);

}  // namespace weft
