// What other programs read: CSV, and the records of event files.
#include <gtest/gtest.h>
#include <utime.h>

#include <bit>
#include <cmath>
#include <sstream>

#include "tests/report/made_runs.h"
#include "tests/support.h"
#include "weft/report/event_file.h"
#include "weft/report/export.h"

namespace weft::test {
namespace {

std::vector<std::string> lines_of(const std::function<void(const TextSink&)>& write) {
  std::string text;
  write([&](std::string_view piece) { text += piece; });
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Cells of lines without quotes.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == ',') {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

TEST(Csv, HasARowPerStepAndEvaluation) {
  const ScratchFolder scratch;
  MadeRun made = made_run("s-ste", 3);
  made.steps_done = 12;
  made.loss = [](int64_t step) { return step == 2 ? NAN : 0.1 + 0.2; };
  write_made_run(scratch / "first", made);
  const auto lines = lines_of([&](const TextSink& sink) { export_csv({scratch / "first"}, sink); });
  ASSERT_EQ(lines.size(), 14u);
  const std::vector<std::string> heads = cells_of(lines[0]);
  std::map<std::string, std::string> step, missing, eval;
  for (size_t i = 0; i < heads.size(); ++i) {
    step[heads[i]] = cells_of(lines[10]).at(i);
    missing[heads[i]] = cells_of(lines[2]).at(i);
    eval[heads[i]] = cells_of(lines[11]).at(i);
  }
  for (const std::string& line : lines) EXPECT_EQ(cells_of(line).size(), heads.size()) << line;
  EXPECT_EQ(step["run"], "first");
  EXPECT_EQ(step["recipe"], "s-ste");
  EXPECT_EQ(step["pattern"], "2:4");
  EXPECT_EQ(step["seed"], "3");
  EXPECT_EQ(step["step"], "10");
  EXPECT_NEAR(std::stod(step["seconds"]), 0.1, 1e-9);
  EXPECT_EQ(step["loss"], "0.30000000000000004");  // to the bit
  EXPECT_EQ(step["retained"], "0.71");
  EXPECT_EQ(step["fwd_ms"], "2");
  EXPECT_EQ(step["eval_loss"], "");
  EXPECT_EQ(missing["loss"], "");
  EXPECT_EQ(missing["retained"], "");
  EXPECT_EQ(eval["step"], "10");
  EXPECT_NEAR(std::stod(eval["seconds"]), 0.1, 1e-9);
  EXPECT_EQ(eval["loss"], "");
  EXPECT_EQ(eval["eval_samples"], "500");
  EXPECT_NEAR(std::stod(eval["eval_accuracy"]), 0.85, 1e-9);
}

TEST(Csv, NamesWithCommasAndQuotesAreQuoted) {
  const ScratchFolder scratch;
  MadeRun made = made_run("s-ste", 1);
  made.layer = "a,\"b\"";
  made.steps_done = 1;
  write_made_run(scratch / "x, \"y\"", made);
  const auto lines =
      lines_of([&](const TextSink& sink) { export_layers_csv({scratch / "x, \"y\""}, sink); });
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "run,recipe,pattern,seed,step,layer,figure,value");
  EXPECT_EQ(lines[1], R"("x, ""y""",s-ste,2:4,1,1,"a,""b""",density,0.5)");
  EXPECT_EQ(lines[2], R"("x, ""y""",s-ste,2:4,1,1,"a,""b""",flip_rate,0.01)");
}

// A reader of event files that shares nothing with the writer: lengths, sums, then the fields.

uint32_t slow_crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
  }
  return ~crc;
}

template <typename Word>
Word word_at(std::string_view bytes, size_t at) {
  Word word = 0;
  for (size_t i = sizeof(Word); i-- > 0;) {
    word = static_cast<Word>(word << 8 | static_cast<unsigned char>(bytes.at(at + i)));
  }
  return word;
}

void expect_sum(std::string_view bytes, uint32_t masked) {
  const uint32_t crc = slow_crc32c(bytes);
  EXPECT_EQ(masked, ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

std::vector<std::string_view> records_in(std::string_view file) {
  std::vector<std::string_view> records;
  for (size_t at = 0; at < file.size();) {
    const auto size = static_cast<size_t>(word_at<uint64_t>(file, at));
    expect_sum(file.substr(at, 8), word_at<uint32_t>(file, at + 8));
    records.push_back(file.substr(at + 12, size));
    expect_sum(records.back(), word_at<uint32_t>(file, at + 12 + size));
    at += 16 + size;
  }
  return records;
}

// Fields of a message by number: the bytes of each.
std::multimap<uint64_t, std::string_view> fields_of(std::string_view message) {
  std::multimap<uint64_t, std::string_view> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    const size_t begin = at;
    size_t size = 0;
    switch (key & 7) {
      case 0:
        varint();
        fields.emplace(key >> 3, message.substr(begin, at - begin));
        continue;
      case 1: size = 8; break;
      case 2: size = static_cast<size_t>(varint()); break;
      case 5: size = 4; break;
      default: ADD_FAILURE() << "wire type " << (key & 7); return fields;
    }
    fields.emplace(key >> 3, message.substr(at, size));
    at += size;
  }
  return fields;
}

std::map<std::string, float> scalars_of(std::string_view event) {
  std::map<std::string, float> scalars;
  const auto fields = fields_of(event);
  for (const auto& [number, value] : fields_of(fields.find(5)->second)) {
    EXPECT_EQ(number, 1u);
    const auto parts = fields_of(value);
    scalars[std::string(parts.find(1)->second)] =
        std::bit_cast<float>(word_at<uint32_t>(parts.find(2)->second, 0));
  }
  return scalars;
}

TEST(EventFile, SumsAreCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(EventFile, RecordsHaveTheirFields) {
  const std::string file = first_event(12.5) + scalar_event(13.25, 300, {{"a/b", 0.5}, {"ü", -2}});
  const auto records = records_in(file);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(fields_of(records[0]).find(3)->second, "brain.Event:2");
  const auto fields = fields_of(records[1]);
  EXPECT_EQ(std::bit_cast<double>(word_at<uint64_t>(fields.find(1)->second, 0)), 13.25);
  EXPECT_EQ(fields.find(2)->second, std::string_view("\xac\x02", 2));  // 300
  EXPECT_EQ(scalars_of(records[1]), (std::map<std::string, float>{{"a/b", 0.5f}, {"ü", -2.0f}}));
}

TEST(Tensorboard, ARunBecomesAFolderWithItsFigures) {
  const ScratchFolder scratch;
  write_made_comparison(scratch / "compare");
  const utimbuf changed{1700000000, 1700000000};
  ::utime((scratch / "compare/s-ste-seed1/metrics.jsonl").c_str(), &changed);
  export_tensorboard({scratch / "compare"}, scratch / "events");
  EXPECT_EQ(names_in(scratch / "events"),
            (std::set<std::string>{"dense-seed1", "dense-seed2", "s-ste-seed1", "s-ste-seed2"}));
  EXPECT_EQ(names_in(scratch / "events/s-ste-seed1"),
            (std::set<std::string>{"events.out.tfevents.weft", "run.txt"}));
  const std::string file = contents(scratch / "events/s-ste-seed1/events.out.tfevents.weft");
  const auto records = records_in(file);
  ASSERT_EQ(records.size(), 1u + 40 + 4);
  const auto last = scalars_of(records[records.size() - 2]);
  EXPECT_FLOAT_EQ(last.at("train/loss"), 3.0f / 40);
  EXPECT_FLOAT_EQ(last.at("retained/hidden1"), 0.74f);
  EXPECT_FLOAT_EQ(last.at("time/fwd_ms"), 2.0f);
  EXPECT_FLOAT_EQ(scalars_of(records.back()).at("eval/accuracy"), 0.81f - 1.0f / 41);
  const auto at = [&](size_t i) {
    const auto fields = fields_of(records[i]);
    return std::bit_cast<double>(word_at<uint64_t>(fields.find(1)->second, 0));
  };
  EXPECT_NEAR(at(0), 1700000000 - 0.4, 1e-5);
  EXPECT_NEAR(at(records.size() - 1), 1700000000, 1e-5);
  export_tensorboard({scratch / "compare"}, scratch / "events");  // again: the same file
  EXPECT_EQ(contents(scratch / "events/s-ste-seed1/events.out.tfevents.weft"), file);
}

TEST(Tensorboard, RunsOfTheSameNameDoNotOverwriteEachOther) {
  const ScratchFolder scratch;
  for (const char* name : {"a/run", "b/run"}) {
    std::filesystem::create_directories((scratch / name).parent_path());
    write_made_run(scratch / name, made_run("s-ste", 1));
  }
  const auto events = scratch / "events";
  const auto written = [&](const std::vector<std::string>& names) {
    std::vector<std::string> folders, places;
    for (const std::string& name : names) folders.push_back(scratch / name);
    for (const auto& file : export_tensorboard(folders, events)) {
      places.push_back(file.parent_path().filename());
    }
    return places;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(written({"a/run"}), Names{"run"});
  EXPECT_EQ(written({"b/run/"}), Names{"run-2"});
  EXPECT_EQ(written({"b/run", "a/../a/run"}), (Names{"run-2", "run"}));  // each where it was
  EXPECT_EQ(contents(events / "run-2/run.txt"), (scratch / "b/run").string() + "\n");
  EXPECT_EQ(names_in(events), (std::set<std::string>{"run", "run-2"}));
}

TEST(Tensorboard, FiguresThatAreNotFiniteAreLeftOut) {
  const ScratchFolder scratch;
  MadeRun made = made_run("s-ste", 1);
  made.steps_done = 2;
  made.loss = [](int64_t) { return NAN; };
  write_made_run(scratch / "run", made);
  export_tensorboard({scratch / "run"}, scratch / "events");
  const std::string file = contents(scratch / "events/run/events.out.tfevents.weft");
  const auto scalars = scalars_of(records_in(file).at(1));
  EXPECT_FALSE(scalars.contains("train/loss"));
  EXPECT_TRUE(scalars.contains("train/learning_rate"));
}

}  // namespace
}  // namespace weft::test
