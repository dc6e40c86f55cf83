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

float value_of(const TensorInfo& tensor, const Rng& rng, double zeros, int64_t index) {
  if (tensor.name.find("norm") != std::string::npos) return 1.0F;
  if (tensor.name.ends_with("bias")) return 0.0F;
  // Counters of their own for what is zero: the other weights are the same for any share of zeros.
  constexpr uint64_t kPruning = uint64_t{1} << 62;
  const auto i = static_cast<uint64_t>(index);
  if (zeros > 0 && rng.uniform(kPruning + i) < zeros) return 0.0F;
  return static_cast<float>(kWeightDeviation * rng.normal(i));
}

// As one file, or in shards of about the same size, under an index.
CheckpointLayout model_layout(const std::vector<TensorInfo>& tensors, const std::string& out,
                              int64_t shards, const Metadata& metadata) {
  CheckpointLayout layout;
  if (shards == 1) {
    layout.shards.push_back({std::filesystem::path(out).filename(), tensors, metadata});
    return layout;
  }
  uint64_t all = 0, placed = 0;
  for (const TensorInfo& tensor : tensors) all += tensor_bytes(tensor.dtype, tensor.shape);
  for (int64_t i = 0; i < shards; ++i) {
    layout.shards.push_back(
        {fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards), {}, metadata});
  }
  for (const TensorInfo& tensor : tensors) {
    const auto shard =
        static_cast<double>(placed) / static_cast<double>(all + 1) * static_cast<double>(shards);
    layout.shards[static_cast<size_t>(shard)].tensors.push_back(tensor);
    placed += tensor_bytes(tensor.dtype, tensor.shape);
  }
  std::erase_if(layout.shards, [](const ShardLayout& shard) { return shard.tensors.empty(); });
  layout.index = "model.safetensors.index.json";
  layout.index_metadata = fmt::format(R"({{"total_size": {}}})", all);
  layout.bytes_before = all;
  return layout;
}

class SynthCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("out", out_, "The .safetensors file to write, or a folder with --shards");
    flags.integer("--width", width_, 16, 16384, "Width of the model");
    flags.integer("--layers", layers_, 1, kMaxLayers, "Number of blocks");
    flags.size("--size", size_, "Size of the checkpoint, instead of --layers, as in 4GB");
    flags.exclude("--size", "--layers");
    flags.number("--zeros", zeros_, 0, 1, "Share of zero weights, at random places");
    flags.integer("--shards", shards_, 1, 10'000, "Number of files");
    flags.integer("--seed", seed_, 0, std::numeric_limits<int64_t>::max(), "Seed of the weights");
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    if (size_ > 0) {
      const uint64_t block_bytes = 4 * 12 * static_cast<uint64_t>(width_ * width_);
      layers_ = static_cast<int64_t>((size_ + block_bytes - 1) / block_bytes);
      if (layers_ > kMaxLayers) {
        throw UsageError(
            fmt::format("--size needs {} blocks of width {}, more than {}: choose a larger --width",
                        layers_, width_, kMaxLayers));
      }
    }
    std::vector<TensorInfo> tensors = model_tensors(layers_, width_);
    const CheckpointLayout layout =
        model_layout(tensors, out_, shards_, {{"weft.synth.seed", std::to_string(seed_)}});
    CheckpointWriter writer(out_, layout);
    uint64_t bytes = 0;
    for (const TensorInfo& tensor : tensors) bytes += tensor_bytes(tensor.dtype, tensor.shape);
    Progress progress("writing", bytes);
    uint64_t number = 0;
    for (size_t shard = 0; shard < layout.shards.size(); ++shard) {
      for (const TensorInfo& tensor : layout.shards[shard].tensors) {
        write_tensor({tensor, shard}, Rng(static_cast<uint64_t>(seed_), number++), writer,
                     progress);
      }
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
  void write_tensor(const ShardedTensor& tensor, const Rng& rng, CheckpointWriter& writer,
                    Progress& progress) const {
    const int64_t elements = tensor.info.elements();
    std::vector<float> piece;
    for (int64_t first = 0; first < elements; first += kPieceElements) {
      piece.resize(static_cast<size_t>(std::min(kPieceElements, elements - first)));
      constexpr int64_t kChunk = 4096;
      const auto size = static_cast<int64_t>(piece.size());
      parallel_for((size + kChunk - 1) / kChunk, [&](int64_t chunk) {
        for (int64_t i = chunk * kChunk; i < std::min(size, (chunk + 1) * kChunk); ++i) {
          piece[static_cast<size_t>(i)] = value_of(tensor.info, rng, zeros_, first + i);
        }
      });
      writer.write(tensor, static_cast<uint64_t>(first) * sizeof(float),
                   std::as_bytes(std::span(piece)));
      progress.add(piece.size() * sizeof(float));
    }
  }

  std::string out_;
  int64_t width_ = 256, layers_ = 2, seed_ = 1, shards_ = 1;
  double zeros_ = 0.0;
  uint64_t size_ = 0;
  CommonFlags common_;
};

}  // namespace

CommandEntry synth_command() {
  return {"synth", "Write a checkpoint of random weights, to try things on",
          "  weft synth model.safetensors\n"
          "  weft synth big.safetensors --width 1024 --size 4GB\n"
          "  weft synth big/ --width 2048 --size 4GB --shards 4\n"
          "  weft synth unstructured.safetensors --zeros 0.65",
          std::make_unique<SynthCommand>()};
}

}  // namespace weft::cli
