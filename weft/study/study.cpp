#include "weft/study/study.h"

#include <fmt/format.h>

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/number.h"
#include "weft/report/table.h"
#include "weft/study/study_file.h"

namespace weft {
namespace {

std::vector<StudyRow> rows_there(const Claim& claim, const StudyOptions& options) {
  if (options.file.empty()) return {};
  return read_rows(options.file, claim, options.small);
}

bool has(const std::vector<StudyRow>& rows, const StudyRun& run) {
  return std::ranges::any_of(rows, [&](const StudyRow& row) { return row.run == run; });
}

std::vector<StudyRun> missing(const Claim& claim, const StudyOptions& options,
                              const std::vector<StudyRow>& rows) {
  WEFT_CHECK(options.seeds >= 1, "a study needs a seed");
  std::vector<StudyRun> left;
  for (int64_t seed = 1; seed <= options.seeds; ++seed) {
    for (const std::string& variant : claim.variants) {
      if (!has(rows, {variant, seed})) left.push_back({variant, seed});
    }
  }
  return left;
}

// By variant, then by seed.
void sort_rows(const Claim& claim, std::vector<StudyRow>& rows) {
  const auto place = [&](const StudyRow& row) {
    const auto found = std::ranges::find(claim.variants, row.run.variant);
    return std::pair(found - claim.variants.begin(), row.run.seed);
  };
  std::ranges::sort(rows, [&](const auto& a, const auto& b) { return place(a) < place(b); });
}

// What is judged is what stands in the file: six digits.
double as_printed(double figure) {
  return parse_number(fmt::format("{:.6g}", figure), -1e300, 1e300);
}

std::string lines(const std::string& text) {
  constexpr size_t kColumns = 100;
  std::string all;
  for (const std::string& line : wrapped(text, kColumns)) all += line + "\n";
  return all;
}

}  // namespace

std::vector<StudyRun> runs_left(const Claim& claim, const StudyOptions& options) {
  return missing(claim, options, rows_there(claim, options));
}

StudyResult run_study(const Claim& claim, const StudyOptions& options,
                      const std::function<void(size_t done)>& progress) {
  std::vector<StudyRow> rows = rows_there(claim, options);
  size_t done = 0;
  for (const StudyRun& run : missing(claim, options, rows)) {
    StudyRow row{run, claim.measure(run, options.small)};
    WEFT_CHECK(row.figures.size() == claim.figures.size(), "study '{}': {} figures instead of {}",
               claim.name, row.figures.size(), claim.figures.size());
    std::ranges::transform(row.figures, row.figures.begin(), as_printed);
    rows.push_back(std::move(row));
    sort_rows(claim, rows);
    if (!options.file.empty()) {
      write_study(options.file, claim, rows, options.command, options.commit, "");
    }
    if (progress) progress(++done);
  }
  // Seeds that are in the file besides those asked for would not be of every variant.
  StudyResult result;
  for (const StudyRow& row : rows) {
    if (row.run.seed >= 1 && row.run.seed <= options.seeds) result.rows.push_back(row);
  }
  result.judgement = claim.judge(claim, result.rows);
  std::string after;
  for (const std::string& table : result.judgement.table) after += table + "\n";
  after += lines(fmt::format("claim ({}): {}", claim.paper, claim.statement));
  after += lines(fmt::format("verdict, {} seeds: {}: {}", options.seeds,
                             verdict_text(result.judgement.verdict), result.judgement.reason));
  result.text = rows_text(claim, result.rows) + "\n" + after;
  if (!options.file.empty()) {
    write_study(options.file, claim, rows, options.command, options.commit, after);
  }
  return result;
}

}  // namespace weft
