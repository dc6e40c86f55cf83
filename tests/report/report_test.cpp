// Whole pages, as text. tests/cli/report_browser_test.cpp opens them.
#include "weft/report/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <set>

#include "tests/report/made_runs.h"
#include "tests/support.h"

namespace weft::test {
namespace {

std::string page_of(const ScratchFolder& scratch, const std::vector<std::string>& names) {
  std::vector<std::string> folders;
  for (const std::string& name : names) folders.push_back(scratch / name);
  write_report(folders, scratch / "report.html");
  return contents(scratch / "report.html");
}

// Every element is closed, in order, and every id is there once.
void expect_well_formed(const std::string& page) {
  const std::regex tag("<(/?)([a-zA-Z][a-zA-Z0-9]*)((?:\"[^\"]*\"|[^>\"])*?)(/?)>");
  const std::set<std::string> kEmpty = {"meta", "img", "br"};
  const std::string body = std::regex_replace(page, std::regex("<style>[^<]*</style>"), "");
  std::vector<std::string> open;
  for (std::sregex_iterator i(body.begin(), body.end(), tag), end; i != end; ++i) {
    const std::string name = (*i)[2];
    if (kEmpty.contains(name) || (*i)[4] == "/") continue;
    if ((*i)[1] != "/") {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << (*i)[0];
    ASSERT_EQ(open.back(), name) << body.substr(static_cast<size_t>(i->position()), 300);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty()) << open.back();
  std::set<std::string> ids;
  const std::regex id(" id=\"([^\"]*)\"");
  for (std::sregex_iterator i(body.begin(), body.end(), id), end; i != end; ++i) {
    EXPECT_TRUE(ids.insert((*i)[1]).second) << (*i)[1];
  }
  const std::regex used("(?:href=\"#|aria-labelledby=\")([^\" ]*)");
  for (std::sregex_iterator i(body.begin(), body.end(), used), end; i != end; ++i) {
    EXPECT_TRUE(ids.contains((*i)[1])) << (*i)[1];
  }
}

void expect_alone(const std::string& page) {
  for (const char* outside : {"<script", "http://", "https://", "src=\"/", "url(", "<link",
                              "<iframe", "javascript:", " onload", " onerror", "@import"}) {
    EXPECT_FALSE(contains(page, outside)) << outside;
  }
  EXPECT_TRUE(contains(page, "default-src 'none'"));
}

TEST(Report, HasEverySectionOfAComparison) {
  const ScratchFolder scratch;
  write_made_comparison(scratch / "compare");
  const std::string page = page_of(scratch, {"compare"});
  expect_well_formed(page);
  expect_alone(page);
  for (const char* section :
       {"summary", "curves", "time", "layers", "runs", "environment", "repeat"}) {
    EXPECT_TRUE(contains(page, fmt::format("<h2 id=\"{}\">", section))) << section;
  }
  for (const char* figure :
       {"Test accuracy over steps", "Test accuracy over seconds", "Training loss over steps",
        "Flip rate over steps", "Retained magnitude over steps", "Where a step&#39;s time goes",
        "Bands: lowest to highest of the seeds", "data:image/png;base64,", "measured: 1.50",
        "4 runs of 2 variants", "<td>avx2</td>"}) {
    EXPECT_TRUE(contains(page, figure)) << figure;
  }
  // Two seeds: 0.81 and 0.82, less 1/41.
  EXPECT_TRUE(contains(page, "<td class=\"n\">79.06 ± 0.71</td>")) << page.substr(6000, 3000);
  EXPECT_TRUE(contains(
      page, "--seed 2 --threads 2 --plan " + (scratch / "compare/s-ste-seed2/run.json").string()));
}

TEST(Report, TheSameRunsGiveTheSameBytes) {
  const ScratchFolder scratch;
  write_made_comparison(scratch / "compare");
  EXPECT_EQ(page_of(scratch, {"compare"}), page_of(scratch, {"compare"}));
}

TEST(Report, ARunThatWasChangedIsRepeatedInStretchesOrNotAtAll) {
  const ScratchFolder scratch;
  write_made_run(scratch / "first", made_run("s-ste", 1));
  const auto page_changed_after = [&](int64_t step) {
    Json record = made_record(made_run("s-ste", 1));
    record["changes"] = Json::array();
    record["changes"].push_back(
        {{"step", step}, {"was", {{"steps", 20}}}, {"is", {{"steps", 40}}}});
    put(scratch / "first/run.json", record.dump());
    const std::string page = page_of(scratch, {"first"});
    expect_well_formed(page);
    return page;
  };
  const std::string again = (scratch / "first-again").string();
  const std::string extended = page_changed_after(20);
  EXPECT_TRUE(contains(extended, "<pre><code>weft train --model mlp ")) << extended;
  EXPECT_TRUE(contains(
      extended, " --out " + again + "\nweft train --resume " + again + " --steps 40\n</code>"));
  const std::string changed = page_changed_after(7);
  EXPECT_TRUE(contains(
      changed, "<dd>No command repeats it: it was changed after step 7: steps 20 to 40.</dd>"));
  EXPECT_FALSE(contains(changed, "<pre><code>"));
}

TEST(Report, OneRunHasNoBands) {
  const ScratchFolder scratch;
  write_made_run(scratch / "first", made_run("s-ste", 1));
  const std::string page = page_of(scratch, {"first"});
  expect_well_formed(page);
  EXPECT_FALSE(contains(page, "Bands:"));
  EXPECT_FALSE(contains(page, "±"));
  EXPECT_TRUE(contains(page, "1 run of 1 variant."));
}

TEST(Report, TwentyVariantsKeepTheirNames) {
  const ScratchFolder scratch;
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) {
    MadeRun made = made_run("s-ste", 1);
    made.options.width = 16 + i;
    names.push_back(fmt::format("run{}", i));
    write_made_run(scratch / names.back(), made);
  }
  const std::string page = page_of(scratch, names);
  expect_well_formed(page);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(contains(page, fmt::format("s-ste 2:4, width {}", 16 + i)));
  }
}

TEST(Report, UnfinishedRunsAreShownAsFarAsTheyAre) {
  const ScratchFolder scratch;
  for (const int64_t steps : {0, 1, 25}) {
    MadeRun made = made_run("s-ste", 1);
    made.steps_done = steps;
    const std::string name = fmt::format("run{}", steps);
    write_made_run(scratch / name, made);
    const std::string page = page_of(scratch, {name});
    expect_well_formed(page);
    EXPECT_TRUE(contains(page, fmt::format("unfinished: {} of 40 steps", steps)));
    EXPECT_TRUE(contains(page, "the run has no model yet"));
    EXPECT_FALSE(contains(page, "nan"));
  }
}

TEST(Report, ALossThatIsNotFiniteIsSaidAndNotDrawn) {
  const ScratchFolder scratch;
  MadeRun made = made_run("sr-ste", 1);
  made.steps_done = 30;
  made.loss = [](int64_t step) { return step > 20 ? INFINITY : step > 12 ? NAN : 2.0; };
  write_made_run(scratch / "run", made);
  const std::string page = page_of(scratch, {"run"});
  expect_well_formed(page);
  EXPECT_TRUE(contains(page, "unfinished: 30 of 40 steps, the loss is not finite"));
  EXPECT_FALSE(contains(page, "nan"));
  EXPECT_FALSE(contains(page, "inf,"));
}

TEST(Report, NamesFromOutsideAreText) {
  const ScratchFolder scratch;
  MadeRun made = made_run("s-ste", 1);
  made.layer = "<script>alert(1)</script>";
  made.options.data = "text:\"><img src=x onerror=alert(1)>";
  const std::string name = "a\"b'<i>&amp; c";
  write_made_run(scratch / name, made);
  const std::string page = page_of(scratch, {name});
  expect_well_formed(page);
  EXPECT_FALSE(contains(page, "<script"));
  EXPECT_FALSE(contains(page, "<img src=x"));
  EXPECT_FALSE(contains(page, "<i>"));
  EXPECT_TRUE(contains(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_TRUE(contains(page, "a&quot;b&#39;&lt;i&gt;&amp;amp; c"));
}

TEST(Report, NothingIsWrittenIfARunCannotBeRead) {
  const ScratchFolder scratch;
  write_made_run(scratch / "good", made_run("s-ste", 1));
  write_made_run(scratch / "bad", made_run("s-ste", 2));
  put(scratch / "bad/model.safetensors", "not a model");
  EXPECT_TRUE(contains(message_of([&] { page_of(scratch, {"bad"}); }), "bad/model.safetensors: "));
  put(scratch / "bad/metrics.jsonl", "{}\n");
  EXPECT_TRUE(contains(message_of([&] {
                         page_of(scratch, {"good", "bad"});
                       }),
                       "bad/metrics.jsonl:1: "));
  EXPECT_FALSE(std::filesystem::exists(scratch / "report.html"));
}

}  // namespace
}  // namespace weft::test
