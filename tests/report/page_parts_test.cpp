// The pieces of a page, without runs: escaping, axes, charts, pictures, colours.
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <cmath>
#include <regex>

#include "tests/support.h"
#include "weft/report/axis.h"
#include "weft/report/bar_chart.h"
#include "weft/report/html.h"
#include "weft/report/line_chart.h"
#include "weft/report/page_style.h"
#include "weft/report/png.h"

namespace weft::test {
namespace {

TEST(Html, TextsAreEscapedAndHtmlIsNot) {
  const std::string bad = "<script>alert('&\"')</script>";
  EXPECT_EQ(html("<td>{}</td>", bad).str(),
            "<td>&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;</td>");
  EXPECT_EQ(html("<tr>{}</tr>", html("<td>{}</td>", 1.5)).str(), "<tr><td>1.5</td></tr>");
  EXPECT_EQ(html_text("a\x01\xff b"), "a\\x01\\xff b");  // not well-formed
  EXPECT_EQ(html_text("größer"), "größer");
}

TEST(Html, ALongTextIsNotCut) { EXPECT_EQ(html_text(std::string(100000, 'x')).size(), 100000u); }

TEST(HtmlTable, HeadingsCellsAndCaptionAreEscaped) {
  HtmlTable table("a<b", {"name", ">x<y"});
  table.add({html("{}", "<i>"), html("{}", 3)});
  const std::string code = table.html().str();
  EXPECT_TRUE(contains(code, "<caption>a&lt;b</caption>")) << code;
  EXPECT_TRUE(contains(code, "<th scope=\"col\" class=\"n\">x&lt;y</th>")) << code;
  EXPECT_TRUE(contains(code, "<th scope=\"row\">&lt;i&gt;</th><td class=\"n\">3</td>")) << code;
  EXPECT_TRUE(contains(message_of([&] { table.add({Html()}); }), "a row of 1 cells"));
}

TEST(ChartAxis, TicksAreRoundAndWithinTheAxis) {
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0, 1}, {-3, 7}, {0.0013, 0.0019}, {12, 97345}, {1e15, 1e15 + 1}, {0.5, 0.500001}}) {
    for (const int most : {2, 5, 8}) {
      const std::vector<Tick> ticks = round_ticks(low, high, most);
      EXPECT_LE(ticks.size(), static_cast<size_t>(most)) << low << " " << high;
      for (const Tick& tick : ticks) {
        EXPECT_GE(tick.value, low - 1e-6 * (high - low)) << low << " " << high;
        EXPECT_LE(tick.value, high + 1e-6 * (high - low)) << low << " " << high;
      }
    }
  }
  std::vector<std::string> labels;
  for (const Tick& tick : round_ticks(-0.21, 0.43, 8)) labels.push_back(tick.label);
  EXPECT_EQ(labels, (std::vector<std::string>{"-0.2", "-0.1", "0.0", "0.1", "0.2", "0.3", "0.4"}));
}

TEST(ChartAxis, LogarithmicTicksArePowersOfTen) {
  std::vector<std::string> labels;
  for (const Tick& tick : log_ticks(3e-5, 0.2, 6)) labels.push_back(tick.label);
  EXPECT_EQ(labels, (std::vector<std::string>{"0.0001", "0.001", "0.01", "0.1"}));
  for (const Tick& tick : log_ticks(2, 40, 6)) EXPECT_GE(tick.value, 2);
  EXPECT_EQ(log_ticks(2, 40, 6).size(), 4u);  // 2, 5, 10, 20
}

TEST(ChartAxis, PlacesAndValuesAreInverse) {
  for (const AxisScale scale : {AxisScale::kLinear, AxisScale::kLog}) {
    const ChartAxis axis(scale, 0.5, 40, 200, 20, 6);
    EXPECT_DOUBLE_EQ(axis.place(0.5), 200);
    EXPECT_DOUBLE_EQ(axis.place(40), 20);
    for (const double value : {0.5, 1.0, 7.0, 40.0}) {
      EXPECT_NEAR(axis.value_at(axis.place(value)), value, 1e-9);
    }
  }
  const ChartAxis one(AxisScale::kLinear, 3, 3, 0, 100, 5);  // a single value: in the middle
  EXPECT_DOUBLE_EQ(one.place(3), 50);
}

TEST(Figures, HaveAFewDigits) {
  EXPECT_EQ(figure_text(0), "0");
  EXPECT_EQ(figure_text(53.8), "53.80");
  EXPECT_EQ(figure_text(0.0012345, 3), "0.00123");
  EXPECT_EQ(figure_text(123456), "123456");
  EXPECT_EQ(figure_text(3.14159e-6, 2), "3.1e-06");
  EXPECT_EQ(figure_text(NAN), "–");
  EXPECT_EQ(figure_text(INFINITY), "–");
  EXPECT_EQ(share_text(0.5), "50.00 %");
}

LineChart chart_with(std::vector<ChartPoint> points) {
  LineChart chart;
  chart.id = "c";
  chart.heading = "Loss <of> \"x\"";
  chart.x_label = "steps";
  chart.y_label = "loss";
  chart.series = {{"a<b", 1, std::move(points)}};
  return chart;
}

// The coordinates in the path of the only line.
std::vector<std::pair<double, double>> line_of(const std::string& code) {
  std::smatch found;
  const std::regex path("<path class=\"line\" d=\"([^\"]*)\"");
  std::vector<std::pair<double, double>> places;
  if (!std::regex_search(code, found, path)) return places;
  std::string text = found[1];
  for (char& c : text) c = (c == 'M' || c == 'L' || c == ',') ? ' ' : c;
  std::istringstream numbers(text);
  for (double x, y; numbers >> x >> y;) places.emplace_back(x, y);
  return places;
}

TEST(LineChart, TheLineGoesThroughTheFigures) {
  const std::string code =
      figure_of(chart_with({{1, 1, 4, 4, 4}, {2, 2, 1, 1, 1}, {5, 5, 2, 2, 2}})).str();
  const auto places = line_of(code);
  ASSERT_EQ(places.size(), 3u) << code;
  // x from 0 to 5: 1 and 5 are a fifth and all of the way; y: proportional to 4, 1, 2.
  const double x0 = places[0].first - (places[2].first - places[0].first) / 4;
  EXPECT_NEAR((places[1].first - x0) / (places[2].first - x0), 0.4, 1e-3);
  EXPECT_NEAR((places[2].second - places[1].second) / (places[0].second - places[1].second),
              1.0 / 3, 1e-2);
  EXPECT_LT(places[0].second, places[1].second);  // larger is higher
}

TEST(LineChart, NamesAreEscapedAndTheTableHasTheFigures) {
  const std::string code = figure_of(chart_with({{1, 1, 4, 3, 5}, {2, 2, 1, 1, 1}})).str();
  EXPECT_FALSE(contains(code, "a<b"));
  EXPECT_FALSE(contains(code, "<of>"));
  EXPECT_TRUE(contains(code, "<td class=\"n\">4.000 (3.000 to 5.000)</td>")) << code;
  EXPECT_TRUE(contains(code, "role=\"img\" aria-labelledby=\"c-title c-text\"")) << code;
  EXPECT_TRUE(contains(code, "loss from 1.000 to 5.000")) << code;  // with the band
  EXPECT_TRUE(contains(code, "class=\"band s1\"")) << code;
}

TEST(LineChart, AGapIsNotDrawnOver) {
  const double nan = std::nan("");
  const std::string code = figure_of(chart_with({{1, 1, 4, 4, 4},
                                                 {2, 2, 3, 3, 3},
                                                 {3, 3, nan, nan, nan},
                                                 {4, 4, 2, 2, 2},
                                                 {5, 5, 1, 1, 1}}))
                               .str();
  size_t lines = 0;
  for (size_t at = 0; (at = code.find("class=\"line\" d=", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 2u) << code;
  EXPECT_FALSE(contains(code, "nan"));
}

TEST(LineChart, OneFigureIsAMarkAndNoneIsALine) {
  const std::string one = figure_of(chart_with({{7, 7, 2, 1, 3}})).str();
  EXPECT_TRUE(contains(one, "<circle ")) << one;
  EXPECT_TRUE(contains(one, "class=\"bar\"")) << one;  // its range
  EXPECT_FALSE(contains(one, "nan"));
  const std::string none = figure_of(chart_with({{7, 7, NAN, NAN, NAN}})).str();
  EXPECT_TRUE(contains(none, "No figures to draw")) << none;
  EXPECT_FALSE(contains(none, "<svg viewBox=\"0 0 4")) << none;
}

TEST(LineChart, ALogarithmicScaleLeavesZerosOut) {
  LineChart chart = chart_with({{1, 1, 0.1, 0, 0.2}, {2, 2, 0, 0, 0}, {3, 3, 1e-4, 1e-4, 1e-4}});
  chart.scale = AxisScale::kLog;
  const std::string code = figure_of(chart).str();
  EXPECT_FALSE(contains(code, "nan"));
  EXPECT_FALSE(contains(code, "inf"));
  EXPECT_TRUE(line_of(code).empty()) << code;  // two points, apart
}

TEST(LineChart, TheLegendIsInTheOrderOfTheLastFigures) {
  LineChart chart = chart_with({{1, 1, 4, 4, 4}});
  chart.series.push_back({"higher", 2, {{1, 1, 5, 5, 5}}});
  const auto order = [&] {
    const std::string code = figure_of(chart).str();
    const size_t legend = code.find("class=\"legend\"");
    return code.find("higher", legend) < code.find("a&lt;b", legend);
  };
  EXPECT_TRUE(order());
  chart.high_first = false;
  EXPECT_FALSE(order());
}

TEST(Styles, DifferInColourAndDashes) {
  std::set<std::pair<std::string, std::string>> seen;
  for (int style = 0; style <= 28; ++style) {
    EXPECT_TRUE(seen.insert({style_class(style), style_dashes(style)}).second) << style;
  }
  EXPECT_EQ(style_class(0), "s0");
  EXPECT_EQ(style_dashes(0), "");
}

TEST(BarChart, PartsAreProportionalAndAddUp) {
  BarChart chart{"b", "Time", "ms", {"x", "y"}, {}, {{"first", {3, 1}}, {"second", {1, 1}}}};
  const std::string code = figure_of(chart).str();
  const std::regex rect("<rect class=\"part p(.)\" x=\"([0-9.]+)\" [^>]*width=\"([0-9.]+)\"");
  std::vector<std::array<double, 2>> parts;
  for (std::sregex_iterator i(code.begin(), code.end(), rect), end; i != end; ++i) {
    parts.push_back({std::stod((*i)[2]), std::stod((*i)[3])});
  }
  ASSERT_EQ(parts.size(), 4u) << code;
  EXPECT_NEAR(parts[0][1] / parts[1][1], 3.0, 1e-3);
  EXPECT_NEAR(parts[1][0], parts[0][0] + parts[0][1], 0.02);
  EXPECT_NEAR(parts[2][1], parts[1][1], 0.02);
  EXPECT_TRUE(contains(code, "<td class=\"n\">4.00</td>")) << code;
}

uint32_t number_at(const std::string& png, size_t at) {
  uint32_t number = 0;
  for (size_t i = 0; i < 4; ++i) number = number << 8 | static_cast<unsigned char>(png.at(at + i));
  return number;
}

TEST(Png, HasThePixels) {
  Bitmap bitmap{10, 3, {}};
  for (int i = 0; i < 30; ++i) bitmap.bits.push_back(i % 3 == 0);
  const std::string png = png_of(bitmap, 0x112233);
  ASSERT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  std::map<std::string, std::string> chunks;
  for (size_t at = 8; at < png.size();) {
    const size_t size = number_at(png, at);
    const std::string typed = png.substr(at + 4, size + 4);
    EXPECT_EQ(
        number_at(png, at + 8 + size),
        ::crc32(0, reinterpret_cast<const Bytef*>(typed.data()), static_cast<uInt>(typed.size())));
    chunks[typed.substr(0, 4)] = typed.substr(4);
    at += size + 12;
  }
  EXPECT_EQ(number_at(chunks["IHDR"], 0), 10u);
  EXPECT_EQ(number_at(chunks["IHDR"], 4), 3u);
  EXPECT_EQ(chunks["PLTE"].substr(3), "\x11\x22\x33");
  std::string rows(9, '\0');  // a filter and two bytes for each row
  uLongf bytes = rows.size();
  ASSERT_EQ(
      ::uncompress(reinterpret_cast<Bytef*>(rows.data()), &bytes,
                   reinterpret_cast<const Bytef*>(chunks["IDAT"].data()), chunks["IDAT"].size()),
      Z_OK);
  ASSERT_EQ(bytes, rows.size());
  for (size_t i = 0; i < 30; ++i) {
    const size_t x = i % 10;
    const bool set = static_cast<unsigned char>(rows[i / 10 * 3 + 1 + x / 8]) >> (7 - x % 8) & 1;
    EXPECT_EQ(set, bitmap.bits[i]) << i;
  }
  EXPECT_TRUE(contains(message_of([&] { png_of({2, 2, {true}}, 0); }), "a picture of 2 x 2"));
}

TEST(Png, DataUrisAreBase64) {
  EXPECT_EQ(data_uri("foobar"), "data:image/png;base64,Zm9vYmFy");
  EXPECT_EQ(data_uri("fooba"), "data:image/png;base64,Zm9vYmE=");
  EXPECT_EQ(data_uri("foob"), "data:image/png;base64,Zm9vYg==");
  EXPECT_EQ(data_uri(""), "data:image/png;base64,");
}

// Colours of the page, and how people see them.

using Rgb = std::array<double, 3>;  // linear

Rgb linear(const std::string& colour) {
  Rgb rgb{};
  for (size_t i = 0; i < 3; ++i) {
    const double value = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    rgb[i] = value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  }
  return rgb;
}

double luminance(const Rgb& c) { return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; }

double contrast(const std::string& a, const std::string& b) {
  const auto [dark, light] = std::minmax({luminance(linear(a)), luminance(linear(b))});
  return (light + 0.05) / (dark + 0.05);
}

using Vision = std::array<Rgb, 3>;
constexpr Vision kNormal = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
// Machado, Oliveira and Fernandes 2009, severity 1.
constexpr Vision kWithoutRed = {{{0.152286, 1.052583, -0.204868},
                                 {0.114503, 0.786281, 0.099216},
                                 {-0.003882, -0.048116, 1.051998}}};
constexpr Vision kWithoutGreen = {{{0.367322, 0.860646, -0.227968},
                                   {0.280085, 0.672501, 0.047413},
                                   {-0.011820, 0.042940, 0.968881}}};
constexpr Vision kWithoutBlue = {{{1.255528, -0.076749, -0.178779},
                                  {-0.078411, 0.930809, 0.147602},
                                  {0.004733, 0.691367, 0.303900}}};

Rgb lab(const std::string& colour, const Vision& vision) {
  const Rgb rgb = linear(colour);
  Rgb seen{};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) seen[i] += vision[i][j] * rgb[j];
    seen[i] = std::clamp(seen[i], 0.0, 1.0);
  }
  const auto root = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  const double x = root((0.4124 * seen[0] + 0.3576 * seen[1] + 0.1805 * seen[2]) / 0.9505);
  const double y = root(luminance(seen));
  const double z = root((0.0193 * seen[0] + 0.1192 * seen[1] + 0.9505 * seen[2]) / 1.089);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

TEST(PageStyle, ColoursAreToldApartByEverybodyInBothThemes) {
  const std::string style = page_style();
  const size_t dark = style.find("prefers-color-scheme: dark"), print = style.find("@media print");
  ASSERT_LT(dark, print);
  for (const std::string& theme :
       {style.substr(0, dark), style.substr(dark, print - dark), style.substr(print)}) {
    std::map<std::string, std::string> colours;
    const std::regex entry("--([a-z]+[0-9]?): (#[0-9a-f]{6})");
    for (std::sregex_iterator i(theme.begin(), theme.end(), entry), end; i != end; ++i) {
      colours[(*i)[1]] = (*i)[2];
    }
    ASSERT_TRUE(colours.contains("s7") && colours.contains("p6")) << theme;
    for (int a = 0; a < 8; ++a) {
      const std::string one = colours[fmt::format("s{}", a)];
      EXPECT_GE(contrast(one, colours["paper"]), 3.0) << one;
      for (int b = 0; b < a; ++b) {
        const std::string other = colours[fmt::format("s{}", b)];
        for (const Vision& vision : {kNormal, kWithoutRed, kWithoutGreen, kWithoutBlue}) {
          const Rgb left = lab(one, vision), right = lab(other, vision);
          EXPECT_GE(std::hypot(left[0] - right[0], left[1] - right[1], left[2] - right[2]), 24.0)
              << one << " and " << other;
        }
      }
    }
    for (const char* text : {"ink", "quiet", "link", "good"}) {
      EXPECT_GE(contrast(colours[text], colours["paper"]), 4.5) << text;
    }
  }
}

}  // namespace
}  // namespace weft::test
