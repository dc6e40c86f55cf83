// The weights of the decoder: packed files against dense ones, and models that are refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/decode/gpt_reference.h"
#include "tests/weights.h"
#include "weft/checkpoint/sparsity.h"
#include "weft/decode/gpt_decoder.h"
#include "weft/pack/packed_file.h"

namespace weft::test {
namespace {

// The checkpoint with all matrices packed, as `weft pack` writes it.
std::string write_packed(const ScratchFolder& folder, const Model& model, const std::string& from,
                         PackedFormat format, const PackChoice& choice) {
  const Checkpoint checkpoint = Checkpoint::open(from);
  std::map<std::string, PackChoice> chosen;
  for (const std::string& name : model.matrices()) chosen.emplace(name, choice);
  const std::string path = folder / "packed.safetensors";
  CheckpointWriter writer(path, packed_layout(checkpoint, chosen, format));
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    if (!chosen.contains(tensor.info.name)) {
      writer.copy(checkpoint, tensor);
      continue;
    }
    std::vector<std::byte> bytes(tensor.info.bytes());
    checkpoint.read(tensor, 0, bytes);
    const MaskToPack kept = mask_to_pack(tensor.info, bytes, choice.pattern);
    for (const StoredPart& part : pack_tensor(tensor.info, bytes, kept.mask, choice, format)) {
      ShardedTensor stored;
      stored.info.name = part.name;
      writer.write(stored, 0, part.bytes);
    }
  }
  writer.commit();
  return path;
}

TEST(Decode, TakesPackedFilesAsDenseOnes) {
  const ScratchFolder folder;
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(4, 8)}) {
    for (const PackedFormat format : {PackedFormat::kWeft, PackedFormat::kBitmask24}) {
      if (format == PackedFormat::kBitmask24 && pattern != Pattern(2, 4)) continue;
      const Sizes sizes{24, 16, 2, 40, 4};
      Model model(sizes);
      model.make_sparse(pattern);
      const std::string dense_path = model.write(folder, "model.safetensors");
      const std::string path = write_packed(folder, model, dense_path, format, {pattern});
      const Checkpoint dense_file = Checkpoint::open(dense_path);
      const Checkpoint packed_file = Checkpoint::open(path);
      GptDecoder packed(packed_file, 4), dense(dense_file, 4);
      GptDecoder unpacked(packed_file, 4, {.dense = true, .patterns = {}});
      GptDecoder packed_here(dense_file, 4, {false, patterns_for(model, pattern)});
      EXPECT_EQ(packed.weights().packed_matrices(), 9);
      EXPECT_EQ(packed_here.weights().packed_matrices(), 9);
      EXPECT_EQ(unpacked.weights().packed_matrices(), 0);
      EXPECT_LT(packed.weights().matrix_bytes(), dense.weights().matrix_bytes());
      const std::vector<uint8_t> tokens = draw_tokens(20);
      const std::vector<float> from_dense = take_in(dense, tokens, {3, 1});
      const std::vector<float> from_packed = take_in(packed, tokens, {3, 1});
      EXPECT_EQ(take_in(unpacked, tokens, {3, 1}), from_dense);
      EXPECT_EQ(take_in(packed_here, tokens, {3, 1}), from_packed);
      EXPECT_EQ(mismatch(from_packed, widened(from_dense)), "") << pattern.str();
    }
  }
}

TEST(Decode, PacksWhatThePlanPromises) {
  const ScratchFolder folder;
  const Sizes sizes{24, 16, 2, 40, 4};
  Model model(sizes);
  model.make_sparse({2, 4});
  Sparsity sparsity;
  sparsity.tensors.emplace("blocks.0.fc1.weight", Promise{{2, 4}, Axis::kIn});
  sparsity.tensors.emplace("blocks.1.fc2.weight", Promise{{2, 4}, Axis::kBoth});
  sparsity.tensors.emplace("blocks.1.fc1.weight", Promise{{2, 4}, Axis::kOut});  // of no use here
  sparsity.tensors.emplace("gone.weight", Promise{{2, 4}, Axis::kIn});
  Metadata metadata;
  sparsity.store_in(metadata);
  const std::string path = model.write(folder, "model.safetensors", metadata);
  const Checkpoint checkpoint = Checkpoint::open(path);
  GptDecoder decoder(checkpoint, 4), dense(checkpoint, 4, {.dense = true, .patterns = {}});
  EXPECT_EQ(decoder.weights().packed_matrices(), 2);
  EXPECT_TRUE(decoder.weights().blocks[0].fc1.packed());
  EXPECT_TRUE(decoder.weights().blocks[1].fc2.packed());
  EXPECT_EQ(dense.weights().packed_matrices(), 0);
  const std::vector<uint8_t> tokens = draw_tokens(9);
  EXPECT_EQ(mismatch(decoder.take(tokens), widened(copy(dense.take(tokens)))), "");
  // The caller's word goes before the plan's.
  const auto with = [&](const Pattern& pattern) {
    GptWeightOptions options;
    options.patterns.emplace("blocks.0.fc1.weight", pattern);
    return options;
  };
  EXPECT_EQ(GptDecoder(checkpoint, 4, with({3, 4})).weights().packed_matrices(), 2);
  EXPECT_EQ(
      message_of([&] {
        GptDecoder(checkpoint, 4, with({1, 4}));
      }),
      path +
          ": tensor 'blocks.0.fc1.weight': it is to be packed as 1:4: weight [0, 1] is one more "
          "than 1:4 allows");
  sparsity.tensors.at("blocks.0.fc1.weight").transposed = true;
  sparsity.store_in(metadata);
  const Checkpoint turned = Checkpoint::open(model.write(folder, "turned.safetensors", metadata));
  EXPECT_TRUE(contains(message_of([&] { GptDecoder(turned, 4); }),
                       "'blocks.0.fc1.weight' is stored [ins, outs]"));
}

// ---- what is refused

TEST(Decode, RefusesOtherModels) {
  const ScratchFolder folder;
  const auto refusal = [&](auto change, int64_t heads = 2) {
    Model changed({12, 9, 2, 20, 2});
    change(changed);
    const std::string path = changed.write(folder, "model.safetensors");
    const std::string message = message_of([&] { GptDecoder(Checkpoint::open(path), heads); });
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
    return message.substr(std::min(message.size(), path.size() + 2));
  };
  const auto nothing = [](Model&) {};

  Model model({12, 9, 2, 20, 2});
  for (const NamedTensor& tensor : model.tensors()) {
    EXPECT_EQ(refusal([&](Model& m) { m.remove(tensor.name); }),
              fmt::format("tensor '{}' is missing: a byte-level GPT has it", tensor.name));
    EXPECT_EQ(refusal([&](Model& m) { m.at(tensor.name).dtype = Dtype::kBf16; }),
              fmt::format("tensor '{}' is BF16, accepted is F32", tensor.name));
    // One row more, and one dimension more.
    if (tensor.name != "positions.weight") {  // that is a longer context
      const std::string longer = refusal([&](Model& m) {
        NamedTensor& t = m.at(tensor.name);
        t.values.resize(t.values.size() + t.values.size() / static_cast<size_t>(t.shape[0]));
        ++t.shape[0];
      });
      // fc1 says how many are hidden, so then its bias is what is wrong.
      const std::string wrong =
          tensor.name == "blocks.0.fc1.weight" ? "blocks.0.fc1.bias" : tensor.name;
      EXPECT_TRUE(longer.starts_with(fmt::format("tensor '{}' has shape [", wrong))) << longer;
    }
    EXPECT_TRUE(refusal([&](Model& m) {
                  m.at(tensor.name).shape.push_back(1);
                }).starts_with(fmt::format("tensor '{}' has shape [", tensor.name)));
  }
  EXPECT_EQ(refusal([](Model& m) {
              m.at("blocks.1.fc2.weight").shape = {20, 12};
            }),
            "tensor 'blocks.1.fc2.weight' has shape [20, 12], accepted is [12, 20]");
  EXPECT_EQ(refusal([](Model& m) {
              m.at("tokens.weight").shape = {128, 24};
            }),
            "tensor 'tokens.weight' has shape [128, 24], accepted is [256, 1 or more]");
  EXPECT_EQ(refusal([](Model& m) {
              m.at("positions.weight").shape = {12, 9};
            }),
            "tensor 'positions.weight' has shape [12, 9], accepted is [1 or more, 12]");
  EXPECT_EQ(refusal([](Model& m) {
              m.at("positions.weight").shape = {0, 12};
              m.at("positions.weight").values = {};
            }),
            "tensor 'positions.weight' has shape [0, 12], accepted is [1 or more, 12]");
  EXPECT_EQ(refusal([](Model& m) {
              m.tensors().push_back({"head.bias", Dtype::kF32, {1}, {0}});
            }),
            "tensor 'head.bias' is not a tensor of a byte-level GPT");
  EXPECT_EQ(refusal([](Model& m) {
              m.tensors().push_back({"blocks.01.fc1.weight", Dtype::kF32, {1}, {0}});
            }),
            "tensor 'blocks.01.fc1.weight' is not a tensor of a byte-level GPT");
  EXPECT_EQ(refusal([](Model& m) {
              m.tensors().push_back({"blocks.2000000000.a", Dtype::kF32, {1}, {0}});
            }),
            "tensor 'blocks.2.norm1.weight' is missing: a byte-level GPT has it");
  for (const int64_t heads : {-1, 0, 5, 24}) {
    EXPECT_EQ(refusal(nothing, heads),
              fmt::format("{} heads: accepted are those that divide the width, 12", heads));
  }

  const std::string path = model.write(folder, "model.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(path);
  GptWeightOptions options;
  options.patterns.emplace("tokens.weight", Pattern(2, 4));
  EXPECT_EQ(message_of([&] { GptDecoder(checkpoint, 2, options); }),
            path + ": 'tokens.weight' is to be packed as 2:4, but is not a matrix of the model");
  GptDecoder decoder(checkpoint, 2);
  EXPECT_EQ(message_of([&] { decoder.take({}); }), "no tokens: accepted are one or more");
}

}  // namespace
}  // namespace weft::test
