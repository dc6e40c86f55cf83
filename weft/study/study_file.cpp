#include "weft/study/study_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "weft/core/atomic_file.h"
#include "weft/core/error.h"
#include "weft/core/number.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"
#include "weft/report/table.h"

namespace weft {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Two blanks or more stand between cells.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t begin = line.find_first_not_of(' '); begin != std::string::npos;) {
    const size_t end = std::min(line.find("  ", begin), line.size());
    cells.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(' ', end);
  }
  return cells;
}

std::vector<std::string> headings_of(const Claim& claim) {
  std::vector<std::string> headings = {"run", ">seed"};
  for (const std::string& figure : claim.figures) headings.push_back(">" + figure);
  return headings;
}

}  // namespace

std::string rows_text(const Claim& claim, const std::vector<StudyRow>& rows) {
  Table table(headings_of(claim));
  for (const StudyRow& row : rows) {
    std::vector<std::string> cells = {row.run.variant, fmt::format("{}", row.run.seed)};
    for (const double figure : row.figures) cells.push_back(fmt::format("{:.6g}", figure));
    table.add(cells);
  }
  return table.str();
}

std::vector<StudyRow> read_rows(const std::filesystem::path& path, const Claim& claim, bool small) {
  std::error_code failure;
  if (!std::filesystem::exists(path, failure)) return {};
  const std::string name = printable(path.string(), 4096);
  const std::vector<std::string> lines = lines_of(read_small_file(path));
  const std::string study = fmt::format("# measured: weft study {} ", claim.name);
  const bool is_small = !lines.empty() && lines[0].find(" --short") != std::string::npos;
  WEFT_CHECK(!lines.empty() && (lines[0] + " ").starts_with(study) && is_small == small,
             "{}: not rows of `weft study {}{}`: choose another file", name, claim.name,
             small ? " --short" : "");
  std::vector<StudyRow> rows;
  // Two lines of comment, a blank one, the heading and its rule.
  for (size_t i = 5; i < lines.size() && !lines[i].empty(); ++i) {
    const std::vector<std::string> cells = cells_of(lines[i]);
    try {
      WEFT_CHECK(cells.size() == claim.figures.size() + 2, "{} columns instead of {}", cells.size(),
                 claim.figures.size() + 2);
      StudyRow row{{cells[0], parse_integer(cells[1], 0, std::numeric_limits<int64_t>::max())}, {}};
      WEFT_CHECK(std::ranges::find(claim.variants, row.run.variant) != claim.variants.end(),
                 "'{}' is no variant of the study", printable(row.run.variant));
      for (size_t k = 2; k < cells.size(); ++k) {
        row.figures.push_back(parse_number(cells[k], -1e300, 1e300));
      }
      const bool twice =
          std::ranges::any_of(rows, [&](const StudyRow& other) { return other.run == row.run; });
      WEFT_CHECK(!twice, "a second row of '{}' with seed {}", row.run.variant, row.run.seed);
      rows.push_back(std::move(row));
    } catch (const Error& error) {
      throw Error(fmt::format("{}:{}: {}", name, i + 1, error.what()));
    }
  }
  return rows;
}

void write_study(const std::filesystem::path& path, const Claim& claim,
                 const std::vector<StudyRow>& rows, const std::string& command,
                 const std::string& commit, const std::string& after) {
  std::string text =
      fmt::format("# measured: {}\n# commit: {}\n\n{}", command, commit, rows_text(claim, rows));
  if (!after.empty()) text += "\n" + after;
  write_file_atomically(path, text);
}

}  // namespace weft
