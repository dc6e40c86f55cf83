// The report of runs: one HTML file that opens from disk.
//
// It has no scripts and asks for nothing: its policy (Content-Security-Policy) forbids both, and
// everything in it is escaped (html.h). Charts are inline SVG with tables beside, masks are PNG in
// the page. Light and dark follow the system; it prints in black on white.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "weft/report/html.h"
#include "weft/report/runs.h"

namespace weft {

// The whole page.
Html report_page(const std::vector<ReportedRun>& runs);

struct WrittenReport {
  size_t runs = 0, variants = 0;
  uint64_t bytes = 0;
};
// Of folders of runs and of comparisons (run_folders). The file appears whole or not at all, and
// not if a run cannot be read: then Error names its file.
WrittenReport write_report(const std::vector<std::string>& folders,
                           const std::filesystem::path& target);

}  // namespace weft
