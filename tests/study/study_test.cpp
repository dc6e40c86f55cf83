// Studies: paired differences, rows that are kept, and the short form of every claim.
#include "weft/study/study.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/study/claims.h"
#include "weft/study/paired.h"
#include "weft/study/study_file.h"

namespace weft::test {
namespace {

TEST(PairedDifference, IsOfWhatSeedsDoToBoth) {
  // The seeds differ by much more than the two variants do.
  const std::vector<double> a = {1.1, 5.2, 9.0, 2.1}, b = {1.0, 5.0, 8.9, 2.0};
  const PairedDifference found = paired_difference(a, b);
  EXPECT_EQ(found.seeds, 4);
  EXPECT_NEAR(found.mean, 0.125, 1e-12);
  EXPECT_NEAR(found.sd, 0.05, 1e-12);
  EXPECT_NEAR(found.high - found.mean, 3.182 * 0.05 / 2.0, 1e-9) << "t of three degrees";
  EXPECT_TRUE(found.separates());
  EXPECT_TRUE(paired_difference(b, a).separates());
  const std::vector<double> c = {1.2, 4.9, 9.1, 1.8};
  EXPECT_FALSE(paired_difference(c, b).separates());
  EXPECT_FALSE(paired_difference(std::vector{2.0}, std::vector{1.0}).separates()) << "one seed";
  EXPECT_TRUE(contains(message_of([&] { paired_difference(a, std::vector{1.0}); }), "be paired"));
}

int measured = 0;
int fails_after = 1000;

std::vector<double> measure_counted(const StudyRun& run, bool) {
  if (measured == fails_after) throw Error("killed");
  ++measured;
  const double base = run.variant == "a b" ? 1.0 : 2.0;
  return {base + 0.1234567891 * static_cast<double>(run.seed), base};
}

Judgement judge_counted(const Claim& claim, std::span<const StudyRow> rows) {
  const auto a = values_of(rows, "a b", claim.figure("x"));
  return {Verdict::kHolds, fmt::format("{} of a, {}", a.size(), a.back()), {"a table\n"}};
}

Claim counted_claim() {
  measured = 0;
  fails_after = 1000;
  return {"counted",    "a paper", "seeds count",   {"a b", "c"},
          {"x", "y z"}, 0.0,       measure_counted, judge_counted};
}

StudyOptions options_of(const std::filesystem::path& file) {
  StudyOptions options;
  options.seeds = 3;
  options.file = file;
  options.command = "weft study counted --out x";
  options.commit = "abc";
  return options;
}

TEST(Study, KeepsEveryRunAndGoesOn) {
  const ScratchFolder scratch;
  const Claim claim = counted_claim();
  const StudyOptions options = options_of(scratch / "study.txt");
  fails_after = 4;
  EXPECT_EQ(message_of([&] { run_study(claim, options); }), "killed");
  EXPECT_EQ(read_rows(options.file, claim, false).size(), 4u) << "what was done is there";
  EXPECT_EQ(runs_left(claim, options).size(), 2u);
  fails_after = 1000;
  const StudyResult result = run_study(claim, options);
  EXPECT_EQ(measured, 6) << "nothing twice";
  const std::string file = contents(options.file);
  EXPECT_EQ(file, "# measured: weft study counted --out x\n# commit: abc\n\n" + result.text);
  EXPECT_TRUE(contains(file, "verdict, 3 seeds: holds: 3 of a, 1.37037\n")) << file;
  EXPECT_TRUE(contains(file, "claim (a paper): seeds count\n"));

  // Complete: nothing is measured, and the file stays; the same as without a break.
  EXPECT_EQ(run_study(claim, options).text, result.text);
  EXPECT_EQ(measured, 6);
  EXPECT_EQ(contents(options.file), file);
  EXPECT_EQ(run_study(claim, options_of(scratch / "other.txt")).text, result.text);
  StudyOptions none = options;
  none.file.clear();
  EXPECT_EQ(run_study(claim, none).text, result.text);

  // More seeds measure these alone; fewer are judged alone, and lose no row.
  measured = 0;
  StudyOptions more = options;
  more.seeds = 5;
  EXPECT_EQ(run_study(claim, more).rows.size(), 10u);
  EXPECT_EQ(measured, 4);
  EXPECT_EQ(run_study(claim, options).text, result.text);
  EXPECT_EQ(read_rows(options.file, claim, false).size(), 10u);
}

TEST(Study, AFileOfAnotherStudyIsRefused) {
  const ScratchFolder scratch;
  const Claim claim = counted_claim();
  const StudyOptions options = options_of(scratch / "study.txt");
  run_study(claim, options);
  const std::string good = contents(options.file);
  const auto refused_with = [&](const std::string& text) {
    put(options.file, text);
    return message_of([&] { run_study(claim, options); });
  };
  EXPECT_TRUE(contains(refused_with(""), "not rows of `weft study counted`"));
  EXPECT_TRUE(contains(refused_with("# measured: weft study counted2 --out x\n"), "not rows of"));
  StudyOptions small = options;
  small.small = true;
  put(options.file, good);
  EXPECT_TRUE(contains(message_of([&] { run_study(claim, small); }), "counted --short`"));
  std::string other = good;
  other.replace(other.find("\nc "), 3, "\nd ");
  EXPECT_TRUE(contains(refused_with(other), "'d' is no variant")) << refused_with(other);
  other = good;
  other.replace(other.find("1.12346"), 7, "1.1x346");
  EXPECT_TRUE(contains(refused_with(other), "study.txt:6: ")) << refused_with(other);
  other = good;
  const size_t row = other.find("\nc "), next = other.find('\n', row + 1);
  other.insert(next, other.substr(row, next - row));
  EXPECT_TRUE(contains(refused_with(other), "a second row of 'c'")) << refused_with(other);
}

TEST(Claims, EveryOneRunsInItsShortForm) {
  std::set<std::string_view> names;
  for (const Claim& one : claims()) {
    EXPECT_TRUE(names.insert(one.name).second);
    EXPECT_EQ(&claim(one.name), &one);
    StudyOptions options;
    options.seeds = 3;
    options.small = true;
    const StudyResult result = run_study(one, options);
    EXPECT_EQ(result.rows.size(), 3 * one.variants.size()) << one.name;
    EXPECT_FALSE(result.judgement.reason.empty()) << one.name;
    for (const StudyRow& row : result.rows) {
      for (const double figure : row.figures) EXPECT_TRUE(std::isfinite(figure)) << one.name;
    }
    EXPECT_EQ(run_study(one, options).text, result.text) << "the same every time";
  }
  EXPECT_TRUE(contains(message_of([] { claim("none"); }), "known are diversity, approximation"));
}

// On an 8 x 8 block (docs of the paper, and counted): the two counts that the verdict is about.
TEST(Claims, DiversityHasBothCounts) {
  const Claim& one = claim("diversity");
  const auto bits = [&](const char* variant, const char* figure) {
    return one.measure({variant, 1}, true).at(one.figure(figure));
  };
  EXPECT_NEAR(bits("2:4", "exact bits"), 0.646, 5e-4);
  EXPECT_NEAR(bits("4:8 transposable", "exact bits"), 0.574, 5e-4);
  EXPECT_NEAR(bits("4:8 transposable", "paper's bits"), std::log2(1.7557e13) / 64.0, 5e-4);
  EXPECT_EQ(bits("4:8", "exact bits"), bits("4:8", "paper's bits"));
  // A judgement of made figures: the paper's count orders two structures the other way.
  std::vector<StudyRow> rows;
  for (const std::string& variant : one.variants) {
    for (int64_t seed = 1; seed <= 3; ++seed) {
      rows.push_back({{variant, seed}, one.measure({variant, 1}, true)});
      rows.back().figures[2] = rows.back().figures[0] + 1e-9 * static_cast<double>(seed);
    }
  }
  EXPECT_EQ(one.judge(one, rows).verdict, Verdict::kInPart);
  for (StudyRow& row : rows) row.figures[1] = row.figures[0];
  EXPECT_EQ(one.judge(one, rows).verdict, Verdict::kHolds);
  for (StudyRow& row : rows) row.figures[2] = static_cast<double>(row.run.seed % 2);
  EXPECT_EQ(one.judge(one, rows).verdict, Verdict::kUndecided) << "all retain the same";
}

TEST(Claims, ApproximationIsBrokenByOneTile) {
  const Claim& one = claim("approximation");
  std::vector<StudyRow> rows;
  for (const std::string& variant : one.variants) {
    for (int64_t seed = 1; seed <= 2; ++seed) {
      rows.push_back({{variant, seed}, one.measure({variant, seed}, true)});
    }
  }
  EXPECT_EQ(one.judge(one, rows).verdict, Verdict::kHolds);
  for (StudyRow& row : rows) {
    if (row.run.variant == "4:8 greedy-prune" && row.run.seed == 2) row.figures[3] = 2.01;
  }
  EXPECT_EQ(one.judge(one, rows).verdict, Verdict::kDoesNotHold);
}

}  // namespace
}  // namespace weft::test
