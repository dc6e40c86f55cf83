// A study: every variant of a claim with every seed, one run after the other, and a verdict.
//
//   StudyResult result = run_study(claim("diversity"), options);
//
// With a file (study_file.h), rows that stand there are not measured again, and each new one is
// written before the next run begins: a study that is killed goes on where it was.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "weft/study/claim.h"

namespace weft {

struct StudyOptions {
  int64_t seeds = 5;  // 1, 2, ...
  bool small = false;
  std::filesystem::path file;  // empty: rows are not kept
  std::string command;         // in the first line of the file: "weft study NAME ..."
  std::string commit;          // in the second
};

struct StudyResult {
  std::vector<StudyRow> rows;  // by variant, then by seed
  Judgement judgement;
  std::string text;  // the rows, the table and the verdict, as they stand in the file
};

// Runs that are not in the file yet.
std::vector<StudyRun> runs_left(const Claim& claim, const StudyOptions& options);

// `progress` is called with the runs done, of those that were left. Throws Error if the file is of
// another study.
StudyResult run_study(const Claim& claim, const StudyOptions& options,
                      const std::function<void(size_t done)>& progress = {});

}  // namespace weft
