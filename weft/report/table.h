// Table: rows of text in aligned columns, for terminals and for documents.
#pragma once

#include <string>
#include <vector>

namespace weft {

class Table {
 public:
  // A heading that begins with '>' is aligned to the right, without the sign: numbers.
  explicit Table(const std::vector<std::string>& headings);

  void add(std::vector<std::string> cells);  // as many as there are headings

  std::string str() const;  // heading, rule, rows; every line ends in '\n', without trailing blanks

 private:
  std::string line(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const;

  std::vector<std::string> headings_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace weft
