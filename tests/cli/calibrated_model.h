// A model with calibration data, for tests of weft convert, and its reports.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"
#include "weft/prune/convert_layer.h"
#include "weft/prune/tensor_values.h"

namespace weft::test {

using Values = std::vector<double>;

struct RawTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline RawTensor raw(const std::string& name, Dtype dtype, std::vector<int64_t> shape,
                     const Values& values) {
  std::string bytes(values.size() * static_cast<size_t>(dtype_bits(dtype)) / 8, '\0');
  round_weights(values, dtype, std::as_writable_bytes(std::span(bytes)));
  return {name, dtype, std::move(shape), bytes};
}

template <typename Integer>
RawTensor raw_integer(const std::string& name, Dtype dtype, Integer value) {
  return {name, dtype, {}, std::string(reinterpret_cast<const char*>(&value), sizeof value)};
}

inline std::string write_raw(const std::string& path, const std::vector<RawTensor>& tensors) {
  std::vector<TensorInfo> infos;
  for (const RawTensor& one : tensors) infos.push_back({one.name, one.dtype, one.shape, 0, 0});
  SafetensorsWriter writer(path, infos, {});
  for (const RawTensor& one : tensors) {
    writer.write(one.name, 0, std::as_bytes(std::span(one.bytes)));
  }
  writer.commit();
  return path;
}

inline Values values_of(const std::string& path, const std::string& name) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  const ShardedTensor* tensor = find_tensor(checkpoint, name);
  if (tensor == nullptr) ADD_FAILURE() << path << " has no tensor " << name;
  return tensor == nullptr ? Values() : read_values(checkpoint, *tensor);
}

inline Values draw_values(int64_t count, uint64_t stream, double mean = 0.0) {
  Values values;
  const Rng rng(test_seed(), stream);
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(mean + rng.normal(static_cast<uint64_t>(i)));
  }
  return values;
}

// [samples, cols], correlated, with a mean.
inline Values draw_samples(int64_t samples, int64_t cols, uint64_t stream) {
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
inline Values outputs_of(const Values& w, const Values& x, int64_t cols) {
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

inline Values column_means(const Values& y, int64_t cols) {
  Values means(static_cast<size_t>(cols));
  const auto rows = static_cast<double>(y.size()) / static_cast<double>(cols);
  for (size_t i = 0; i < y.size(); ++i) means[i % static_cast<size_t>(cols)] += y[i] / rows;
  return means;
}

inline Values column_variances(const Values& y, int64_t cols) {
  Values squares = y;
  for (double& value : squares) value *= value;
  Values variances = column_means(squares, cols);
  const Values means = column_means(y, cols);
  for (size_t i = 0; i < variances.size(); ++i) variances[i] -= means[i] * means[i];
  return variances;
}

inline constexpr int64_t kFcOuts = 12, kFcIns = 22;      // not a multiple of a group
inline constexpr int64_t kConvOuts = 8, kConvCols = 72;  // 8 channels, 3 x 3
inline constexpr int64_t kSamples = 160;

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
    std::filesystem::create_directory(folder / "in");
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

inline const Json& layer_row(const Json& report, std::string_view name) {
  for (const Json& row : report["layers"]) {
    if (row["name"] == name) return row;
  }
  ADD_FAILURE() << "no layer " << name;
  return report;
}

inline std::string reason_skipped(const Json& report, const std::string& name) {
  for (const Json& row : report["skipped"]) {
    if (row["name"] == name) return row["reason"].get<std::string>();
  }
  return "";
}

inline std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Method& method : methods()) names.emplace_back(method.name);
  return names;
}

inline Outcome convert(const std::string& in, const std::string& out, const std::string& pattern,
                       std::vector<std::string> flags) {
  std::vector<std::string> args = {"convert", in, out, "--pattern", pattern, "--json"};
  args.insert(args.end(), flags.begin(), flags.end());
  return run(args);
}

}  // namespace weft::test
