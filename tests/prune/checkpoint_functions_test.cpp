// Checkpoint to checkpoint, as a program that links the library calls it: what the reports say,
// against values counted here, and the same files as the command line writes.
#include <gtest/gtest.h>

#include <optional>

#include "tests/model_files.h"
#include "tests/support.h"
#include "weft/prune/check_checkpoint.h"

namespace weft {
namespace {

using test::contains;
using test::contents;
using test::gaussian;
using test::message_of;
using test::put;
using test::run;
using test::ScratchFolder;
using test::write_file;
using test::write_model;

std::vector<std::string> names_of(const std::vector<SkippedTensor>& skipped) {
  std::vector<std::string> names;
  for (const SkippedTensor& tensor : skipped) names.push_back(tensor.info.name);
  return names;
}

// Reported in order, up to the total.
struct Heard {
  std::vector<uint64_t> done;
  uint64_t total = 0;
  std::vector<std::string> notes;

  Listener listener() {
    return {[this](uint64_t now, uint64_t all) {
              done.push_back(now);
              total = all;
            },
            [this](const std::string& note) { notes.push_back(note); }};
  }
  void expect_all(uint64_t bytes) const {
    EXPECT_EQ(total, bytes);
    ASSERT_FALSE(done.empty());
    EXPECT_TRUE(std::ranges::is_sorted(done));
    EXPECT_EQ(done.back(), bytes);
  }
};

// ─── check ───

// [4, 10] at 2:4: a violation in row 2 at column 6, and a group of two at the end of each row.
std::string write_checked(const ScratchFolder& folder) {
  std::vector<float> values(40, 0.0f);
  for (size_t r = 0; r < 4; ++r) values[10 * r] = values[10 * r + 1] = values[10 * r + 9] = 1;
  for (size_t c = 4; c < 7; ++c) values[10 * 2 + c] = -1;
  const std::string path = folder / "checked.safetensors";
  write_file(path, {{"fc.weight", Dtype::kF32, {4, 10}, values},
                    {"fc.bias", Dtype::kF32, {4}, gaussian(4)},
                    {"norm.weight", Dtype::kF32, {4, 4}, gaussian(16)}});
  return path;
}

TEST(CheckCheckpoint, CountsGroupsAndNamesTheFirstWeightTooMany) {
  const ScratchFolder folder;
  CheckOptions options;
  options.file = write_checked(folder);
  options.pattern = Pattern(2, 4);
  Heard heard;
  const CheckReport report = check_checkpoint(options, heard.listener());
  heard.expect_all((40 + 4 + 16) * sizeof(float));
  ASSERT_EQ(report.tensors.size(), 1u);
  const CheckedTensor& tensor = report.tensors[0];
  EXPECT_EQ(tensor.info.name, "fc.weight");
  EXPECT_EQ(tensor.info.shape, (std::vector<int64_t>{4, 10}));
  EXPECT_EQ(tensor.promise.pattern, Pattern(2, 4));
  EXPECT_EQ(tensor.promise.axis, Axis::kIn);
  EXPECT_EQ(tensor.nonzero, 15);
  EXPECT_EQ(tensor.density(), 15.0 / 40);
  ASSERT_TRUE(tensor.in.has_value());
  EXPECT_FALSE(tensor.out.has_value());
  EXPECT_EQ(tensor.in->groups, 12);
  EXPECT_EQ(tensor.in->violations, 1);
  EXPECT_EQ(tensor.short_groups(), 4);
  ASSERT_TRUE(tensor.first_violation.has_value());
  EXPECT_EQ(tensor.first_violation->axis, Axis::kIn);
  EXPECT_EQ(tensor.first_violation->index, (std::vector<int64_t>{2, 6}));
  EXPECT_FALSE(tensor.obeys);
  EXPECT_FALSE(report.valid());
  ASSERT_EQ(report.skipped.size(), 2u);
  EXPECT_EQ(report.skipped[0].info.name, "fc.bias");
  EXPECT_EQ(report.skipped[0].reason, LeftAlone::kNotNamedWeight);
  EXPECT_EQ(report.skipped[1].info.name, "norm.weight");
  EXPECT_EQ(report.skipped[1].reason, LeftAlone::kNormalisation);
  EXPECT_EQ(run({"check", options.file, "--pattern", "2:4"}).code, 1);
}

TEST(CheckCheckpoint, StrictRefusesShortGroupsAndAxesAreCountedApart) {
  const ScratchFolder folder;
  CheckOptions options;
  options.file = write_checked(folder);
  options.pattern = Pattern(3, 4);
  CheckReport report = check_checkpoint(options);
  EXPECT_TRUE(report.valid());
  EXPECT_FALSE(report.tensors[0].first_violation.has_value());
  options.strict = true;
  EXPECT_FALSE(check_checkpoint(options).valid());
  options.axis = Axis::kOut;  // columns 0, 1 and 9 are full
  report = check_checkpoint(options);
  EXPECT_FALSE(report.tensors[0].in.has_value());
  EXPECT_EQ(report.tensors[0].out->violations, 3);
  EXPECT_EQ(report.tensors[0].first_violation->axis, Axis::kOut);
  EXPECT_EQ(report.tensors[0].first_violation->index, (std::vector<int64_t>{3, 0}));
}

TEST(CheckCheckpoint, TestsWhatTheFilePromises) {
  const ScratchFolder folder;
  const std::string path = folder / "promised.safetensors";
  Sparsity sparsity;
  sparsity.tensors.emplace("a", Promise{Pattern(1, 2), Axis::kBoth});
  sparsity.tensors.emplace("b", Promise{Pattern(2, 4), Axis::kIn, "", true});
  Metadata metadata;
  sparsity.store_in(metadata);
  write_file(path,
             {{"a", Dtype::kF32, {2, 2}, {1, 0, 0, 1}},
              {"b", Dtype::kF32, {4, 1}, {1, 1, 0, 1}},
              {"c.weight", Dtype::kF32, {2, 2}, {1, 1, 1, 1}}},
             metadata);
  CheckOptions options;
  options.file = path;
  const CheckReport report = check_checkpoint(options);
  ASSERT_EQ(report.tensors.size(), 2u);
  EXPECT_TRUE(report.tensors[0].obeys);
  EXPECT_EQ(report.tensors[0].in->groups, 2);
  EXPECT_EQ(report.tensors[0].out->groups, 2);
  EXPECT_TRUE(report.tensors[1].promise.transposed);
  EXPECT_EQ(report.tensors[1].first_violation->index, (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(report.common_pattern(), std::nullopt);
  EXPECT_EQ(names_of(report.skipped), std::vector<std::string>{"c.weight"});
  EXPECT_EQ(report.skipped[0].reason, LeftAlone::kNotPromised);
}

TEST(CheckCheckpoint, SaysWhichOptionIsMissingAndWhyNothingIsSelected) {
  const ScratchFolder folder;
  CheckOptions options;
  options.file = write_checked(folder);
  try {
    check_checkpoint(options);
    FAIL() << "no OptionError";
  } catch (const OptionError& error) {
    EXPECT_EQ(error.option(), "pattern");
    EXPECT_TRUE(contains(error.what(), "pattern is needed: " + options.file.string()));
  }
  options.pattern = Pattern(2, 4);
  options.names.exclude = "fc";
  EXPECT_TRUE(contains(message_of([&] { check_checkpoint(options); }),
                       "no tensor to check: none is selected: 'fc.weight', for one, is skipped: "
                       "excluded"));
  put(folder / "config.json", "{");
  options.names.exclude = "";
  Heard heard;
  check_checkpoint(options, heard.listener());
  ASSERT_EQ(heard.notes.size(), 1u);
  EXPECT_TRUE(contains(heard.notes[0], "config.json"));
}

}  // namespace
}  // namespace weft
