// weft synth: a checkpoint of random weights, to try the other commands on.
#include <limits>

#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"
#include "weft/core/text.h"

namespace weft::cli {
namespace {

constexpr double kWeightDeviation = 0.02;
constexpr int64_t kMaxLayers = 100'000;
constexpr int64_t kPieceElements = int64_t{1} << 20;

// A small language model with a convolutional stem: every kind of tensor that `mask` tells apart.
std::vector<TensorInfo> model_tensors(int64_t layers, int64_t width) {
  std::vector<TensorInfo> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    tensors.push_back({name, Dtype::kF32, std::move(shape), 0, 0});
  };
  add("stem.conv.weight", {width, 32, 3, 3});
  add("stem.conv.bias", {width});
  add("embed_tokens.weight", {512, width});
  for (int64_t l = 0; l < layers; ++l) {
    const std::string block = fmt::format("layers.{}.", l);
    add(block + "norm1.weight", {width});
    add(block + "attention.qkv.weight", {3 * width, width});
    add(block + "attention.proj.weight", {width, width});
    add(block + "norm2.weight", {width});
    add(block + "mlp.fc1.weight", {4 * width, width});
    add(block + "mlp.fc1.bias", {4 * width});
    add(block + "mlp.fc2.weight", {width, 4 * width});
    add(block + "mlp.fc2.bias", {width});
  }
  return tensors;
}

float value_of(const TensorInfo& tensor, const Rng& rng, int64_t index) {
  if (tensor.name.find("norm") != std::string::npos) return 1.0F;
  if (tensor.name.ends_with("bias")) return 0.0F;
  return static_cast<float>(kWeightDeviation * rng.normal(static_cast<uint64_t>(index)));
}

class SynthCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("out", out_, "The .safetensors file to write");
    flags.integer("--width", width_, 16, 16384, "Width of the model");
    flags.integer("--layers", layers_, 1, kMaxLayers, "Number of blocks");
    flags.size("--size", size_, "As many blocks as make this size, as in 4GB");
    flags.exclude("--size", "--layers");
    flags.integer("--seed", seed_, 0, std::numeric_limits<int64_t>::max(), "Of the weights");
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    if (size_ > 0) {
      const uint64_t block_bytes = 4 * 12 * static_cast<uint64_t>(width_ * width_);
      layers_ = static_cast<int64_t>((size_ + block_bytes - 1) / block_bytes);
      if (layers_ > kMaxLayers) {
        throw UsageError(
            fmt::format("--size takes {} blocks of width {}, more than {}: take a larger --width",
                        layers_, width_, kMaxLayers));
      }
    }
    std::vector<TensorInfo> tensors = model_tensors(layers_, width_);
    SafetensorsWriter writer(out_, tensors, {{"weft.synth.seed", std::to_string(seed_)}});
    uint64_t bytes = 0;
    for (const TensorInfo& tensor : tensors) bytes += tensor_bytes(tensor.dtype, tensor.shape);
    Progress progress("writing", bytes);
    for (size_t i = 0; i < tensors.size(); ++i) {
      write_tensor(tensors[i], Rng(static_cast<uint64_t>(seed_), i), writer, progress);
    }
    writer.commit();
    progress.finish();
    if (common_.json) {
      print_json({{"file", out_}, {"tensors", tensors.size()}, {"bytes", bytes}});
    } else {
      print(fmt::format("{}: {} tensors, {}\n", out_, tensors.size(), bytes_text(bytes)));
    }
    return 0;
  }

 private:
  static void write_tensor(const TensorInfo& tensor, const Rng& rng, SafetensorsWriter& writer,
                           Progress& progress) {
    const int64_t elements = tensor.elements();
    std::vector<float> piece;
    for (int64_t first = 0; first < elements; first += kPieceElements) {
      piece.resize(static_cast<size_t>(std::min(kPieceElements, elements - first)));
      constexpr int64_t kChunk = 4096;
      const auto size = static_cast<int64_t>(piece.size());
      parallel_for((size + kChunk - 1) / kChunk, [&](int64_t chunk) {
        for (int64_t i = chunk * kChunk; i < std::min(size, (chunk + 1) * kChunk); ++i) {
          piece[static_cast<size_t>(i)] = value_of(tensor, rng, first + i);
        }
      });
      writer.write(tensor.name, static_cast<uint64_t>(first) * sizeof(float),
                   std::as_bytes(std::span(piece)));
      progress.add(piece.size() * sizeof(float));
    }
  }

  std::string out_;
  int64_t width_ = 256, layers_ = 2, seed_ = 1;
  uint64_t size_ = 0;
  CommonFlags common_;
};

}  // namespace

CommandEntry synth_command() {
  return {"synth", "Write a checkpoint of random weights, to try things on",
          "  weft synth model.safetensors\n"
          "  weft synth big.safetensors --width 1024 --size 4GB",
          std::make_unique<SynthCommand>()};
}

}  // namespace weft::cli
