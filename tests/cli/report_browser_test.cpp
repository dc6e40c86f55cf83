// Reports in a real browser: Debian's chromium, which is left out where it is not installed.
//
// The page itself has no scripts and forbids them. So a copy of it without that policy gets a script
// that looks at what was drawn and writes what it finds into the document.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tests/program.h"
#include "tests/report/made_runs.h"
#include "tests/support.h"

namespace weft::test {
namespace {

constexpr const char* kProbe = R"js(<script>
const texts = [];
const outside = [];
const crowded = [];
for (const svg of document.querySelectorAll('figure.chart > svg')) {
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  for (const [words, box] of boxes) {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 ||
        box.bottom > frame.bottom + 1) outside.push(words);
    for (const [others, other] of boxes) {
      const apart = box.right <= other.left || other.right <= box.left || box.bottom <= other.top + 1 ||
                    other.bottom <= box.top + 1;
      if (words !== others && !apart) crowded.push(words + ' | ' + others);
    }
  }
}
// What the curves of a chart reach, by the ticks of its axis.
function extremes(id) {
  const svg = document.getElementById(id).parentElement.querySelector(':scope > svg');
  const ticks = [...svg.querySelectorAll('text.tick[text-anchor=end]')]
      .map(t => [Number(t.textContent), Number(t.getAttribute('y')) - 4]);
  const [a, b] = [ticks[0], ticks[ticks.length - 1]];
  const value = y => a[0] + (y - a[1]) / (b[1] - a[1]) * (b[0] - a[0]);
  const found = [];
  for (const path of svg.querySelectorAll('path.line, path.band')) {
    for (const place of path.getAttribute('d').matchAll(/[ML]([-0-9.]+),([-0-9.]+)/g)) {
      found.push(value(Number(place[2])));
    }
  }
  return [Math.min(...found), Math.max(...found)];
}
const style = getComputedStyle(document.body);
const found = {
  accuracy: extremes('accuracy'), loss: extremes('loss'),
  width: innerWidth, wide: document.documentElement.scrollWidth - innerWidth,
  outside, crowded,
  images: [...document.images].filter(i => i.naturalWidth > 0 && i.alt !== '').length,
  broken: [...document.images].filter(i => i.naturalWidth === 0 || i.alt === '').length,
  unnamed: [...document.querySelectorAll('svg[role=img]')].filter(
      s => s.getAttribute('aria-labelledby').split(' ').some(
          id => !document.getElementById(id) || !document.getElementById(id).textContent)).length,
  tables: [...document.querySelectorAll('table')].filter(t => !t.caption).length,
  headings: [...document.querySelectorAll('h1, h2, h3')].map(h => h.tagName).join(' '),
  scripts: document.querySelectorAll('script').length,
  paper: style.backgroundColor, ink: style.color,
};
document.body.textContent = 'FOUND' + JSON.stringify(found) + 'END';
</script>)js";

class ReportInABrowser : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v chromium >/dev/null 2>&1") != 0) {
      GTEST_SKIP()
          << "chromium is not installed (apt-get install chromium): nothing opens the page";
    }
    if (emulated()) GTEST_SKIP() << "another CPU";
  }

  // What chromium prints of a page: the document, then the log.
  std::string open(const std::filesystem::path& page, int width, bool dark) const {
    const std::string command = fmt::format(
        "HOME={} timeout 120 chromium --headless --no-sandbox --disable-gpu "
        "--disable-dev-shm-usage "
        "--user-data-dir={} --hide-scrollbars --window-size={},900 "
        "--blink-settings=preferredColorScheme={} --enable-logging=stderr --v=0 --dump-dom "
        "'file://{}' 2>&1",
        scratch_.path().string(), (scratch_ / "profile").string(), width, dark ? 0 : 1,
        page.string());
    std::FILE* const pipe = ::popen(command.c_str(), "r");
    std::string text;
    char buffer[4096];
    for (size_t bytes; (bytes = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
      text.append(buffer, bytes);
    }
    EXPECT_EQ(::pclose(pipe), 0) << text.substr(0, 2000);
    return text;
  }

  // What the probe finds in a page.
  Json look_at(const std::string& page, int width, bool dark) const {
    std::string probed = page;
    const size_t policy = probed.find("<meta http-equiv=\"Content-Security-Policy\"");
    probed.erase(policy, probed.find('>', policy) + 1 - policy);
    probed.insert(probed.find("</body>"), kProbe);
    put(scratch_ / "probed.html", probed);
    const std::string text = open(scratch_ / "probed.html", width, dark);
    const size_t begin = text.find("FOUND{"), end = text.find("}END");
    if (begin == std::string::npos || end == std::string::npos) {
      ADD_FAILURE() << "the probe did not run: " << text.substr(0, 2000);
      return Json::object();
    }
    return Json::parse(text.substr(begin + 5, end + 1 - begin - 5), "the probe");
  }

  std::string page_of(const std::vector<std::string>& folders) const {
    std::vector<std::string> arguments = {"report", "--out", scratch_ / "report.html"};
    arguments.insert(arguments.end(), folders.begin(), folders.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return contents(scratch_ / "report.html");
  }

  static void expect_tidy(const Json& found) {
    EXPECT_EQ(found["wide"], 0) << found;
    EXPECT_TRUE(found["outside"].empty()) << found["outside"];
    EXPECT_TRUE(found["crowded"].empty()) << found["crowded"];
    EXPECT_EQ(found["broken"], 0);
    EXPECT_EQ(found["unnamed"], 0);
    EXPECT_EQ(found["tables"], 0);  // without a caption
    EXPECT_TRUE(found["headings"].get<std::string>().starts_with("H1 H2 H2 H3 "));
    EXPECT_EQ(found["scripts"], 1);  // the probe
  }

  ScratchFolder scratch_;
};

TEST_F(ReportInABrowser, HasNothingToComplainAbout) {
  write_made_comparison(scratch_ / "compare");
  const std::string page = page_of({scratch_ / "compare"});
  const std::string text = open(scratch_ / "report.html", 1200, false);
  EXPECT_TRUE(contains(text, "Test accuracy over steps")) << text.substr(0, 2000);
  EXPECT_FALSE(contains(text, "CONSOLE")) << text.substr(text.find("CONSOLE"), 500);
  // A page that breaks its policy is complained about: the line above can fail.
  std::string broken = page;
  broken.insert(broken.find("</body>"), "<script>1</script><img src=\"http://localhost/x.png\">");
  put(scratch_ / "broken.html", broken);
  EXPECT_TRUE(contains(open(scratch_ / "broken.html", 1200, false), "CONSOLE"));
}

TEST_F(ReportInABrowser, ChartsReachWhatTheDataReach) {
  write_made_comparison(scratch_ / "compare");
  const Json found = look_at(page_of({scratch_ / "compare"}), 1200, false);
  expect_tidy(found);
  EXPECT_EQ(found["images"], 1);  // the mask of the sparse variant
  // made_runs.h: 81 to 84 % less 100/11 and 100/41; 3/step from 3 to 3/40.
  EXPECT_NEAR(found["accuracy"][0].get<double>(), 81 - 100.0 / 11, 0.05);
  EXPECT_NEAR(found["accuracy"][1].get<double>(), 84 - 100.0 / 41, 0.05);
  EXPECT_NEAR(found["loss"][0].get<double>(), 3.0 / 40, 0.01);
  EXPECT_NEAR(found["loss"][1].get<double>(), 3.0, 0.01);
}

TEST_F(ReportInABrowser, FitsAPhoneInBothThemes) {
  write_made_comparison(scratch_ / "compare");
  const std::string page = page_of({scratch_ / "compare"});
  const Json light = look_at(page, 360, false), dark = look_at(page, 360, true);
  expect_tidy(light);
  expect_tidy(dark);
  EXPECT_LE(light["width"].get<int64_t>(), 500);
  EXPECT_EQ(light["paper"], "rgb(255, 255, 255)");
  EXPECT_EQ(dark["paper"], "rgb(15, 19, 24)");
  EXPECT_NE(light["ink"], dark["ink"]);
}

TEST_F(ReportInABrowser, TwentyVariantsAndBadNamesAreTidy) {
  std::vector<std::string> folders;
  for (int i = 0; i < 20; ++i) {
    MadeRun made = made_run("s-ste", 1);
    made.options.width = 16 + i;
    made.layer = "<script>document.title='x'</script>";
    if (i % 3 == 1) made.steps_done = 12 + i;
    if (i == 4) made.loss = [](int64_t step) { return step > 9 ? NAN : 2.0; };
    folders.push_back(scratch_ / fmt::format("run \"{}\" <b>", i));
    write_made_run(folders.back(), made);
  }
  const std::string page = page_of(folders);
  expect_tidy(look_at(page, 1200, true));
  expect_tidy(look_at(page, 360, false));
}

}  // namespace
}  // namespace weft::test
