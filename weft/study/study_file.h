// The rows of a study on disk, in the form of docs/results/*.txt, so that what is finished can be
// committed and a study completed in several sittings:
//
//   # measured: weft study diversity --out docs/results/study-diversity.txt
//   # commit: 710b2b1809d4
//
//   run    seed  exact bits ...
//   -----  ----  ----------
//   4:8       1     0.76607 ...
//
//   (what was judged of them)
//
// What is read back is what is printed: a verdict rests on the figures that stand there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "weft/study/claim.h"

namespace weft {

// The table of rows, as it stands in the file.
std::string rows_text(const Claim& claim, const std::vector<StudyRow>& rows);

// The rows of a file; none if there is no file. Throws Error that names the file and the line if it
// is of another study, of the short form and not asked for (or the other way), or malformed.
std::vector<StudyRow> read_rows(const std::filesystem::path& path, const Claim& claim, bool small);

// Atomically. after: what stands below the rows; may be empty.
void write_study(const std::filesystem::path& path, const Claim& claim,
                 const std::vector<StudyRow>& rows, const std::string& command,
                 const std::string& commit, const std::string& after);

}  // namespace weft
