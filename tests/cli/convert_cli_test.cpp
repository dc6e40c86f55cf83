// weft convert as its users meet it: on files alone, without a model of weft's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"
#include "weft/prune/auto_pattern.h"
#include "weft/prune/convert_layer.h"
#include "weft/prune/tensor_values.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// Threads of small work on a busy machine mostly wait for each other; --threads still counts.
[[maybe_unused]] const int kOneThread = ::setenv("OMP_NUM_THREADS", "1", 1);

using Values = std::vector<double>;

struct RawTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

RawTensor raw(const std::string& name, Dtype dtype, std::vector<int64_t> shape,
              const Values& values) {
  std::string bytes(values.size() * static_cast<size_t>(dtype_bits(dtype)) / 8, '\0');
  round_weights(values, dtype, std::as_writable_bytes(std::span(bytes)));
  return {name, dtype, std::move(shape), bytes};
}

template <typename Integer>
RawTensor raw_integer(const std::string& name, Dtype dtype, Integer value) {
  return {name, dtype, {}, std::string(reinterpret_cast<const char*>(&value), sizeof value)};
}

std::string write_raw(const std::string& path, const std::vector<RawTensor>& tensors) {
  std::vector<TensorInfo> infos;
  for (const RawTensor& one : tensors) infos.push_back({one.name, one.dtype, one.shape, 0, 0});
  SafetensorsWriter writer(path, infos, {});
  for (const RawTensor& one : tensors) {
    writer.write(one.name, 0, std::as_bytes(std::span(one.bytes)));
  }
  writer.commit();
  return path;
}

Values values_of(const std::string& path, const std::string& name) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  const ShardedTensor* tensor = find_tensor(checkpoint, name);
  if (tensor == nullptr) ADD_FAILURE() << path << " has no tensor " << name;
  return tensor == nullptr ? Values() : read_values(checkpoint, *tensor);
}

Values draw_values(int64_t count, uint64_t stream, double mean = 0.0) {
  Values values;
  const Rng rng(test_seed(), stream);
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(mean + rng.normal(static_cast<uint64_t>(i)));
  }
  return values;
}

// [samples, cols], correlated, with a mean.
Values draw_samples(int64_t samples, int64_t cols, uint64_t stream) {
  Values x = draw_values(samples * cols, stream, 0.5);
  const Values shared = draw_values(2 * samples, stream + 1),
               mix = draw_values(2 * cols, stream + 2);
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t f = 0; f < 2; ++f) {
        x[static_cast<size_t>(s * cols + c)] +=
            2 * shared[static_cast<size_t>(2 * s + f)] * mix[static_cast<size_t>(2 * c + f)];
      }
    }
  }
  return x;
}

// y = x wᵀ: [samples, outs]
Values outputs_of(const Values& w, const Values& x, int64_t cols) {
  const auto outs = static_cast<int64_t>(w.size()) / cols;
  const auto samples = static_cast<int64_t>(x.size()) / cols;
  Values y(static_cast<size_t>(samples * outs));
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t o = 0; o < outs; ++o) {
      for (int64_t c = 0; c < cols; ++c) {
        y[static_cast<size_t>(s * outs + o)] +=
            w[static_cast<size_t>(o * cols + c)] * x[static_cast<size_t>(s * cols + c)];
      }
    }
  }
  return y;
}

Values column_means(const Values& y, int64_t cols) {
  Values means(static_cast<size_t>(cols));
  const auto rows = static_cast<double>(y.size()) / static_cast<double>(cols);
  for (size_t i = 0; i < y.size(); ++i) means[i % static_cast<size_t>(cols)] += y[i] / rows;
  return means;
}

Values column_variances(const Values& y, int64_t cols) {
  Values squares = y;
  for (double& value : squares) value *= value;
  Values variances = column_means(squares, cols);
  const Values means = column_means(y, cols);
  for (size_t i = 0; i < variances.size(); ++i) variances[i] -= means[i] * means[i];
  return variances;
}

constexpr int64_t kFcOuts = 12, kFcIns = 22;      // not a multiple of a group
constexpr int64_t kConvOuts = 8, kConvCols = 72;  // 8 channels, 3 x 3
constexpr int64_t kSamples = 160;

// A linear layer with a bias; a convolution with its batch normalisation behind it; one with a
// normalisation that has its name but not its statistics; and things that nobody must touch.
struct CalibratedModel {
  Values fc_x = draw_samples(kSamples, kFcIns, 10);
  Values conv_x = draw_samples(kSamples, kConvCols, 20);
  std::vector<RawTensor> tensors;

  explicit CalibratedModel(Dtype dtype = Dtype::kF32) {
    const Values fc = draw_values(kFcOuts * kFcIns, 1), conv = draw_values(kConvOuts * 72, 2),
                 second = draw_values(kConvOuts * 72, 3);
    const Values y = outputs_of(conv, conv_x, kConvCols);
    tensors = {raw("fc.weight", dtype, {kFcOuts, kFcIns}, fc),
               raw("fc.bias", Dtype::kF32, {kFcOuts}, draw_values(kFcOuts, 4)),
               raw("conv1.weight", dtype, {kConvOuts, 8, 3, 3}, conv),
               raw("bn1.running_mean", Dtype::kF32, {kConvOuts}, column_means(y, kConvOuts)),
               raw("bn1.running_var", Dtype::kF32, {kConvOuts}, column_variances(y, kConvOuts)),
               raw("bn1.weight", Dtype::kF32, {kConvOuts}, draw_values(kConvOuts, 5, 1.0)),
               raw("conv2.weight", dtype, {kConvOuts, 8, 3, 3}, second),
               raw("bn2.running_mean", Dtype::kF32, {kConvOuts}, draw_values(kConvOuts, 6, 900.0)),
               raw("bn2.running_var", Dtype::kF32, {kConvOuts}, Values(kConvOuts, 1.0)),
               raw("embed.weight", dtype, {6, 8}, draw_values(48, 7)),
               raw_integer("steps", Dtype::kI64, int64_t{77})};
  }

  std::string write(const ScratchFolder& folder) const {
    return write_raw(folder / "model.safetensors", tensors);
  }
  // In two shards.
  std::string write_sharded(const ScratchFolder& folder) const {
    fs::create_directory(folder / "in");
    const auto middle = tensors.begin() + 5;
    write_raw(folder / "in/m-1.safetensors", {tensors.begin(), middle});
    write_raw(folder / "in/m-2.safetensors", {middle, tensors.end()});
    Json map = Json::object();
    for (auto it = tensors.begin(); it != tensors.end(); ++it) {
      map[it->name] = it < middle ? "m-1.safetensors" : "m-2.safetensors";
    }
    put(folder / "in/m.safetensors.index.json", Json({{"weight_map", map}}).dump());
    return folder / "in";
  }
  std::string write_inputs(const ScratchFolder& folder) const {
    return write_raw(folder / "inputs.safetensors",
                     {raw("fc.input", Dtype::kF64, {kSamples, kFcIns}, fc_x),
                      raw("conv1.input", Dtype::kF64, {kSamples, kConvCols}, conv_x),
                      raw("conv2.input", Dtype::kF64, {kSamples, kConvCols}, conv_x)});
  }
  std::string write_grams(const ScratchFolder& folder, bool means = true) const {
    std::vector<RawTensor> grams;
    for (const std::string layer : {"fc", "conv1", "conv2"}) {
      const Values& x = layer == "fc" ? fc_x : conv_x;
      const int64_t cols = layer == "fc" ? kFcIns : kConvCols;
      Values gram(static_cast<size_t>(cols * cols));
      for (int64_t s = 0; s < kSamples; ++s) {
        for (int64_t r = 0; r < cols; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            gram[static_cast<size_t>(r * cols + c)] += x[static_cast<size_t>(s * cols + r)] *
                                                       x[static_cast<size_t>(s * cols + c)] /
                                                       double{kSamples};
          }
        }
      }
      grams.push_back(raw(layer + ".gram", Dtype::kF64, {cols, cols}, gram));
      if (means) grams.push_back(raw(layer + ".mean", Dtype::kF64, {cols}, column_means(x, cols)));
      grams.push_back(raw_integer(layer + ".samples", Dtype::kI32, int32_t{kSamples}));
    }
    return write_raw(folder / "grams.safetensors", grams);
  }
};

// ‖W'X + change − WX‖² / ‖WX‖²
double measured(const Values& before, const Values& after, const Values& change, const Values& x,
                int64_t cols) {
  const Values y = outputs_of(before, x, cols), z = outputs_of(after, x, cols);
  double off = 0.0, all = 0.0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double moved = change.empty() ? 0.0 : change[i % change.size()];
    off += std::pow(z[i] + moved - y[i], 2), all += y[i] * y[i];
  }
  return off / all;
}

Values minus(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

const Json& layer_row(const Json& report, std::string_view name) {
  for (const Json& row : report["layers"]) {
    if (row["name"] == name) return row;
  }
  ADD_FAILURE() << "no layer " << name;
  return report;
}

std::string reason_skipped(const Json& report, const std::string& name) {
  for (const Json& row : report["skipped"]) {
    if (row["name"] == name) return row["reason"].get<std::string>();
  }
  return "";
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Method& method : methods()) names.emplace_back(method.name);
  return names;
}

Outcome convert(const std::string& in, const std::string& out, const std::string& pattern,
                std::vector<std::string> flags) {
  std::vector<std::string> args = {"convert", in, out, "--pattern", pattern, "--json"};
  args.insert(args.end(), flags.begin(), flags.end());
  return run(args);
}

TEST(Convert, EveryMethodAndTypeKeepsWhatItPromisesAndTouchesNothingElse) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kF64}) {
    const ScratchFolder folder;
    const CalibratedModel model(dtype);
    const std::string in = model.write(folder), inputs = model.write_inputs(folder);
    for (const std::string& method : method_names()) {
      SCOPED_TRACE(fmt::format("{} {}, seed {}", method, dtype_name(dtype), test_seed()));
      const std::string out = folder / (method + ".safetensors");
      const Outcome outcome =
          convert(in, out, "2:4", {"--method", method, "--calibration", inputs});
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      const Outcome checked = run({"check", out, "--json"});
      EXPECT_EQ(checked.code, 0) << checked.err << checked.out;
      EXPECT_EQ(checked.json()["tensors"].size(), 3u);
      const Json report = outcome.json();
      for (const std::string layer : {"fc", "conv1", "conv2"}) {
        const std::string weight = layer + ".weight";
        const bool linear = layer == "fc";
        const Values before = values_of(in, weight), after = values_of(out, weight);
        Values change;
        if (method == "adaprune" && linear) {
          change = minus(values_of(out, "fc.bias"), values_of(in, "fc.bias"));
        } else if (method == "adaprune" && layer == "conv1") {
          change = minus(values_of(in, "bn1.running_mean"), values_of(out, "bn1.running_mean"));
        }
        const double error = measured(before, after, change, linear ? model.fc_x : model.conv_x,
                                      linear ? kFcIns : kConvCols);
        const Json& row = layer_row(report, weight);
        EXPECT_NEAR(row["error_after"].get<double>(), error, 1e-5 * error);
        EXPECT_GT(error, 0.0);
        if (method == "adaprune") {
          EXPECT_LT(error, 0.7 * row["error_before"].get<double>());
        }
        for (size_t i = 0; i < after.size(); ++i) {  // what stays as it is keeps its bits
          if (method != "magnitude" && method != "wanda") break;
          ASSERT_TRUE(after[i] == 0.0 || after[i] == before[i]) << "weight " << i;
        }
      }
      std::set<std::string> moved = {"fc.weight", "conv1.weight", "conv2.weight"};
      if (method == "adaprune") moved.insert({"fc.bias", "bn1.running_mean"});
      for (const RawTensor& one : model.tensors) {
        EXPECT_EQ(tensor_bytes_of(out, one.name) == one.bytes, !moved.contains(one.name))
            << one.name;
      }
    }
  }
}

TEST(Convert, TheMeanGoesWhereItBelongsAndTheReportSaysSo) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  const std::string out = folder / "o";
  const Outcome outcome =
      convert(in, out, "1:4", {"--method", "adaprune", "--calibration", inputs});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json report = outcome.json();
  // Outputs keep their means: the bias gains (W − W') mean, the running mean loses it.
  const Values lost = minus(values_of(in, "fc.weight"), values_of(out, "fc.weight"));
  const Values expected = column_means(outputs_of(lost, model.fc_x, kFcIns), kFcOuts);
  const Values gained = minus(values_of(out, "fc.bias"), values_of(in, "fc.bias"));
  for (size_t r = 0; r < expected.size(); ++r) EXPECT_NEAR(gained[r], expected[r], 1e-5) << r;
  const Values conv_lost = minus(values_of(in, "conv1.weight"), values_of(out, "conv1.weight"));
  const Values conv_mean = column_means(outputs_of(conv_lost, model.conv_x, kConvCols), kConvOuts);
  const Values fallen =
      minus(values_of(in, "bn1.running_mean"), values_of(out, "bn1.running_mean"));
  for (size_t r = 0; r < conv_mean.size(); ++r) EXPECT_NEAR(fallen[r], conv_mean[r], 1e-4) << r;
  const auto note = [&](const std::string& name) {
    const Json& notes = layer_row(report, name)["notes"];
    return notes.size() == 1u ? notes[0].get<std::string>() : "";
  };
  EXPECT_EQ(note("fc.weight"), "its bias takes the mean");
  EXPECT_TRUE(contains(note("conv1.weight"), "bn1, behind it, takes the mean"));
  EXPECT_TRUE(contains(note("conv2.weight"), "bn2 does not normalise"));
}

TEST(Convert, ShardedInShardedOut) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string whole = model.write(folder), in = model.write_sharded(folder);
  const std::string inputs = model.write_inputs(folder);
  for (const std::string& method : method_names()) {
    SCOPED_TRACE(method);
    const std::vector<std::string> flags = {"--method", method, "--calibration", inputs};
    const std::string out = folder / (method + "-out"), one = folder / (method + ".safetensors");
    const Outcome outcome = convert(in, out, "4:8", flags);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    ASSERT_EQ(convert(whole, one, "4:8", flags).code, 0);
    EXPECT_EQ(names_in(out), names_in(in));
    EXPECT_EQ(run({"check", out}).code, 0);
    for (const RawTensor& tensor : model.tensors) {
      EXPECT_EQ(tensor_bytes_of(out, tensor.name), tensor_bytes_of(one, tensor.name))
          << tensor.name;
    }
  }
  expect_one_line(run({"convert", in, folder / "x.safetensors", "--pattern", "2:4"}), 1,
                  {"sharded"});
}

TEST(Convert, WithoutCalibrationMagnitudeIsWhatMaskDoes) {
  const ScratchFolder folder;
  const std::string in = write_model(folder);
  for (const std::string flag : {"", "--transposable"}) {
    for (const std::string pattern : {"2:4", "1:4x2", "4:8"}) {
      std::vector<std::string> flags, mask = {"mask", in, folder / "m", "--pattern", pattern};
      if (!flag.empty()) flags = {flag}, mask.push_back(flag);
      const Outcome outcome = convert(in, folder / "c", pattern, flags);
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      ASSERT_EQ(run(mask).code, 0);
      EXPECT_TRUE(contents(folder / "c") == contents(folder / "m")) << pattern << flag;
      EXPECT_EQ(run({"check", folder / "c"}).code, 0);
      const Json report = outcome.json();
      for (const Json& row : report["layers"]) {
        EXPECT_EQ(row["error_before"], nullptr);
        EXPECT_EQ(row["error_after"], nullptr);
      }
    }
  }
}

TEST(Convert, TransposableModelsPassTheCheckOfBothAxes) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  for (const std::string& method : method_names()) {
    const std::string out = folder / "o";
    const Outcome outcome =
        convert(in, out, "2:4", {"--transposable", "--method", method, "--calibration", inputs});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["transposable"], true);
    EXPECT_EQ(run({"check", out}).code, 0) << method;
    EXPECT_EQ(run({"check", out, "--pattern", "2:4", "--axis", "both"}).code, 0) << method;
  }
}

TEST(Convert, AGramGivesWhatItsInputsGive) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  const std::string grams = model.write_grams(folder), a = folder / "a", b = folder / "b";
  for (const std::string& method : method_names()) {
    SCOPED_TRACE(method);
    const Outcome by_inputs = convert(in, a, "2:4", {"--method", method, "--calibration", inputs});
    const Outcome by_grams = convert(in, b, "2:4", {"--method", method, "--calibration", grams});
    ASSERT_EQ(by_inputs.code, 0) << by_inputs.err;
    ASSERT_EQ(by_grams.code, 0) << by_grams.err;
    for (const RawTensor& tensor : model.tensors) {
      if (tensor.dtype != Dtype::kF32) continue;
      const Values off = minus(values_of(a, tensor.name), values_of(b, tensor.name));
      for (const double value : off) ASSERT_LT(std::abs(value), 2e-4) << tensor.name;
    }
    for (const std::string weight : {"fc.weight", "conv1.weight", "conv2.weight"}) {
      const double error = layer_row(by_inputs.json(), weight)["error_after"].get<double>();
      EXPECT_NEAR(layer_row(by_grams.json(), weight)["error_after"].get<double>(), error,
                  1e-5 * error);
    }
  }
  // Without means biases stay, and the report says why.
  const std::string bare = model.write_grams(folder, false);
  const Outcome outcome = convert(in, b, "2:4", {"--method", "adaprune", "--calibration", bare});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(tensor_bytes_of(b, "fc.bias"), tensor_bytes_of(in, "fc.bias"));
  EXPECT_EQ(tensor_bytes_of(b, "bn1.running_mean"), tensor_bytes_of(in, "bn1.running_mean"));
  EXPECT_TRUE(contains(layer_row(outcome.json(), "fc.weight")["notes"][0].get<std::string>(),
                       "mean of its inputs is not known"));
}

// ─── refusals ───

class Refusals : public ::testing::Test {
 protected:
  static constexpr int64_t kOuts = 4, kIns = 8;

  Refusals() {
    write_raw(in_, {raw("a.weight", Dtype::kF32, {kOuts, kIns}, draw_values(32, 1)),
                    raw("a.bias", Dtype::kF32, {kOuts}, draw_values(4, 2)),
                    raw("c.weight", Dtype::kF32, {kOuts, 8, 2, 2}, draw_values(128, 3))});
  }

  // Of layer `a`, with what is given for it.
  void expect_refused(const std::vector<RawTensor>& tensors, std::vector<std::string> parts,
                      const std::string& method = "adaprune") {
    write_raw(calibration_, tensors);
    parts.push_back(calibration_);
    const std::set<std::string> before = names_in(folder_.path());
    expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4", "--method", method,
                         "--exclude", "^c", "--calibration", calibration_}),
                    1, parts);
    EXPECT_EQ(names_in(folder_.path()), before);
  }

  static RawTensor input(const Values& x, Dtype dtype = Dtype::kF32, int64_t cols = kIns) {
    return raw("a.input", dtype, {static_cast<int64_t>(x.size()) / cols, cols}, x);
  }
  // A gram of samples, to be spoilt.
  static Values gram() {
    const Values x = draw_samples(40, kIns, 30);
    Values g(kIns * kIns);
    for (size_t s = 0; s < 40; ++s) {
      for (size_t i = 0; i < g.size(); ++i) {
        g[i] += x[s * kIns + i / kIns] * x[s * kIns + i % kIns] / 40;
      }
    }
    return g;
  }
  static RawTensor gram_tensor(const Values& g) {
    return raw("a.gram", Dtype::kF64, {kIns, kIns}, g);
  }

  const ScratchFolder folder_;
  const std::string in_ = folder_ / "in.safetensors", calibration_ = folder_ / "cal.safetensors";
};

TEST_F(Refusals, LayersThatAreNotThereOrOfAnotherWidth) {
  expect_refused({raw("b.input", Dtype::kF32, {4, 8}, Values(32))},
                 {"a.input", "a.gram", "--exclude"});
  expect_refused({input(draw_values(60, 1), Dtype::kF32, 6)}, {"a.input", "6 wide", "8 columns"});
  expect_refused({raw("a.input", Dtype::kF32, {10, 2, 4}, draw_values(80, 1))},
                 {"a.input", "two dimensions"});
  expect_refused({RawTensor{"a.input", Dtype::kI32, {10, 8}, std::string(320, '\0')}},
                 {"a.input", "I32"});
  expect_refused({input(draw_values(80, 1)), gram_tensor(gram())}, {"a.input", "a.gram", "both"});
}

TEST_F(Refusals, AConvolutionIsToldWhatIsMissing) {
  write_raw(calibration_, {raw("c.input", Dtype::kF32, {40, 8}, draw_values(320, 1))});
  expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4", "--method", "wanda",
                       "--exclude", "^a", "--calibration", calibration_}),
                  1, {calibration_, "c.input", "8 wide", "32 columns", "unfold"});
}

TEST_F(Refusals, SamplesThatAreNotNumbers) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kF64}) {
    for (const double value :
         {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
      Values x = draw_values(80, 1);
      x[7 * kIns + 3] = value;
      expect_refused({input(x, dtype)},
                     {"a.input", "sample 7", "input 3", std::isnan(value) ? "nan" : "-inf"});
    }
  }
}

TEST_F(Refusals, TooFewSamples) {
  for (const std::string method : {"adaprune", "sparsegpt"}) {
    expect_refused({input(draw_values(24, 1))}, {"a.input", "3 samples", "4 are needed"}, method);
    expect_refused({gram_tensor(gram()), raw_integer("a.samples", Dtype::kI64, int64_t{3})},
                   {"a.gram", "3 samples", "4 are needed"}, method);
  }
  expect_refused({raw("a.input", Dtype::kF32, {0, kIns}, {})}, {"a.input", "0 samples"}, "wanda");
  expect_refused({gram_tensor(gram()), raw_integer("a.samples", Dtype::kI64, int64_t{0})},
                 {"a.samples", "0 samples"});
  expect_refused({gram_tensor(gram()), raw("a.samples", Dtype::kF32, {}, {40})},
                 {"a.samples", "integer"});
}

TEST_F(Refusals, GramsThatAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused({raw("a.gram", Dtype::kF64, {4, kIns}, draw_values(32, 1))}, {"a.gram", "square"});
  Values g = gram();
  g[2 * kIns + 5] += 1.0;
  expect_refused({gram_tensor(g)}, {"a.gram", "(5, 2)"});
  g = gram();
  g[3 * kIns + 3] = -1.0;
  expect_refused({gram_tensor(g)}, {"a.gram", "-1"});
  g = Values(64, 0.0);
  g[3 * kIns + 3] = -1.0;
  expect_refused({gram_tensor(g)}, {"a.gram", "(3, 3)", "negative"});
  for (const size_t at : {2 * kIns + 5, 5 * kIns + 2, 4 * kIns + 4}) {
    for (const double value : {nan, std::numeric_limits<double>::infinity()}) {
      g = gram();
      g[at] = value;
      expect_refused({gram_tensor(g)}, {"a.gram", std::isnan(value) ? "nan" : "inf"});
    }
  }
  g = gram();
  g[2 * kIns + 5] = g[5 * kIns + 2] = 1.1 * std::sqrt(g[2 * kIns + 2] * g[5 * kIns + 5]);
  expect_refused({gram_tensor(g)}, {"a.gram", "(5, 2)"});
}

// No two entries contradict each other, but all of them together do.
TEST_F(Refusals, GramsThatNoSamplesHave) {
  Values g(64, -0.5);
  for (size_t i = 0; i < 8; ++i) g[9 * i] = 1.0;
  for (const std::string method : {"magnitude", "wanda", "absorption", "sparsegpt", "adaprune"}) {
    SCOPED_TRACE(method);
    expect_refused({gram_tensor(g)}, {"a.gram"}, method);
  }
  Values unit(64, 0.0);
  for (size_t i = 0; i < 8; ++i) unit[9 * i] = 1.0;
  expect_refused({gram_tensor(unit), raw("a.mean", Dtype::kF32, {kIns}, Values(8, 0.9))},
                 {"a.mean"});
}

// A solution of a form that rounding has made indefinite has no bound, and an error below zero.
TEST_F(Refusals, GramsWithTooFewDigits) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    expect_refused({raw("a.gram", dtype, {kIns, kIns}, gram())}, {"a.gram", "too few digits"});
  }
  // Inputs of 1000 ± 1: float has seven digits, and their squares differ in the sixth.
  Values far(64, 1e6);
  for (size_t i = 0; i < 8; ++i) far[9 * i] += 1.0;
  expect_refused({raw("a.gram", Dtype::kF32, {kIns, kIns}, far),
                  raw("a.mean", Dtype::kF32, {kIns}, Values(8, 1e3))},
                 {"a.mean", "F64"});
}

TEST_F(Refusals, AnOutputThatIsTheCalibration) {
  const std::string inputs = folder_ / "cal.safetensors";
  write_raw(inputs, {gram_tensor(gram())});
  const std::string before = contents(inputs);
  expect_one_line(run({"convert", in_, inputs, "--pattern", "2:4", "--method", "wanda", "--include",
                       "a.weight", "--calibration", inputs}),
                  2, {"OUT", "--calibration"});
  EXPECT_EQ(contents(inputs), before);
}

TEST_F(Refusals, MeansThatContradictTheGram) {
  Values mean(kIns, 0.0);
  mean[6] = 1e3;
  const auto of = [](const Values& values) {
    return raw("a.mean", Dtype::kF32, {static_cast<int64_t>(values.size())}, values);
  };
  expect_refused({gram_tensor(gram()), of(mean)}, {"a.mean", "entry 6", "1000", "not their sum"});
  mean[6] = std::numeric_limits<double>::quiet_NaN();
  expect_refused({gram_tensor(gram()), of(mean)}, {"a.mean", "[6]", "nan"});
  expect_refused({gram_tensor(gram()), of(Values(5, 0.0))}, {"a.mean", "8 inputs"});
}

TEST_F(Refusals, WeightsThatAreNotNumbersOrNotPositiveDefinite) {
  Values w = draw_values(128, 3);
  w[2 * 32 + 5 * 4 + 3] = std::numeric_limits<double>::infinity();
  write_raw(in_, {raw("c.weight", Dtype::kF32, {kOuts, 8, 2, 2}, w)});
  write_raw(calibration_, {raw("c.input", Dtype::kF32, {40, 32}, draw_values(1280, 1))});
  const std::set<std::string> before = names_in(folder_.path());
  for (const std::string& method : method_names()) {
    for (const std::string pattern : {"2:4", "auto"}) {
      std::vector<std::string> args = {"convert",  in_,    folder_ / "out", "--pattern", pattern,
                                       "--method", method, "--calibration", calibration_};
      if (pattern == "auto") args.insert(args.end(), {"--density", "0.5"});
      expect_one_line(run(args), 1, {in_, "c.weight", "[2, 5, 1, 1]", "inf"});
    }
  }
  expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4"}), 1,
                  {in_, "c.weight", "[2, 5, 1, 1]", "inf"});
  // Fewer samples than columns, and no damping.
  write_raw(in_, {raw("c.weight", Dtype::kF32, {kOuts, 8, 2, 2}, draw_values(128, 3))});
  write_raw(calibration_, {raw("c.input", Dtype::kF32, {20, 32}, Values(640, 1.0))});
  expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4", "--method", "sparsegpt",
                       "--damping", "0", "--calibration", calibration_}),
                  1, {in_, "c.weight", "positive definite", "damping"});
  EXPECT_EQ(names_in(folder_.path()), before);
}

TEST_F(Refusals, WhatIsNotACheckpointToConvert) {
  ASSERT_EQ(run({"pack", in_, folder_ / "packed", "--pattern", "2:4", "--by-magnitude"}).code, 0);
  expect_one_line(run({"convert", folder_ / "packed", folder_ / "out", "--pattern", "2:4"}), 1,
                  {folder_ / "packed", "packed", "weft unpack"});
  write_raw(folder_ / "ints", {RawTensor{"a.weight", Dtype::kI32, {2, 4}, std::string(32, 1)}});
  expect_one_line(run({"convert", folder_ / "ints", folder_ / "out", "--pattern", "2:4"}), 1,
                  {folder_ / "ints", "no layer", "a.weight", "I32"});
  expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4", "--method", "wanda",
                       "--calibration", folder_ / "none"}),
                  1, {folder_ / "none"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(Refusals, WrongUsage) {
  const auto refused = [&](std::vector<std::string> flags, const std::vector<std::string>& parts) {
    std::vector<std::string> args = {"convert", in_, folder_ / "out"};
    args.insert(args.end(), flags.begin(), flags.end());
    expect_one_line(run(args), 2, parts);
  };
  for (const std::string method : {"wanda", "sparsegpt", "adaprune"}) {
    refused({"--pattern", "2:4", "--method", method}, {method, "--calibration"});
  }
  refused({"--pattern", "2:4", "--method", "absorption", "--support", "wanda"}, {"--calibration"});
  refused({}, {"--pattern"});
  refused({"--pattern", "5:4"}, {"--pattern"});
  refused({"--pattern", "2:4", "--density", "0.5"}, {"--density", "auto"});
  refused({"--pattern", "2:4", "--group", "16"}, {"--group", "auto"});
  refused({"--pattern", "auto", "--density", "0.5", "--confidence", "0.9"}, {"--confidence"});
  refused({"--pattern", "2:4", "--samples", "100"}, {"--samples", "--model-dir"});
  refused({"--pattern", "2:4", "--tolerance", "0.1"}, {"--tolerance", "adaprune"});
  refused({"--pattern", "2:4", "--damping", "0.1"}, {"--damping", "sparsegpt"});
  refused({"--pattern", "2:4", "--method", "obd"}, {"--method", "obd", "adaprune"});
  refused({"--pattern", "2:4", "--support", "wanda"}, {"--support", "magnitude"});
  refused({"--pattern", "2:4", "--method", "sparsegpt", "--support", "magnitude"},
          {"--support", "sparsegpt"});
  refused({"--pattern", "2:4", "--method", "absorption", "--support", "sparsegpt"},
          {"--support", "magnitude and wanda"});
  refused({"--pattern", "2:4", "--method", "adaprune", "--support", "random"},
          {"--support", "random"});
  refused({"--pattern", "2:4", "--sparse-ends"}, {"--model-dir"});
  if (has_torch()) {
    refused({"--pattern", "2:4", "--calibration", "x", "--model-dir", "y"}, {"--model-dir"});
  }
  refused({"--pattern", "auto", "--group", "1"}, {"--group"});
  refused({"--pattern", "auto", "--density", "1.5"}, {"--density"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

// ─── the report ───

std::set<std::string> keys_of(const Json& object) {
  std::set<std::string> keys;
  for (const Json::Member& member : object.members()) keys.insert(member.name);
  return keys;
}

TEST(ConvertReport, HasTheKeysThatWerePromised) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  for (const std::string& method : method_names()) {
    const Json report =
        convert(in, folder / "o", "2:4", {"--method", method, "--calibration", inputs}).json();
    EXPECT_EQ(keys_of(report),
              (std::set<std::string>{"method", "support", "pattern", "transposable", "dry_run",
                                     "layers", "norms_estimated", "skipped"}));
    EXPECT_EQ(report["method"], method);
    EXPECT_EQ(report["pattern"], "2:4");
    ASSERT_EQ(report["layers"].size(), 3u);
    for (const Json& row : report["layers"]) {
      EXPECT_EQ(keys_of(row),
                (std::set<std::string>{"name", "shape", "transposed", "pattern", "why",
                                       "error_before", "error_after", "retained_l1", "zeros",
                                       "violations", "expected_violations", "steps",
                                       "unfinished_rows", "notes", "seconds"}));
      EXPECT_EQ(row["steps"] == nullptr, method != "adaprune");
      const auto retained = row["retained_l1"].get<double>();
      EXPECT_TRUE(retained > 0.5 && retained < 1.0) << retained;
    }
    EXPECT_EQ(layer_row(report, "conv1.weight")["shape"], Json({kConvOuts, 8, 3, 3}));
    for (const Json& row : report["skipped"]) {
      EXPECT_EQ(keys_of(row), (std::set<std::string>{"name", "reason"}));
    }
    // What may take the mean is told with its layer: a bias, two running means.
    EXPECT_EQ(report["skipped"].size(), model.tensors.size() - (method == "adaprune" ? 6 : 3));
    EXPECT_EQ(reason_skipped(report, "embed.weight"), "embedding");
  }
  EXPECT_TRUE(contains(run({"convert", in, folder / "o", "--pattern", "2:4"}).out,
                       "3 layers converted to 2:4 by magnitude"));
}

TEST(ConvertReport, RowsThatWereNotDoneAreToldWithTheirSteps) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  const Json report = convert(in, folder / "o", "2:4",
                              {"--method", "adaprune", "--calibration", inputs, "--tolerance",
                               "1e-9", "--iterations", "2"})
                          .json();
  const Json& row = layer_row(report, "fc.weight");
  EXPECT_EQ(row["steps"], 2);
  EXPECT_EQ(row["unfinished_rows"], kFcOuts);
  EXPECT_TRUE(contains(row["notes"][1].get<std::string>(), "12 of 12 rows"));
}

TEST(ConvertReport, ADryRunWritesNothingAndReportsTheSame) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  for (const std::string& method : method_names()) {
    std::vector<std::string> flags = {"--method", method, "--calibration", inputs};
    Json wet = convert(in, folder / "o", "2:4", flags).json();
    fs::remove(folder / "o");
    const std::set<std::string> before = names_in(folder.path());
    flags.push_back("--dry-run");
    const Outcome outcome = convert(in, folder / "o", "2:4", flags);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(names_in(folder.path()), before);
    const Json dry = outcome.json();
    EXPECT_EQ(dry["dry_run"], true);
    EXPECT_EQ(wet["dry_run"], false);
    ASSERT_EQ(dry["layers"].size(), wet["layers"].size());
    for (size_t i = 0; i < dry["layers"].size(); ++i) {
      for (const std::string& key : keys_of(dry["layers"][i])) {
        if (key == "seconds") continue;
        EXPECT_EQ(dry["layers"][i][key.c_str()], wet["layers"][i][key.c_str()]) << key;
      }
    }
    EXPECT_EQ(dry["skipped"], wet["skipped"]);
  }
}

TEST(Convert, TwoThreadsWriteTheSameBytes) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  for (const std::string& method : method_names()) {
    std::string bytes;
    for (const std::string threads : {"1", "2"}) {
      const Outcome outcome =
          convert(in, folder / "o", "2:4",
                  {"--method", method, "--calibration", inputs, "--threads", threads});
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      if (threads == "1") bytes = contents(folder / "o");
      EXPECT_TRUE(bytes == contents(folder / "o")) << method;
    }
  }
}

TEST(Convert, AModelMayTakeItsOwnPlace) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  const std::vector<std::string> flags = {"--method", "adaprune", "--calibration", inputs};
  ASSERT_EQ(convert(in, folder / "o", "2:4", flags).code, 0);
  std::vector<std::string> in_place = flags;
  in_place.push_back("--in-place");
  ASSERT_EQ(convert(in, in, "2:4", in_place).code, 0);
  EXPECT_TRUE(contents(in) == contents(folder / "o"));
  // What is sparse already stays, bit for bit.
  ASSERT_EQ(convert(in, folder / "again", "2:4", flags).code, 0);
  EXPECT_TRUE(contents(in) == contents(folder / "again"));
}

// ─── patterns by themselves ───

// Zeros at random.
Values draw_sparse(int64_t count, double zeros, uint64_t stream) {
  Values values = draw_values(count, stream);
  const Rng rng(test_seed(), stream + 1000);
  for (size_t i = 0; i < values.size(); ++i) {
    if (rng.uniform(i) < zeros) values[i] = 0.0;
  }
  return values;
}

std::string write_sparse_layers(const ScratchFolder& folder) {
  return write_raw(folder / "model.safetensors",
                   {raw("a.weight", Dtype::kF32, {128, 256}, draw_sparse(128 * 256, 0.65, 50)),
                    raw("b.weight", Dtype::kBf16, {64, 64, 3, 3}, draw_sparse(36864, 0.9, 51)),
                    raw("dense.weight", Dtype::kF32, {64, 64}, draw_values(4096, 52))});
}

// Groups of 8 with more than `keep` non-zeros, counted here.
double share_too_full(const Values& w, int64_t taps, int64_t ins, int keep) {
  const int64_t cols = ins * taps, outs = static_cast<int64_t>(w.size()) / cols;
  int64_t groups = 0, full = 0;
  for (int64_t r = 0; r < outs; ++r) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t first = 0; first < ins; first += 8, ++groups) {
        int nonzeros = 0;
        for (int64_t i = first; i < first + 8; ++i) {
          nonzeros += w[static_cast<size_t>(r * cols + i * taps + tap)] != 0.0;
        }
        full += nonzeros > keep;
      }
    }
  }
  return static_cast<double>(full) / static_cast<double>(groups);
}

TEST(ConvertAuto, KeepFollowsTheZerosAndFewGroupsAreTooFull) {
  const ScratchFolder folder;
  const std::string in = write_sparse_layers(folder), out = folder / "o";
  const Outcome outcome = convert(in, out, "auto", {"--group", "8"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json report = outcome.json();
  EXPECT_EQ(report["pattern"], "auto");
  ASSERT_EQ(report["layers"].size(), 2u);
  EXPECT_TRUE(contains(reason_skipped(report, "dense.weight"), "stays dense: 0.0% zeros"));
  EXPECT_EQ(tensor_bytes_of(out, "dense.weight"), tensor_bytes_of(in, "dense.weight"));
  EXPECT_EQ(run({"check", out}).code, 0);
  for (const Json& row : report["layers"]) {
    const auto name = row["name"].get<std::string>();
    SCOPED_TRACE(name);
    const Values before = values_of(in, name), after = values_of(out, name);
    const double zeros =
        static_cast<double>(std::ranges::count(before, 0.0)) / static_cast<double>(before.size());
    EXPECT_NEAR(row["zeros"].get<double>(), zeros, 1e-12);
    const int keep = keep_for_zeros(8, zeros, 0.95);
    EXPECT_EQ(keep, name == "a.weight" ? 5 : 2);
    EXPECT_EQ(row["pattern"], fmt::format("{}:8", keep));
    const double expected = 1 - chance_to_fit(8, keep, zeros);
    EXPECT_NEAR(row["expected_violations"].get<double>(), expected, 1e-12);
    const int64_t taps = name == "a.weight" ? 1 : 9, ins = name == "a.weight" ? 256 : 64;
    const double counted = share_too_full(before, taps, ins, keep);
    EXPECT_NEAR(row["violations"].get<double>(), counted, 1e-12);
    const double groups = static_cast<double>(before.size()) / 8;
    EXPECT_NEAR(counted, expected, 4 * std::sqrt(expected * (1 - expected) / groups));
    EXPECT_GT(counted, 0.0);
    EXPECT_TRUE(contains(row["why"].get<std::string>(), "zeros"));
    EXPECT_EQ(share_too_full(after, taps, ins, keep), 0.0);
  }
  // A user who wants more certainty gets more weights.
  const Json sure = convert(in, out, "auto", {"--group", "8", "--confidence", "0.999"}).json();
  EXPECT_EQ(layer_row(sure, "a.weight")["pattern"], "7:8");
  write_raw(folder / "d", {raw("dense.weight", Dtype::kF32, {8, 8}, draw_values(64, 52))});
  expect_one_line(run({"convert", folder / "d", folder / "x", "--pattern", "auto"}), 1,
                  {folder / "d", "no layer", "stays dense"});
}

TEST(ConvertAuto, AFixedPatternReportsWhatItBreaksAndWhatWasToBeExpected) {
  const ScratchFolder folder;
  const std::string in = write_sparse_layers(folder);
  const Json report = convert(in, folder / "o", "4:8", {"--include", "^a"}).json();
  const Json& row = layer_row(report, "a.weight");
  const auto found = row["violations"].get<double>();
  const auto expected = row["expected_violations"].get<double>();
  EXPECT_NEAR(expected, 0.106, 0.01);
  EXPECT_NEAR(found, expected, 4 * std::sqrt(expected * (1 - expected) / 4096));
  EXPECT_GT(row["retained_l1"].get<double>(), 0.98);
  EXPECT_EQ(row["why"], nullptr);
}

TEST(ConvertAuto, ADensityIsABudgetForAllLayers) {
  const ScratchFolder folder;
  std::vector<RawTensor> tensors = {
      raw("even.weight", Dtype::kF32, {32, 64}, draw_values(2048, 60)),
      raw("conv.weight", Dtype::kF32, {16, 16, 3, 3}, draw_sparse(2304, 0.8, 61)),
      raw("ragged.weight", Dtype::kF32, {64, 12}, draw_values(768, 62)),
      raw("stem.weight", Dtype::kF32, {16, 3, 3, 3}, draw_values(432, 63))};
  for (const bool ragged : {false, true}) {  // groups that the edge cuts
    if (!ragged) {
      write_raw(folder / "m", {tensors[0], tensors[1]});
    } else {
      write_raw(folder / "m", tensors);
    }
    for (const std::string density : {"0.2", "0.4", "0.5", "0.75"}) {
      SCOPED_TRACE(fmt::format("density {} {}", density, ragged ? "ragged" : ""));
      const Outcome outcome = convert(folder / "m", folder / "o", "auto", {"--density", density});
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_EQ(run({"check", folder / "o"}).code, 0);
      const Json report = outcome.json();
      int64_t kept = 0, all = 0;
      for (const RawTensor& one : tensors) {
        if (!fs::exists(folder / "o") || (!ragged && one.shape[1] % 8 != 0)) continue;
        const int64_t ins = one.shape[1], count = static_cast<int64_t>(one.bytes.size()) / 4;
        all += count;
        if (!reason_skipped(report, one.name).empty()) {
          EXPECT_TRUE(contains(reason_skipped(report, one.name), "stays dense"));
          kept += count;
          continue;
        }
        // What the pattern lets stay, whatever is zero already.
        const Pattern pattern =
            Pattern::parse(layer_row(report, one.name)["pattern"].get<std::string>());
        kept +=
            count / ins * (ins / 8 * pattern.keep() + std::min<int64_t>(ins % 8, pattern.keep()));
      }
      EXPECT_LE(static_cast<double>(kept), std::stod(density) * static_cast<double>(all));
      // Not stingy either: one step of the largest layer at most is left over.
      EXPECT_GE(static_cast<double>(kept), (std::stod(density) - 0.2) * static_cast<double>(all));
    }
  }
  // Zeros cost nothing to lose: the sparse layer gives more.
  write_raw(folder / "m", {tensors[0], tensors[1]});
  const Json report = convert(folder / "m", folder / "o", "auto", {"--density", "0.5"}).json();
  const auto keep = [&](const std::string& name) {
    return Pattern::parse(layer_row(report, name)["pattern"].get<std::string>()).keep();
  };
  EXPECT_LT(keep("conv.weight"), keep("even.weight"));
  expect_one_line(
      run({"convert", folder / "m", folder / "x", "--pattern", "auto", "--density", "1"}), 1,
      {"no layer", "stays dense"});
}

TEST(ConvertAuto, ADensityWithInputsWeighsOutputs) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  for (const std::string& method : method_names()) {
    SCOPED_TRACE(method);
    const Outcome outcome =
        convert(in, folder / "o", "auto",
                {"--density", "0.5", "--group", "4", "--method", method, "--calibration", inputs});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(run({"check", folder / "o"}).code, 0);
    const Json report = outcome.json();
    for (const Json& row : report["layers"]) {
      EXPECT_TRUE(contains(row["why"].get<std::string>(), "before recovery"));
    }
  }
}

}  // namespace
}  // namespace weft::test
