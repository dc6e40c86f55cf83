// Claim: something that a paper says and that can be tested here, as data.
//
// A study of it measures every variant with every seed, and judges the figures that came out. A
// new claim is a file with its formula and a row of claims.cpp; study.h runs it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class Verdict : uint8_t {
  kHolds,
  kInPart,
  kDoesNotHold,
  kUndecided,  // the seeds cannot tell the variants apart
};
std::string_view verdict_text(Verdict verdict);

struct StudyRun {
  std::string variant;
  int64_t seed = 0;
  friend bool operator==(const StudyRun&, const StudyRun&) = default;
};
struct StudyRow {
  StudyRun run;
  std::vector<double> figures;  // as the claim names them
};

struct Judgement {
  Verdict verdict = Verdict::kUndecided;
  std::string reason;              // one line
  std::vector<std::string> table;  // lines: what the verdict rests on
};

struct Claim {
  std::string_view name;       // "diversity", of `weft study`
  std::string_view paper;      // "Hubara 2021"
  std::string_view statement;  // a sentence
  std::vector<std::string> variants;
  std::vector<std::string> figures;
  double run_seconds = 0.0;  // of one run on two cores of a Zen 4, about
  // The figures of one run. small: as little work as shows that it works.
  std::vector<double> (*measure)(const StudyRun& run, bool small);
  // rows: every variant with the same seeds.
  Judgement (*judge)(const Claim& claim, std::span<const StudyRow> rows);

  size_t figure(std::string_view name) const;  // its place; throws Error if there is none
};

// The values of a figure of one variant, by seed.
std::vector<double> values_of(std::span<const StudyRow> rows, std::string_view variant,
                              size_t figure);

}  // namespace weft
