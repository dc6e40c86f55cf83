#include "weft/report/report.h"

#include <fmt/ranges.h>

#include <set>

#include "weft/core/atomic_file.h"
#include "weft/core/version.h"
#include "weft/report/page_sections.h"
#include "weft/report/page_style.h"

namespace weft {
namespace {

// "mlp on glyphs", of all runs.
std::string subjects_of(const std::vector<ReportedRun>& runs) {
  std::set<std::string> subjects;
  for (const ReportedRun& run : runs) {
    subjects.insert(fmt::format("{} on {}", run.options.model, run.options.data));
  }
  return fmt::format("{}", fmt::join(subjects, "; "));
}

std::string counted(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

Html report_page(const std::vector<ReportedRun>& runs) {
  const std::vector<Variant> variants = variants_of(runs);
  const std::vector<PageSection> sections = {
      summary_section(variants), curves_section(variants), time_section(variants),
      layers_section(variants),  runs_section(variants),   environment_section(variants),
      repeat_section(variants)};
  Html links, bodies;
  for (const PageSection& section : sections) {
    if (section.body.empty()) continue;
    links += html("<li><a href=\"#{}\">{}</a></li>\n", section.id, section.heading);
    bodies += html("<section aria-labelledby=\"{}\">\n<h2 id=\"{}\">{}</h2>\n{}</section>\n",
                   section.id, section.id, section.heading, section.body);
  }
  const std::string subjects = subjects_of(runs);
  return html(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{}: weft report</title>\n<style>{}</style>\n</head>\n<body>\n"
      "<header>\n<h1>{}</h1>\n<p class=\"quiet\">{} of {}. Written by weft {}.</p>\n"
      "<nav aria-label=\"Sections\"><ul>\n{}</ul></nav>\n</header>\n<main>\n{}</main>\n"
      "<footer>Made by <code>weft report</code>. This file needs no network and runs no "
      "scripts.</footer>\n</body>\n</html>\n",
      subjects, Html::trusted(page_style()), subjects, counted(runs.size(), "run"),
      counted(variants.size(), "variant"), kVersion, links, bodies);
}

WrittenReport write_report(const std::vector<std::string>& folders,
                           const std::filesystem::path& target) {
  const std::vector<std::filesystem::path> found = run_folders(folders);
  const std::vector<std::string> names = run_names(found);
  std::vector<ReportedRun> runs;
  for (size_t i = 0; i < found.size(); ++i) runs.push_back(read_reported_run(found[i], names[i]));
  const Html page = report_page(runs);
  write_file_atomically(target, page.str());
  return {runs.size(), variants_of(runs).size(), page.str().size()};
}

}  // namespace weft
