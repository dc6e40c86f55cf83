// check_checkpoint and mask_checkpoint as a program that links the library calls them: the reports
// against values counted here, the files against those of the command line.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>

#include "tests/prune/file_functions.h"
#include "weft/core/row_order.h"
#include "weft/prune/check_checkpoint.h"
#include "weft/prune/mask_checkpoint.h"

namespace weft::test {
namespace {

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
                       "no tensor to check: none is selected; for example 'fc.weight' is skipped: "
                       "excluded"));
  put(folder / "config.json", "{");
  options.names.exclude = "";
  Heard heard;
  check_checkpoint(options, heard.listener());
  ASSERT_EQ(heard.notes.size(), 1u);
  EXPECT_TRUE(contains(heard.notes[0], "config.json"));
}

// ─── mask ───

TEST(MaskCheckpoint, WritesWhatTheCommandLineWritesAndReportsWhatItDid) {
  const ScratchFolder folder;
  MaskOptions options;
  options.in = write_model(folder);
  options.out.path = folder / "library.safetensors";
  options.masks = folder / "library_masks.safetensors";
  options.pattern = Pattern(1, 4);
  options.names.exclude = "half";
  Heard heard;
  const MaskReport report = mask_checkpoint(options, heard.listener());
  heard.expect_all(kModelBytes);
  const std::string out = folder / "cli.safetensors", masks = folder / "cli_masks.safetensors";
  expect_succeeds(
      {"mask", options.in, out, "--pattern", "1:4", "--exclude", "half", "--masks", masks});
  expect_same_file(options.out.path, out);
  expect_same_file(*options.masks, masks);

  EXPECT_EQ(report.out, options.out.path);
  ASSERT_EQ(report.tensors.size(), 4u);
  const MaskedTensor& fc1 = report.tensors[0];
  EXPECT_EQ(fc1.info.name, "fc1.weight");
  EXPECT_EQ(fc1.info.shape, (std::vector<int64_t>{24, 40}));
  EXPECT_FALSE(fc1.transposed);
  EXPECT_EQ(fc1.figures.kept, 240);
  EXPECT_EQ(fc1.density(), 0.25);
  EXPECT_EQ(fc1.figures.gap(), 0.0);
  EXPECT_TRUE(fc1.figures.order.empty());
  double kept = 0, total = 0;
  for (const float value : floats_of(out, "fc1.weight")) kept += std::abs(double{value});
  for (const float value : floats_of(options.in, "fc1.weight")) total += std::abs(double{value});
  EXPECT_NEAR(fc1.figures.retained.kept, kept, 1e-9 * kept);
  EXPECT_NEAR(fc1.figures.retained.total, total, 1e-9 * total);
  double all = 0;
  for (const MaskedTensor& tensor : report.tensors) all += tensor.figures.retained.kept;
  EXPECT_EQ(report.retained().kept, all);

  EXPECT_EQ(
      names_of(report.skipped),
      (std::vector<std::string>{"fc1.bias", "half.weight", "embed_tokens.weight", "norm.weight"}));
  EXPECT_EQ(report.skipped[0].reason, LeftAlone::kNotNamedWeight);
  EXPECT_EQ(report.skipped[1].reason, LeftAlone::kExcluded);
  EXPECT_EQ(report.skipped[2].reason, LeftAlone::kEmbedding);
  EXPECT_EQ(report.skipped[3].reason, LeftAlone::kNormalisation);
}

TEST(MaskCheckpoint, ReordersRowsThatShareAndTakesTransposableSolvers) {
  const ScratchFolder folder;
  MaskOptions options;
  options.in = write_model(folder);
  options.out.path = folder / "library.safetensors";
  options.pattern = Pattern(2, 4, 2);
  options.reorder = true;
  options.names.include = "fc1.weight";
  const std::string out = folder / "cli.safetensors";
  for (const char* name : {"magnitude", "greedy-prune"}) {
    SCOPED_TRACE(name);
    options.solver = &solver(name);
    const MaskReport report = mask_checkpoint(options);
    std::vector<std::string> flags = {"mask",      options.in,   out,         "--pattern", "2:4x2",
                                      "--include", "fc1.weight", "--reorder", "--solver",  name};
    if (options.solver->transposable) flags.push_back("--transposable");
    expect_succeeds(flags);
    expect_same_file(options.out.path, out);
    ASSERT_EQ(report.tensors.size(), 1u);
    const PruneFigures& figures = report.tensors[0].figures;
    EXPECT_TRUE(is_row_order(figures.order, 24));
    EXPECT_GE(figures.retained.kept, figures.unpermuted.kept);
    EXPECT_GT(figures.unpermuted.kept, 0.0);
    EXPECT_EQ(report.unpermuted().kept, figures.unpermuted.kept);
    EXPECT_GE(figures.bound, figures.retained.kept);
    EXPECT_EQ(figures.gap() > 0, !options.solver->exact);
    CheckOptions check;
    check.file = options.out.path;
    EXPECT_TRUE(check_checkpoint(check).valid());
  }
}

TEST(MaskCheckpoint, RefusesOptionsThatDoNotFitAndReplacesTheInputOnlyIfAsked) {
  const ScratchFolder folder;
  MaskOptions options;
  options.in = write_model(folder);
  const std::string before = contents(options.in);
  options.out.path = options.in;
  try {
    mask_checkpoint(options);
    FAIL() << "no OverwriteError";
  } catch (const OverwriteError& error) {
    EXPECT_TRUE(error.replaceable());
    EXPECT_TRUE(contains(error.what(), "OUT " + options.in.string() + " is also a file of IN"));
  }
  options.out = {folder / "other.safetensors", true};
  EXPECT_EQ(option_refused([&] { mask_checkpoint(options); }), "in_place");
  options.out = {folder / "other.safetensors", false};
  options.masks = options.in;
  EXPECT_EQ(option_refused([&] { mask_checkpoint(options); }), "masks");
  options.masks = options.out.path;
  EXPECT_EQ(option_refused([&] { mask_checkpoint(options); }), "masks");
  options.masks.reset();
  options.reorder = true;
  EXPECT_EQ(option_refused([&] { mask_checkpoint(options); }), "reorder");
  options.reorder = false;
  options.names.include = "nothing";
  EXPECT_TRUE(contains(message_of([&] { mask_checkpoint(options); }), "no tensor to mask"));
  EXPECT_EQ(contents(options.in), before);
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"model.safetensors"});

  options.names.include = "";
  options.out = {folder.path(), true};  // the folder of the one file
  EXPECT_EQ(mask_checkpoint(options).out, options.in);
  EXPECT_NE(contents(options.in), before);
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"model.safetensors"});
}

// Bands of a weight that is larger than one: the figures add up, the mask is that of the whole.
TEST(PruneWeight, IsTheMaskOfTheWholeWeightInBands) {
  const ScratchFolder folder;
  const std::string path = folder / "wide.safetensors";
  const int64_t rows = 10, cols = 1 << 19;  // 42 MB: bands of 32 MB
  std::vector<float> values = gaussian(rows * cols, 3);
  for (size_t i = 0; i < 100; ++i) values[i] = 0;
  write_file(path, {{"fc.weight", Dtype::kF64, {rows, cols}, values}});
  const std::vector<double> wide(values.begin(), values.end());
  const Checkpoint checkpoint = Checkpoint::open(path);
  const PruneTask task{
      checkpoint, {checkpoint.tensors()[0]}, Pattern(1, 4), default_solver(false), false, true};
  const WeightShape shape{rows, cols, 1};
  const Mask whole = find_mask(default_solver(false), wide.data(), shape, task.pattern);
  int64_t bands = 0, differing = 0;
  const PruneFigures figures = prune_weight(task, [&](const Band& band, const Mask& mask) {
    ++bands;
    const auto* pruned = reinterpret_cast<const double*>(band.bytes.data());
    for (int64_t r = 0; r < band.rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto i = static_cast<size_t>((band.first_row + r) * cols + c);
        const bool kept = whole.at(band.first_row + r, c);
        differing += mask.at(r, c) != kept || pruned[r * cols + c] != (kept ? wide[i] : 0.0);
      }
    }
  });
  EXPECT_EQ(bands, 2);
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(figures.kept, rows * cols / 4);
  EXPECT_EQ(figures.zeros, 100);
  EXPECT_EQ(figures.groups.groups, rows * cols / 4);
  EXPECT_EQ(figures.groups.violations, rows * cols / 4 - 25);
  EXPECT_EQ(figures.groups.first_violation->in, 101);
  EXPECT_EQ(figures.bound, figures.retained.kept);
  const double kept = retained(wide.data(), shape, whole).kept;
  EXPECT_NEAR(figures.retained.kept, kept, 1e-12 * kept);  // summed by bands
}

}  // namespace
}  // namespace weft::test
