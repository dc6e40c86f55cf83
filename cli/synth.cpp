// weft synth: a checkpoint of random weights, to try the other commands on.
#include <cstring>

#include "cli/command.h"
#include "cli/progress.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"
#include "weft/core/text.h"

namespace weft::cli {
namespace {

constexpr double kWeightDeviation = 0.02;
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
  void declare(CLI::App& app) {
    app.add_option("out", out_, "The .safetensors file to write")->required();
    app.add_option("--width", width_, "Width of the model")
        ->check(CLI::Range(16, 16384))
        ->capture_default_str();
    CLI::Option* layers = app.add_option("--layers", layers_, "Number of blocks")
                              ->check(CLI::Range(1, 100000))
                              ->capture_default_str();
    app.add_option("--size", size_, "As many blocks as make this size, as in 4GB")
        ->transform(CLI::AsSizeValue(true))
        ->excludes(layers);
    app.add_option("--seed", seed_, "Of the Gaussian weights")->capture_default_str();
    declare_threads(app);
  }

  int run() override {
    if (size_ > 0) {
      const uint64_t block_bytes = 4 * 12 * static_cast<uint64_t>(width_ * width_);
      layers_ = static_cast<int64_t>((size_ + block_bytes - 1) / block_bytes);
    }
    std::vector<TensorInfo> tensors = model_tensors(layers_, width_);
    SafetensorsWriter writer(out_, tensors, {{"weft.synth.seed", std::to_string(seed_)}});
    uint64_t bytes = 0;
    for (const TensorInfo& tensor : tensors) bytes += tensor_bytes(tensor.dtype, tensor.shape);
    Progress progress("writing", bytes);
    for (size_t i = 0; i < tensors.size(); ++i) {
      write_tensor(tensors[i], Rng(seed_, i), writer, progress);
    }
    writer.commit();
    progress.finish();
    print(fmt::format("{}: {} tensors, {}\n", out_, tensors.size(), bytes_text(bytes)));
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
  int64_t width_ = 256, layers_ = 2;
  uint64_t size_ = 0, seed_ = 1;
};

}  // namespace

void add_synth(CLI::App& app, std::unique_ptr<Command>& chosen) {
  add_command<SynthCommand>(app, chosen, "synth",
                            "Write a checkpoint of random weights, to try things on",
                            "  weft synth model.safetensors\n"
                            "  weft synth big.safetensors --width 1024 --size 4GB");
}

}  // namespace weft::cli
