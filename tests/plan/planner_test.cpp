// What the planner decides, and what it keeps between runs.
#include "weft/plan/planner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/core/parallel.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/plan/synthetic.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchFolder;

const LayerShape kShape{40, 24, 36};

std::string read(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

// The cache as if it had been measured on a quiet machine: nothing in it is measured again.
void calm(const fs::path& path) {
  static const std::regex last_number(R"(,\s*[-+.e0-9]+\s*\])");
  write(path, std::regex_replace(read(path), last_number, ", 1]"));
}

// A tile unit for as long as it lives: the emulated one runs everywhere.
struct EmulatedTiles {
  EmulatedTiles() { force_tile_unit("emulated"); }
  ~EmulatedTiles() { restore_tile_unit(); }
};

TEST(LayerShape, ParsesWhatItPrints) {
  EXPECT_EQ(LayerShape::parse("2048x768x3072").str(), "2048x768x3072");
  for (const char* bad : {"", "1x2", "1x2x3x4", "0x1x1", "-1x2x3", "1x2x3 ", " 1x2x3", "axbxc",
                          "1x2x99999999999999999999", "1.5x2x3"}) {
    EXPECT_TRUE(contains(message_of([&] { LayerShape::parse(bad); }), "shape")) << bad;
  }
}

TEST(ConvShape, ParsesWhatItPrints) {
  for (const char* text : {"8x64x56x56:128x3x3", "8x64x56x57:128x3x1,stride=2,pad=1",
                           "1x8x9x9:4x2x2,stride=2x1,pad=0x3,dilation=2,groups=4"}) {
    EXPECT_EQ(ConvShape::parse(text).spec(), text);
  }
  const ConvShape shape = ConvShape::parse("1x8x9x10:4x2x3,groups=2,dilation=3x2,pad=5x4,stride=7");
  EXPECT_EQ(shape, (ConvShape{1, 8, 9, 10, 4, 2, 3, 7, 7, 5, 4, 3, 2, 2}));
  EXPECT_EQ(ConvShape::parse("1x8x9x9:4x2x2,stride=1,pad=0x0,groups=1").spec(), "1x8x9x9:4x2x2");
  for (const char* bad : {"",
                          ":",
                          "1x8x9x9",
                          "1x8x9x9:",
                          "1x8x9:4x2x2",
                          "1x8x9x9:4x2",
                          "1x8x9x9:4x2x2x2",
                          "1x8x9x9:4x2x2,",
                          "1x8x9x9:4x2x2,,pad=1",
                          "1x8x9x9:4x2x2,pad",
                          "1x8x9x9:4x2x2,pad=",
                          "1x8x9x9:4x2x2,pad=1x",
                          "1x8x9x9:4x2x2,pad=1x1x1",
                          "1x8x9x9:4x2x2,pad=-1",
                          "1x8x9x9:4x2x2,groups=1x1",
                          "1x8x9x9:4x2x2,groups=3",
                          "1x8x9x9:4x2x2,Pad=1",
                          "1x8x9x9:4x2x2,stride=0",
                          " 1x8x9x9:4x2x2",
                          "1x8x9x9 :4x2x2",
                          "1x8x9x9:4x99x2",
                          "1x8x99999999999999999999x9:4x2x2",
                          ",pad=1:4x2x2"}) {
    EXPECT_TRUE(contains(message_of([&] { ConvShape::parse(bad); }), "convolution")) << bad;
  }
}

TEST(Timings, MeasuresOnceAndKeepsIt) {
  const ScratchFolder folder;
  const fs::path path = (folder / "deeper") / "timings.json";
  Timings first(path);
  const ProductTimes times = first.measure(Product::kForward, kShape, Pattern(2, 4));
  EXPECT_GT(times.dense, 0);
  EXPECT_GT(times.sparse, 0);
  EXPECT_GT(times.pack, 0);
  const std::string kept = read(path);
  EXPECT_TRUE(contains(kept, "fwd/2:4/40x24x36")) << kept;

  calm(path);
  Timings second(path);
  const ProductTimes again = second.measure(Product::kForward, kShape, Pattern(2, 4));
  EXPECT_EQ(times.dense, again.dense);  // not measured anew: it would differ in the last digits
  EXPECT_EQ(times.sparse, again.sparse);
  EXPECT_EQ(times.pack, again.pack);
}

TEST(Timings, ForgetsOtherVersionsAndWhatIsBroken) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  Timings(path).measure(Product::kForward, kShape, Pattern(2, 4));
  std::string good = read(path);  // with times that nobody would measure
  good = good.substr(0, good.find('[')) + "[1e9, 1e9, 1e9, 0, 1]" + good.substr(good.find(']') + 1);
  write(path, good);
  ASSERT_EQ(Timings(path).measure(Product::kForward, kShape, Pattern(2, 4)).dense, 1e9);
  const size_t version = good.find("\"weft\": \"") + 9;
  const size_t cpu = good.find("\"cpu\": \"") + 8;
  const size_t kernels = good.find("\"kernels\": ") + 11;
  ASSERT_NE(version, std::string::npos);
  const std::string broken[] = {good.substr(0, version) + "9" + good.substr(version),
                                good.substr(0, cpu) + "9" + good.substr(cpu),
                                good.substr(0, kernels) + "9" + good.substr(kernels),
                                "",
                                "{",
                                "[]",
                                "{\"weft\": 1}",
                                good.substr(0, good.size() / 2)};
  for (const std::string& text : broken) {
    write(path, text);
    const ProductTimes times = Timings(path).measure(Product::kForward, kShape, Pattern(2, 4));
    EXPECT_LT(times.dense, 1e6);
    EXPECT_EQ(read(path).substr(0, 2), "{\n") << "the cache was not written again";
  }
}

TEST(Timings, TakesOnlyTimesFromItsFile) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  Timings(path).measure(Product::kForward, kShape, Pattern(2, 4));
  std::string text = read(path);
  const size_t open = text.find('[');
  const size_t close = text.find(']');
  for (const char* times : {"[1, 2, 3, 0]", "[1, 2, -3, 0, 1]", "[1, 2, \"x\", 0, 1]",
                            "[0, 2, 1, 0, 1]", "[1, 0, 2, 0, 1]", "[1, 2, 3, 4, 1, 5]", "7"}) {
    write(path, text.substr(0, open) + times + text.substr(close + 1));
    const ProductTimes found = Timings(path).measure(Product::kForward, kShape, Pattern(2, 4));
    EXPECT_NE(found.sparse, 2.0) << times;
    EXPECT_GT(found.pack, 0.0) << times;
  }
}

TEST(Timings, WorksWithoutAPlaceToKeepIt) {
  Timings nowhere{fs::path()};
  EXPECT_GT(nowhere.measure(Product::kForward, kShape, Pattern(2, 4)).dense, 0);
  const ScratchFolder folder;
  write(folder / "file", "");
  Timings unwritable((folder / "file") / "timings.json");
  EXPECT_GT(unwritable.measure(Product::kForward, kShape, Pattern(2, 4)).dense, 0);
}

// A file of timings in which every time is made up: dense a nanosecond per flop, sparse as given,
// packing next to nothing.
void write_model(const fs::path& path, double sparse_per_dense) {
  const ScratchFolder folder;
  const fs::path real = folder / "timings.json";
  Timings(real).measure(Product::kForward, kShape, Pattern(2, 4));
  const std::string text = read(real);  // its one entry shows what a key looks like
  const size_t key = text.find("/fwd/2:4/40x24x36");
  const size_t quote = text.rfind('"', key);
  const std::string on = text.substr(quote + 1, key - quote - 1);
  std::string entries;
  for (const ProductForm& form : kProductForms) {
    for (const LayerShape& shape : model_shapes()) {
      const double dense = shape.flops() * 1e-6;
      entries += fmt::format("{}\"{}/{}/2:4/{}\": [{}, {}, {}, 0, 1]", entries.empty() ? "" : ", ",
                             on, form.name(), shape.str(), dense, dense * sparse_per_dense, 1e-9);
    }
  }
  write(path, text.substr(0, quote) + entries + text.substr(text.find(']') + 1));
}

// Times that were taken beside other work are measured again, once; the steadier ones are kept.
TEST(Timings, MeasureAgainWhatWasDoubtful) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  Timings(path).measure(Product::kForward, kShape, Pattern(2, 4));
  const std::string text = read(path);
  const size_t begin = text.find('[') + 1, end = text.find(']');
  const auto with = [&](const char* numbers) {
    write(path, text.substr(0, begin) + numbers + text.substr(end));
    Timings timings(path);
    const ProductTimes found = timings.measure(Product::kForward, kShape, Pattern(2, 4));
    const ProductTimes again = timings.measure(Product::kForward, kShape, Pattern(2, 4));
    EXPECT_EQ(found.dense, again.dense) << "measured twice in one process";
    return found.dense;
  };
  EXPECT_EQ(with("777, 1, 1, 0, 1.1"), 777.0);
  EXPECT_NE(with("777, 1, 1, 0, 1e9"), 777.0) << "doubtful, and kept";
  EXPECT_NE(Timings(path).measure(Product::kForward, kShape, Pattern(2, 4)).dense, 777.0);
}

TEST(Planner, DecidesByTheModelWhereItIsClear) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  for (const auto& [sparse, choice] : {std::pair(0.5, Choice::kSparse), {2.0, Choice::kDense}}) {
    write_model(path, sparse);
    Planner planner(PlanMode::kAuto, path);
    const LayerPlan plan = planner.plan({.shape = {700, 600, 500}, .pattern = Pattern(2, 4)});
    for (const ProductPlan& one : plan.products) {
      EXPECT_EQ(one.choice, choice) << one.reason();
      EXPECT_FALSE(one.measured) << one.reason();
      EXPECT_NEAR(one.times.dense, 2.0 * 700 * 600 * 500 * 1e-6, 1.0);
      EXPECT_NEAR(one.times.sparse, sparse * one.times.dense, 1.0);
    }
  }
}

TEST(Planner, MeasuresWhereTheModelIsNotSure) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  write_model(path, 1.0);
  Planner planner(PlanMode::kAuto, path);
  const LayerPlan plan = planner.plan({.shape = {140, 120, 100}, .pattern = Pattern(2, 4)});
  for (const ProductPlan& one : plan.products) {
    EXPECT_GT(one.predicted->dense, 1.0) << "small: it would be measured in any case";
    EXPECT_TRUE(one.measured) << one.reason();
    const double ratio = one.times.dense / (one.times.sparse + one.times.pack);
    EXPECT_EQ(one.choice == Choice::kSparse, ratio > sparse_margin(one.times.dense, true))
        << one.reason();
  }
  EXPECT_TRUE(contains(read(path), "140x120x100")) << "what was measured is not kept";
}

TEST(Planner, MeasuresSmallProductsHoweverSureTheModelIs) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  write_model(path, 0.5);
  Planner planner(PlanMode::kAuto, path);
  const LayerPlan plan = planner.plan({.shape = {70, 60, 50}, .pattern = Pattern(2, 4)});
  for (const ProductPlan& one : plan.products) {
    EXPECT_LT(one.predicted->dense, 1.0);
    EXPECT_TRUE(one.measured) << one.reason();
  }
}

TEST(Planner, WantsSmallProductsToWinByMore) {
  EXPECT_EQ(sparse_margin(0.99, /*packs=*/true), 1.2);
  EXPECT_EQ(sparse_margin(1.0, /*packs=*/true), 1.03);
  EXPECT_EQ(sparse_margin(0.01, /*packs=*/false), 1.03);
}

TEST(Planner, CountsPackingAsOftenAsItHappens) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  write_model(path, 0.5);
  Planner planner(PlanMode::kAuto, path);
  PlanRequest request{.shape = {1024, 1024, 1024}, .pattern = Pattern(2, 4)};
  const ProductPlan once = planner.plan(request)[Product::kForward];
  request.products_per_pack = 0;
  const ProductPlan never = planner.plan(request)[Product::kForward];
  EXPECT_TRUE(contains(once.reason(), "packing")) << once.reason();
  EXPECT_FALSE(contains(never.reason(), "packing")) << never.reason();
}

TEST(Planner, PlansAMaskedGradientForItself) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  Planner planner(PlanMode::kAuto, path);
  PlanRequest request{.shape = {8, 24, 36}, .pattern = Pattern(1, 4)};
  planner.plan(request);
  request.masked_gradient = true;
  request.products_per_pack = 0;
  const ProductPlan masked = planner.plan(request)[Product::kBackwardWeight];
  EXPECT_EQ(masked.form.name(), "bwd_w_masked");
  EXPECT_TRUE(masked.measured) << masked.reason();
  EXPECT_FALSE(contains(masked.reason(), "packing")) << "the mask of the weights serves them all";
  EXPECT_TRUE(contains(read(path), "bwd_w_masked/1:4/8x24x36"));
  EXPECT_TRUE(contains(planner.saved(), "8x24x36/1:4/0/bwd_w_masked")) << planner.saved();
}

TEST(Planner, ObeysAndExplains) {
  Planner sparse(PlanMode::kSparse, {}), dense(PlanMode::kDense, {});
  const PlanRequest request{.shape = kShape, .pattern = Pattern(1, 4)};
  for (const Product product : kProducts) {
    EXPECT_EQ(sparse.plan(request)[product].choice, Choice::kSparse);
    EXPECT_EQ(dense.plan(request)[product].choice, Choice::kDense);
    EXPECT_EQ(dense.plan(request)[product].reason(), "asked for");
  }
  const LayerPlan nothing = sparse.plan({.shape = kShape, .pattern = Pattern(4, 4)});
  EXPECT_EQ(nothing[Product::kForward].choice, Choice::kDense);
  EXPECT_EQ(nothing[Product::kForward].reason(), "nothing is pruned");
  EXPECT_EQ(sparse.plan(request)[Product::kBackwardData].form.name(), "bwd_x_ragged");
  EXPECT_TRUE(contains(message_of([] { parse_plan_mode("fast"); }), "auto, dense and sparse"));
  EXPECT_TRUE(contains(message_of([&] {
                         sparse.plan({.shape = {0, 1, 1}, .pattern = Pattern(2, 4)});
                       }),
                       "shape"));
}

const ConvShape kConv = ConvShape::parse("2x8x6x5:12x3x3,stride=2x1,pad=1,groups=2");

TEST(Planner, TakesATileUnitForBf16WhereItIsAllowed) {
  const EmulatedTiles tiles;
  PlanRequest request{.shape = kShape, .pattern = Pattern(2, 4, 16), .transposable = true};
  Planner sparse(PlanMode::kSparse, {}), dense(PlanMode::kDense, {});
  for (const ProductPlan& one : sparse.plan(request).products) {
    EXPECT_EQ(one.arithmetic.compute, Precision::kFp32) << "only fp32 was allowed";
  }
  request.precision = Precision::kBf16;
  for (const ProductPlan& one : sparse.plan(request).products) {
    EXPECT_EQ(one.arithmetic.compute, Precision::kBf16);
    EXPECT_EQ(one.note, "bf16 on emulated");
  }
  for (const ProductPlan& one : dense.plan(request).products) {
    EXPECT_EQ(one.arithmetic.compute, Precision::kBf16);
  }
  request.transposable = false;  // its transpose is ragged, and not shared
  const LayerPlan ragged = sparse.plan(request);
  EXPECT_EQ(ragged[Product::kForward].arithmetic.compute, Precision::kBf16);
  EXPECT_EQ(ragged[Product::kBackwardData].arithmetic.compute, Precision::kFp32);
  request.pattern = Pattern(2, 4);  // does not fill tiles
  EXPECT_EQ(sparse.plan(request)[Product::kForward].arithmetic.compute, Precision::kFp32);
  EXPECT_EQ(dense.plan(request)[Product::kForward].arithmetic.compute, Precision::kBf16);
}

TEST(Planner, SaysWhyBf16IsMultipliedInFp32) {
  force_tile_unit("none");
  PlanRequest request{.shape = kShape, .pattern = Pattern(2, 4, 16)};
  request.precision = Precision::kBf16;
  Planner planner(PlanMode::kAuto, {});
  for (const ProductPlan& one : planner.plan(request).products) {
    EXPECT_EQ(one.arithmetic.compute, Precision::kFp32);
    EXPECT_EQ(one.note, "bf16 in fp32 arithmetic: none was asked for");
  }
  restore_tile_unit();
}

// An emulated unit is never the faster one: both arithmetics are measured, and it loses.
TEST(Planner, MeasuresEveryArithmeticOfBf16) {
  const EmulatedTiles tiles;
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  Planner planner(PlanMode::kAuto, path);
  PlanRequest request{.shape = {64, 64, 64}, .pattern = Pattern(2, 4, 16), .transposable = true};
  request.precision = Precision::kBf16;
  for (const ProductPlan& one : planner.plan(request).products) {
    EXPECT_EQ(one.arithmetic.compute, Precision::kFp32) << one.reason();
  }
  const std::string kept = read(path);
  EXPECT_TRUE(contains(kept, "/bf16 in fp32\"")) << kept;
  EXPECT_TRUE(contains(kept, "/bf16 on emulated\"")) << kept;
}

TEST(Planner, RepeatsTheArithmeticOfASavedPlan) {
  const EmulatedTiles tiles;
  PlanRequest request{.shape = kShape, .pattern = Pattern(2, 4, 16)};
  request.precision = Precision::kBf16;
  Planner planner(PlanMode::kSparse, {});
  planner.plan(request);
  const std::string saved = planner.saved();
  EXPECT_TRUE(contains(saved, "sparse bf16")) << saved;
  Planner again = Planner::from_saved(saved);
  const LayerPlan plan = again.plan(request);
  EXPECT_EQ(plan[Product::kForward].choice, Choice::kSparse);
  EXPECT_EQ(plan[Product::kForward].arithmetic.compute, Precision::kBf16);
  EXPECT_EQ(plan[Product::kBackwardData].arithmetic.compute, Precision::kFp32);
  force_tile_unit("none");  // the same model elsewhere
  const LayerPlan elsewhere = again.plan(request);
  EXPECT_EQ(elsewhere[Product::kForward].choice, Choice::kSparse);
  EXPECT_EQ(elsewhere[Product::kForward].arithmetic.compute, Precision::kFp32);
  EXPECT_TRUE(contains(elsewhere[Product::kForward].note, "in fp32 arithmetic"));
  request.precision = Precision::kFp32;  // another question
  EXPECT_THROW(again.plan(request), Error);
  EXPECT_THROW(
      Planner::from_saved(R"({"version": 2, "untrained": {"a": "sparse bf32"}, "plans": {}})"),
      Error);
}

// Packing a stream takes long: only weights that never change are worth it, and few tokens.
TEST(Planner, LetsStreamsCompeteForFewTokens) {
  PlanRequest request{.shape = {1, 256, 512}, .pattern = Pattern(2, 4), .products_per_pack = 0};
  const auto streams = [&](const ProductForm& form) {
    const std::vector<Arithmetic> all = contestants(request, form);
    return std::count_if(all.begin(), all.end(), [](const Arithmetic& a) { return a.stream; });
  };
  EXPECT_EQ(streams(Product::kForward), 1);
  EXPECT_EQ(streams(Product::kBackwardData), 0);
  request.precision = Precision::kBf16;
  EXPECT_EQ(streams(Product::kForward), 1);
  request.shape.tokens = 17;
  EXPECT_EQ(streams(Product::kForward), 0);
  request.shape.tokens = 1;
  request.products_per_pack = 1;
  EXPECT_EQ(streams(Product::kForward), 0);

  Planner saved = Planner::from_saved(
      R"({"version": 2, "untrained": {}, "plans": {
          "1x256x512/2:4/0/fwd": {"begun": 0, "since": 0, "size": 1, "weights": "w", "path": "sparse stream"},
          "1x256x512/2:4/0/bwd_x_ragged": {"begun": 0, "since": 0, "size": 1, "weights": "w", "path": "dense"},
          "1x256x512/2:4/0/bwd_w": {"begun": 0, "since": 0, "size": 1, "weights": "w", "path": "sparse stream"}
          }})");
  request.products_per_pack = 0;
  request.precision = Precision::kFp32;
  const LayerPlan plan = saved.plan(request);
  EXPECT_EQ(plan[Product::kForward].path(), "sparse stream");
  EXPECT_EQ(plan[Product::kForward].arithmetic.layout(), PackLayout::kStream);
  EXPECT_EQ(plan[Product::kBackwardWeight].path(), "sparse") << "there are no such streams";
}

TEST(Planner, TakesTheFasterOfDensePanelsAndStream) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  PlanRequest request{.shape = {1, 256, 512}, .pattern = Pattern(2, 4), .products_per_pack = 0};
  Planner(PlanMode::kAuto, path).plan(request);
  const std::string text = read(path);
  // The times of the key that ends like this: dense, sparse, packing.
  const auto with = [](const std::string& in, const std::string& key, const std::string& times) {
    const size_t begin = in.find('[', in.find(key)), end = in.find(']', begin);
    return in.substr(0, begin) + "[" + times + ", 0, 1" + in.substr(end);
  };
  struct Case {
    const char *panels, *stream, *decided, *sparse;
  };
  for (const Case& c : {Case{"2, 5, 9", "2, 1, 9", "sparse stream", "sparse stream"},
                        Case{"3, 1, 9", "3, 2, 9", "sparse", "sparse"},
                        Case{"2, 5, 9", "1, 4, 9", "dense", "sparse stream"}}) {
    write(path,
          with(with(text, "fwd/2:4/1x256x512\"", c.panels), "1x256x512/fp32, stream\"", c.stream));
    const ProductPlan decided = Planner(PlanMode::kAuto, path).plan(request)[Product::kForward];
    EXPECT_EQ(decided.path(), c.decided) << decided.reason();
    EXPECT_EQ(decided.arithmetic.stream, contains(c.decided, "stream")) << decided.reason();
    EXPECT_EQ(Planner(PlanMode::kSparse, path).plan(request)[Product::kForward].path(), c.sparse);
    EXPECT_EQ(Planner(PlanMode::kDense, path).plan(request)[Product::kForward].path(), "dense");
  }
}

// The planner may take either for the other: they give the same bits.
TEST(Synthetic, StreamsComputeWhatPanelsDo) {
  for (const Precision storage : {Precision::kFp32, Precision::kBf16}) {
    SyntheticProduct panels(Product::kForward, {5, 100, 70}, Pattern(2, 4), {storage});
    SyntheticProduct stream(Product::kForward, {5, 100, 70}, Pattern(2, 4),
                            {.storage = storage, .stream = true});
    EXPECT_EQ(stream.packed().layout(), PackLayout::kStream);
    for (SyntheticProduct* one : {&panels, &stream}) {
      one->run_sparse();
      one->expand_result();
    }
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t c = 0; c < 70; ++c) {
        EXPECT_EQ(panels.result().at(r, c), stream.result().at(r, c));
      }
    }
  }
}

// Both paths against each other: sparse on the mask, dense on weights that are zero outside of it.
TEST(Synthetic, ConvolutionsComputeTheSameOnBothPaths) {
  for (const ProductForm& form : kPackedForms) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4, 2)}) {
      SyntheticConv product(form, kConv, pattern);
      product.run_sparse();
      const std::vector<float> sparse = product.result();
      product.run_dense();
      ASSERT_EQ(sparse.size(), product.result().size());
      EXPECT_NE(sparse, product.result()) << form.name() << ": nothing is pruned";
      product.prune_operand();
      product.run_dense();
      for (size_t i = 0; i < sparse.size(); ++i) {
        ASSERT_NEAR(sparse[i], product.result()[i], 1e-5) << form.name() << " at " << i;
      }
    }
  }
}

TEST(Planner, MeasuresConvolutionsAndKeepsTheTimes) {
  const ScratchFolder folder;
  const fs::path path = folder / "timings.json";
  const ConvRequest request{.conv = kConv, .pattern = Pattern(2, 4)};
  const LayerPlan plan = Planner(PlanMode::kAuto, path).plan(request);
  for (const ProductPlan& one : plan.products) {
    EXPECT_TRUE(one.measured && !one.predicted) << one.reason();
    const double ratio = one.times.dense / (one.times.sparse + one.times.pack);
    EXPECT_EQ(one.choice == Choice::kSparse, ratio > sparse_margin(one.times.dense, true))
        << one.reason();
  }
  EXPECT_EQ(plan[Product::kBackwardData].form.name(), "bwd_x_ragged");
  EXPECT_TRUE(contains(read(path), "fwd/2:4/2x8x6x5:12x3x3,stride=2x1,pad=1,groups=2"));
  calm(path);
  const LayerPlan again = Planner(PlanMode::kAuto, path).plan(request);
  for (const Product product : kProducts) {
    EXPECT_EQ(again[product].times.dense, plan[product].times.dense) << "measured anew";
  }
}

TEST(Planner, RepeatsASavedPlanOfConvolutions) {
  Planner planner(PlanMode::kSparse, {});
  const ConvRequest request{.conv = kConv, .pattern = Pattern(1, 4)};
  planner.plan(request);
  planner.plan({.shape = kShape, .pattern = Pattern(1, 4)});
  Planner again = Planner::from_saved(planner.saved());
  EXPECT_EQ(again.plan(request)[Product::kForward].choice, Choice::kSparse);
  EXPECT_EQ(again.saved(), planner.saved());
  ConvRequest other = request;
  other.conv.pad_w = 2;
  EXPECT_TRUE(contains(message_of([&] { again.plan(other); }), "pad=1x2"));
  other.conv.images = 0;
  EXPECT_TRUE(contains(message_of([&] { planner.plan(other); }), "must have an image"));
  other = request;
  other.products_per_pack = -1;
  EXPECT_TRUE(contains(message_of([&] { planner.plan(other); }), "must not be negative"));
}

TEST(Planner, RepeatsASavedPlan) {
  Planner planner(PlanMode::kSparse, {});
  const PlanRequest request{.shape = kShape, .pattern = Pattern(1, 4)};
  planner.plan(request);
  Planner again = Planner::from_saved(planner.saved());
  for (const Product product : kProducts) {
    EXPECT_EQ(again.plan(request)[product].choice, Choice::kSparse);
    EXPECT_EQ(again.plan(request)[product].reason(), "saved");
  }
  EXPECT_EQ(again.saved(), planner.saved());
  const PlanRequest other{.shape = {8, 8, 8}, .pattern = Pattern(1, 4)};
  EXPECT_TRUE(contains(message_of([&] { again.plan(other); }), "saved plan has nothing"));
  // A run that goes on keeps what it has chosen and decides what is new.
  Planner going_on(PlanMode::kDense, {});
  going_on.remember(planner.saved());
  EXPECT_EQ(going_on.plan(request)[Product::kForward].reason(), "saved");
  EXPECT_EQ(going_on.plan(request)[Product::kForward].choice, Choice::kSparse);
  EXPECT_EQ(going_on.plan(other)[Product::kForward].choice, Choice::kDense);
  const auto plans = [](const char* entry) {
    return fmt::format(R"({{"version": 2, "untrained": {{}}, "plans": {{"a": {}}}}})", entry);
  };
  EXPECT_NO_THROW(Planner::from_saved(
      plans(R"({"begun": 0, "since": 0, "size": 1, "weights": "w", "path": "dense"})")));
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
        std::string(R"({"version": 1, "plans": {}, "untrained": {}})"),
        std::string(R"({"version": 2, "plans": []})"),
        std::string(R"({"version": 2, "plans": {}})"), plans("[]"), plans("{}"),
        plans(R"({"begun": 0, "since": -1, "size": 1, "weights": "w", "path": "dense"})"),
        plans(R"({"begun": 0, "since": 0, "size": 1, "weights": 3, "path": "dense"})"),
        plans(R"({"begun": 0, "since": 0, "size": 1, "weights": "w", "path": "fast"})")}) {
    EXPECT_TRUE(contains(message_of([&] { Planner::from_saved(bad); }), "saved plan")) << bad;
  }
}

}  // namespace
}  // namespace weft
