// weft convert as its users meet it: on files alone, without a model of weft's own.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/cli/calibrated_model.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// Threads of small work on a busy machine mostly wait for each other; --threads still counts.
[[maybe_unused]] const int kOneThread = ::setenv("OMP_NUM_THREADS", "1", 1);

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
  EXPECT_EQ(note("fc.weight"), "its bias absorbs the change of the mean");
  EXPECT_TRUE(contains(note("conv1.weight"), "bn1, after it, absorbs the change of the mean"));
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
                                     "layers", "companions", "norms_estimated", "skipped"}));
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

TEST(Convert, SaysThatAMethodDoesNotUseTheCalibration) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  for (const std::string& method : method_names()) {
    const bool uses = method != "magnitude" && method != "absorption";
    const Outcome outcome =
        convert(in, folder / "o", "2:4", {"--method", method, "--calibration", inputs});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    if (uses) {
      EXPECT_EQ(outcome.err, "") << method;
    } else {
      EXPECT_TRUE(contains(outcome.err,
                           "weft: the calibration is used for the report only: method " + method))
          << outcome.err;
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
    }
  }
  // It chooses patterns here.
  EXPECT_EQ(convert(in, folder / "o", "auto", {"--density", "0.5", "--calibration", inputs}).err,
            "");
}

TEST(Convert, SaysThatInputsAreAllZero) {
  const ScratchFolder folder;
  CalibratedModel model;
  model.fc_x.assign(model.fc_x.size(), 0.0);
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  for (const std::string& method : method_names()) {
    if (method == "magnitude" || method == "absorption") continue;
    const Outcome outcome =
        convert(in, folder / "o", "2:4", {"--method", method, "--calibration", inputs});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err,
              "weft: the calibration inputs of 1 of 3 layers are all zero, first of 'fc.weight': "
              "they say nothing about what pruning loses there\n");
    EXPECT_EQ(run({"check", folder / "o"}).code, 0);
  }
}

}  // namespace
}  // namespace weft::test
