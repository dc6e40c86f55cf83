// Decoding with a byte-level GPT against an implementation in double that keeps nothing and has no
// loop in common with it; packed against dense; what is refused; and the sampling of bytes.
#include <gtest/gtest.h>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "tests/weights.h"
#include "weft/core/isa.h"
#include "weft/decode/activations.h"
#include "weft/decode/generate.h"
#include "weft/pack/packed_file.h"

namespace weft::test {
namespace {

struct NamedTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  std::vector<float> values;  // written as zeros if the type is not F32
};

void write_file(const std::string& path, const std::vector<NamedTensor>& tensors,
                const Metadata& metadata) {
  std::vector<TensorInfo> infos;
  for (const NamedTensor& tensor : tensors) {
    infos.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
  }
  SafetensorsWriter writer(path, infos, metadata);
  for (const NamedTensor& tensor : tensors) {
    std::vector<std::byte> bytes(tensor_bytes(tensor.dtype, tensor.shape));
    if (tensor.dtype == Dtype::kF32 && !bytes.empty()) {
      std::memcpy(bytes.data(), tensor.values.data(), bytes.size());
    }
    writer.write(tensor.name, 0, bytes);
  }
  writer.commit();
}

struct Sizes {
  int64_t width, context, depth, hidden, heads;

  std::string str() const {
    return fmt::format("width {}, context {}, depth {}, hidden {}, heads {}, seed {}", width,
                       context, depth, hidden, heads, test_seed());
  }
};

// Weights such that activations stay of the size of one and attention prefers some tokens.
class Model {
 public:
  explicit Model(const Sizes& sizes) : sizes_(sizes) {
    const int64_t w = sizes.width, h = sizes.hidden;
    add("tokens.weight", {256, w}, 1);
    add("positions.weight", {sizes.context, w}, 1);
    for (int64_t i = 0; i < sizes.depth; ++i) {
      const std::string block = fmt::format("blocks.{}.", i);
      add_norm(block + "norm1");
      add_linear(block + "attention.qkv", 3 * w, w, 2);
      add_linear(block + "attention.proj", w, w, 1);
      add_norm(block + "norm2");
      add_linear(block + "fc1", h, w, 1.5);
      add_linear(block + "fc2", w, h, 1.5);
    }
    add_norm("norm");
    add("head.weight", {256, w}, 2 / std::sqrt(static_cast<double>(w)));
  }

  const Sizes& sizes() const { return sizes_; }
  std::vector<NamedTensor>& tensors() { return tensors_; }
  NamedTensor& at(const std::string& name) {
    for (NamedTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    throw Error("no tensor " + name);
  }
  const std::vector<float>& values(const std::string& name) const {
    return const_cast<Model*>(this)->at(name).values;
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const NamedTensor& tensor) { return tensor.name == name; });
  }

  // The names of the matrices that a product takes.
  std::vector<std::string> matrices() const {
    std::vector<std::string> names;
    for (const NamedTensor& tensor : tensors_) {
      if (tensor.shape.size() == 2 && tensor.name != "tokens.weight" &&
          tensor.name != "positions.weight") {
        names.push_back(tensor.name);
      }
    }
    return names;
  }

  // Keeps the first `keep` of each group of all matrices, shifted from row to row.
  void make_sparse(const Pattern& pattern) {
    for (const std::string& name : matrices()) {
      NamedTensor& tensor = at(name);
      const int64_t ins = tensor.shape[1];
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / ins, col = static_cast<int64_t>(i) % ins;
        if ((col + row) % pattern.group() >= pattern.keep()) tensor.values[i] = 0;
      }
    }
  }

  std::string write(const ScratchFolder& folder, const std::string& name,
                    const Metadata& metadata = {}) const {
    const std::string path = folder / name;
    write_file(path, tensors_, metadata);
    return path;
  }

 private:
  void add(const std::string& name, const std::vector<int64_t>& shape, double scale,
           double offset = 0) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    const Rng rng(test_seed(), tensors_.size());
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(offset + scale * rng.normal(i));
    }
    tensors_.push_back({name, Dtype::kF32, shape, std::move(values)});
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", {sizes_.width}, 0.3, 1);
    add(name + ".bias", {sizes_.width}, 0.3);
  }
  void add_linear(const std::string& name, int64_t outs, int64_t ins, double gain) {
    add(name + ".weight", {outs, ins}, gain / std::sqrt(static_cast<double>(ins)));
    add(name + ".bias", {outs}, 0.3);
  }

  Sizes sizes_;
  std::vector<NamedTensor> tensors_;
};

// ---- the same in double, whole sequences at a time, straight from the definition

using Vector = std::vector<double>;

Vector normed(const Model& model, const std::string& name, const Vector& x) {
  double mean = 0, variance = 0;
  for (const double v : x) mean += v / static_cast<double>(x.size());
  for (const double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) / std::sqrt(variance + 1e-5) * double{model.values(name + ".weight")[i]} +
           double{model.values(name + ".bias")[i]};
  }
  return y;
}

Vector linear(const Model& model, const std::string& name, const Vector& x, bool bias = true) {
  const std::vector<float>& w = model.values(name + ".weight");
  Vector y(w.size() / x.size());
  for (size_t o = 0; o < y.size(); ++o) {
    if (bias) y[o] = double{model.values(name + ".bias")[o]};
    for (size_t i = 0; i < x.size(); ++i) y[o] += double{w[o * x.size() + i]} * x[i];
  }
  return y;
}

void add_to(Vector& x, const Vector& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// What token t gets from tokens 0 .. t. qkv: of every token.
Vector attention(const std::vector<Vector>& qkv, size_t t, size_t width, size_t heads) {
  const size_t dim = width / heads;
  Vector out(width, 0.0);
  for (size_t h = 0; h < heads; ++h) {
    Vector weight(t + 1);
    double sum = 0;
    for (size_t p = 0; p <= t; ++p) {
      double dot = 0;
      for (size_t i = h * dim; i < (h + 1) * dim; ++i) dot += qkv[t][i] * qkv[p][width + i];
      weight[p] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
      sum += weight[p];
    }
    for (size_t p = 0; p <= t; ++p) {
      for (size_t i = h * dim; i < (h + 1) * dim; ++i) {
        out[i] += weight[p] / sum * qkv[p][2 * width + i];
      }
    }
  }
  return out;
}

// The logits after the last of these tokens, which begin at position 0.
Vector reference_window(const Model& model, const std::vector<uint8_t>& tokens) {
  const auto width = static_cast<size_t>(model.sizes().width);
  std::vector<Vector> x(tokens.size(), Vector(width));
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (size_t i = 0; i < width; ++i) {
      x[t][i] = double{model.values("tokens.weight")[tokens[t] * width + i]} +
                double{model.values("positions.weight")[t * width + i]};
    }
  }
  for (int64_t b = 0; b < model.sizes().depth; ++b) {
    const std::string block = fmt::format("blocks.{}.", b);
    std::vector<Vector> qkv;
    for (const Vector& v : x) {
      qkv.push_back(linear(model, block + "attention.qkv", normed(model, block + "norm1", v)));
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector mixed = attention(qkv, t, width, static_cast<size_t>(model.sizes().heads));
      add_to(x[t], linear(model, block + "attention.proj", mixed));
      Vector hidden = linear(model, block + "fc1", normed(model, block + "norm2", x[t]));
      for (double& v : hidden) v *= 0.5 * (1 + std::erf(v / std::sqrt(2.0)));
      add_to(x[t], linear(model, block + "fc2", hidden));
    }
  }
  return linear(model, "head", normed(model, "norm", x.back()), false);
}

// The tokens that the decoder sees after all of these: with a full context it goes on from half.
std::vector<uint8_t> window_of(const std::vector<uint8_t>& tokens, int64_t context) {
  std::vector<uint8_t> window;
  for (const uint8_t token : tokens) {
    if (static_cast<int64_t>(window.size()) == context) {
      window.erase(window.begin(), window.end() - context / 2);
    }
    window.push_back(token);
  }
  return window;
}

std::vector<uint8_t> draw_tokens(size_t count, uint64_t stream = 0) {
  std::vector<uint8_t> tokens(count);
  const Rng rng(test_seed(), 1000 + stream);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<uint8_t>(rng.below(i, 256));
  return tokens;
}

// Logits are of the size of two; the worst that rounding in float did to one was 1.1e-5.
constexpr double kBound = 1e-4;

std::string mismatch(std::span<const float> found, const Vector& wanted, double bound = kBound) {
  if (found.size() != wanted.size()) return "other number of logits";
  size_t worst = 0;
  double error = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    double e = std::abs(double{found[i]} - wanted[i]);
    if (std::isnan(e)) e = INFINITY;
    if (e > error) error = e, worst = i;
  }
  if (error <= bound) return "";
  return fmt::format("logit {} is {}, wanted {}", worst, found[worst], wanted[worst]);
}

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

Vector widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Takes the tokens in pieces of these sizes, again and again.
std::vector<float> take_in(GptDecoder& decoder, const std::vector<uint8_t>& tokens,
                           const std::vector<size_t>& sizes) {
  decoder.reset();
  std::vector<float> logits;
  for (size_t at = 0, i = 0; at < tokens.size(); ++i) {
    const size_t count = std::min(sizes[i % sizes.size()], tokens.size() - at);
    logits = copy(decoder.take(std::span(tokens).subspan(at, count)));
    at += count;
  }
  return logits;
}

const std::vector<Sizes> kSizes = {{12, 9, 1, 20, 1},  {12, 9, 2, 20, 2},   {20, 16, 2, 7, 4},
                                   {5, 1, 1, 3, 1},    {7, 2, 1, 1, 7},     {66, 33, 1, 130, 2},
                                   {64, 40, 3, 96, 4}, {48, 150, 1, 192, 2}};

std::map<std::string, Pattern> patterns_for(const Model& model, const Pattern& pattern) {
  std::map<std::string, Pattern> patterns;
  for (const std::string& name : model.matrices()) patterns.emplace(name, pattern);
  return patterns;
}

// ---- the logits

TEST(Comparator, SeesAWrongLogit) {
  const std::vector<float> found = {1, 2, 3};
  EXPECT_EQ(mismatch(found, {1, 2, 3}), "");
  EXPECT_NE(mismatch(found, {1, 2.01, 3}), "");
  EXPECT_NE(mismatch(std::vector<float>{1, NAN, 3}, {1, 2, 3}), "");
  EXPECT_NE(mismatch(found, {1, 2}), "");
}

TEST(Decode, IsRightAfterEveryToken) {
  const ScratchFolder folder;
  for (const Sizes& sizes : kSizes) {
    Model model(sizes);
    const std::string path = model.write(folder, "model.safetensors");
    GptDecoder decoder(Checkpoint::open(path), sizes.heads);
    EXPECT_EQ(decoder.weights().packed_matrices(), 0);
    std::vector<uint8_t> tokens;
    for (const uint8_t token : draw_tokens(static_cast<size_t>(2 * sizes.context + 3))) {
      tokens.push_back(token);
      const std::vector<float> found = copy(decoder.take({&token, 1}));
      const std::vector<uint8_t> window = window_of(tokens, sizes.context);
      ASSERT_TRUE(std::ranges::equal(decoder.taken(), window)) << sizes.str();
      if (sizes.context > 20 && tokens.size() % 11 != 0) continue;  // the reference is slow
      ASSERT_EQ(mismatch(found, reference_window(model, window)), "")
          << sizes.str() << ", after " << tokens.size() << " tokens";
    }
  }
}

TEST(Decode, DoesNotDependOnHowTokensAreCut) {
  const ScratchFolder folder;
  for (const Sizes& sizes : kSizes) {
    Model model(sizes);
    model.make_sparse({2, 4});
    const Checkpoint checkpoint = Checkpoint::open(model.write(folder, "model.safetensors"));
    GptWeightOptions packed;
    packed.patterns = patterns_for(model, {2, 4});
    GptDecoder dense_decoder(checkpoint, sizes.heads),
        packed_decoder(checkpoint, sizes.heads, packed);
    const auto context = static_cast<size_t>(sizes.context);
    for (const size_t count : {size_t{1}, context / 2 + 1, context, context + 1, 5 * context / 2}) {
      const std::vector<uint8_t> tokens = draw_tokens(count);
      const Vector wanted = reference_window(model, window_of(tokens, sizes.context));
      const std::vector<float> one_by_one = take_in(packed_decoder, tokens, {1});
      for (const std::vector<size_t>& cut :
           std::vector<std::vector<size_t>>{{1}, {count}, {2, 5}, {12}, {7, 1, 13}, {64, 1}}) {
        ASSERT_EQ(mismatch(take_in(dense_decoder, tokens, cut), wanted), "")
            << sizes.str() << ", " << count << " tokens, " << cut[0] << " at first";
        ASSERT_EQ(take_in(packed_decoder, tokens, cut), one_by_one)
            << sizes.str() << ", " << count << " tokens, " << cut[0] << " at first, packed";
      }
      ASSERT_EQ(mismatch(one_by_one, wanted), "") << sizes.str() << ", " << count << " tokens";
    }
  }
}

TEST(Decode, IsRightOnEveryInstructionSet) {
  const ScratchFolder folder;
  const Sizes sizes{66, 33, 1, 130, 2};
  Model model(sizes);
  model.make_sparse({1, 4});
  const Checkpoint checkpoint = Checkpoint::open(model.write(folder, "model.safetensors"));
  GptWeightOptions packed;
  packed.patterns = patterns_for(model, {1, 4});
  const std::vector<uint8_t> tokens = draw_tokens(21);
  const Vector wanted = reference_window(model, tokens);
  for (const std::string& isa : available_isas()) {
    force_isa(isa);
    GptDecoder dense_decoder(checkpoint, 2), packed_decoder(checkpoint, 2, packed);
    for (const std::vector<size_t>& cut : {std::vector<size_t>{1}, std::vector<size_t>{21}}) {
      EXPECT_EQ(mismatch(take_in(dense_decoder, tokens, cut), wanted), "") << isa;
      EXPECT_EQ(mismatch(take_in(packed_decoder, tokens, cut), wanted), "") << isa << ", packed";
    }
    restore_isa();
  }
}

TEST(Decode, BeginsAnewAfterAReset) {
  const ScratchFolder folder;
  Model model(kSizes[1]);
  GptDecoder decoder(Checkpoint::open(model.write(folder, "model.safetensors")), 2);
  const std::vector<uint8_t> tokens = draw_tokens(6);
  const std::vector<float> first = copy(decoder.take(tokens));
  EXPECT_NE(copy(decoder.take(tokens)), first);
  decoder.reset();
  EXPECT_EQ(decoder.taken().size(), 0u);
  EXPECT_EQ(copy(decoder.take(tokens)), first);
}

// ---- packed and dense files

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
            "tensor 'head.bias' is none of a byte-level GPT");
  EXPECT_EQ(refusal([](Model& m) {
              m.tensors().push_back({"blocks.01.fc1.weight", Dtype::kF32, {1}, {0}});
            }),
            "tensor 'blocks.01.fc1.weight' is none of a byte-level GPT");
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
            path + ": 'tokens.weight' is to be packed as 2:4, but is no matrix of it");
  GptDecoder decoder(checkpoint, 2);
  EXPECT_EQ(message_of([&] { decoder.take({}); }), "no token to take: accepted are one or more");
}

// ---- text

TEST(Generate, DoesNotDependOnThreads) {
  const ThreadsGuard guard;
  const ScratchFolder folder;
  const Sizes sizes{160, 48, 2, 400, 4};
  Model model(sizes);
  model.make_sparse({2, 4});
  const Checkpoint checkpoint = Checkpoint::open(model.write(folder, "model.safetensors"));
  GptDecoder packed(checkpoint, 4, {false, patterns_for(model, {2, 4})}), dense(checkpoint, 4);
  const std::vector<uint8_t> prompt = draw_tokens(30);
  GenerateOptions options;
  options.max_bytes = 40;
  for (GptDecoder* decoder : {&packed, &dense}) {
    std::string text;
    std::vector<float> logits;
    for (const int count : {1, 2, 3, 5}) {
      set_threads(count);
      const std::string again =
          generate(*decoder, {reinterpret_cast<const char*>(prompt.data()), prompt.size()}, options)
              .text;
      const std::vector<float> now = copy(decoder->take(prompt));
      if (count == 1) text = again, logits = now;
      EXPECT_EQ(again, text) << count << " threads";
      EXPECT_EQ(now, logits) << count << " threads";
    }
  }
}

TEST(Generate, GoesOnWhereThePromptEnds) {
  const ScratchFolder folder;
  Model model({12, 9, 2, 20, 2});
  GptDecoder decoder(Checkpoint::open(model.write(folder, "model.safetensors")), 2);
  GenerateOptions options;
  options.max_bytes = 25;  // past the context
  options.temperature = 0;
  std::string heard;
  const GenerateResult result = generate(
      decoder, "ab\xff", options, [&](uint8_t byte) { heard.push_back(static_cast<char>(byte)); });
  EXPECT_EQ(heard, result.text);
  EXPECT_EQ(result.prompt_tokens, 3);
  EXPECT_EQ(result.generation_tokens, 24);
  EXPECT_GT(result.prompt_seconds, 0);
  EXPECT_DOUBLE_EQ(result.tokens_per_second, 24 / result.generation_seconds);
  std::vector<uint8_t> tokens = {'a', 'b', 0xff};
  for (const char byte : result.text) {
    const Vector logits = reference_window(model, window_of(tokens, 9));
    const auto best =
        static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    ASSERT_EQ(static_cast<uint8_t>(byte), best) << tokens.size();
    tokens.push_back(static_cast<uint8_t>(byte));
  }

  options.temperature = 1;
  const std::string drawn = generate(decoder, "ab", options).text;
  EXPECT_EQ(generate(decoder, "ab", options).text, drawn) << "the decoder begins anew";
  options.seed = 2;
  EXPECT_NE(generate(decoder, "ab", options).text, drawn);
  EXPECT_EQ(generate(decoder, "", options).text, generate(decoder, "\n", options).text);
  EXPECT_EQ(generate(decoder, "", options).prompt_tokens, 1);
  options.max_bytes = 0;
  EXPECT_EQ(generate(decoder, "ab", options).text, "");
  EXPECT_EQ(generate(decoder, "ab", options).tokens_per_second, 0);
}

TEST(Generate, DrawsBytesAsOftenAsItShould) {
  std::vector<float> logits(256, -100.0f);
  logits[7] = 1, logits[200] = 2, logits[3] = 2, logits[9] = 0;
  GenerateOptions options;
  options.temperature = 0;
  EXPECT_EQ(pick_byte(logits, options, 0), 3) << "of two the lower";
  options.top_k = 1;
  options.temperature = 5;
  for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(pick_byte(logits, options, i), 3);

  const auto counts = [&](const GenerateOptions& o) {
    std::map<int, int> found;
    for (uint64_t i = 0; i < 20000; ++i) ++found[pick_byte(logits, o, i)];
    return found;
  };
  for (const int top_k : {0, 3}) {
    for (const double temperature : {0.5, 2.0}) {
      options.top_k = top_k;
      options.temperature = temperature;
      std::map<int, double> weight = {{3, std::exp(2 / temperature)},
                                      {200, std::exp(2 / temperature)},
                                      {7, std::exp(1 / temperature)},
                                      {9, top_k == 0 ? 1.0 : 0.0}};
      double sum = 0;
      for (const auto& [byte, w] : weight) sum += w;
      std::map<int, int> found = counts(options);
      int all = 0;
      for (const auto& [byte, w] : weight) {
        const double p = w / sum, sigma = std::sqrt(20000 * p * (1 - p));
        EXPECT_NEAR(found[byte], 20000 * p, 4.5 * sigma)
            << byte << ", top_k " << top_k << ", temperature " << temperature;
        all += found[byte];
      }
      EXPECT_EQ(all, 20000);
    }
  }
  options.temperature = 1e-300;
  options.top_k = 0;
  for (uint64_t i = 0; i < 50; ++i) EXPECT_TRUE(logits[pick_byte(logits, options, i)] == 2);
}

TEST(Generate, TakesWrongCallsForWhatTheyAre) {
  std::vector<float> logits(256);
  const auto message = [&](GenerateOptions options) {
    return message_of([&] { pick_byte(logits, options, 0); });
  };
  EXPECT_EQ(message({.max_bytes = -1}), "max_bytes -1: accepted is 0 or more");
  EXPECT_EQ(message({.temperature = -0.5}), "temperature -0.5: accepted is 0 or more");
  EXPECT_EQ(message({.temperature = NAN}), "temperature nan: accepted is 0 or more");
  EXPECT_EQ(message({.top_k = -1}), "top_k -1: accepted is 0 (all) to 256");
  EXPECT_EQ(message({.top_k = 257}), "top_k 257: accepted is 0 (all) to 256");
  logits[17] = NAN;
  EXPECT_EQ(message({}), "the logit of byte 17 is nan: the model is broken");
  logits.pop_back();
  EXPECT_EQ(message({}), "255 logits: accepted are 256");
}

// ---- what lies between the products

// Also where the variance is not large beside the epsilon, or is nothing beside the mean.
TEST(Activations, LayerNormIsThatOfItsDefinition) {
  const Rng rng(test_seed(), 2000);
  uint64_t drawn = 0;
  const auto normal = [&] { return rng.normal(drawn++); };
  for (const std::string& isa : available_isas()) {
    force_isa(isa);
    for (const size_t width : {1, 2, 7, 8, 9, 16, 33, 100}) {
      for (const auto& [mean, scale] : {std::pair(0.0, 1.0), {0.0, 3e-3}, {100.0, 1.0}}) {
        std::vector<float> x(width), weight(width), bias(width), y(width);
        for (size_t i = 0; i < width; ++i) {
          x[i] = static_cast<float>(mean + scale * normal());
          weight[i] = static_cast<float>(normal());
          bias[i] = static_cast<float>(normal());
        }
        layer_norm(x.data(), weight.data(), bias.data(), static_cast<int64_t>(width), y.data());
        double average = 0, variance = 0;
        for (const float v : x) average += double{v} / static_cast<double>(width);
        for (const float v : x) {
          variance += (double{v} - average) * (double{v} - average) / static_cast<double>(width);
        }
        for (size_t i = 0; i < width; ++i) {
          const double wanted =
              (double{x[i]} - average) / std::sqrt(variance + 1e-5) * double{weight[i]} +
              double{bias[i]};
          // The mean is rounded to a float, 4e-6 off at 100.
          ASSERT_NEAR(double{y[i]}, wanted, mean == 0 ? 3e-6 : 1e-3)
              << isa << ", width " << width << ", mean " << mean << ", scale " << scale << ", "
              << i;
        }
      }
    }
    restore_isa();
  }
}

TEST(Activations, GeluIsThatOfErf) {
  for (const std::string& isa : available_isas()) {
    force_isa(isa);
    std::vector<float> x;
    for (int i = -30000; i <= 30000; ++i) x.push_back(static_cast<float>(i) * 1e-3f);
    for (const float special : {1e-30f, -1e-30f, 1e30f, -1e30f, 0.0f}) x.push_back(special);
    const std::vector<float> before = x;
    gelu(x.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = double{before[i]};
      const double wanted = 0.5 * v * std::erfc(-v / std::sqrt(2.0));
      ASSERT_NEAR(double{x[i]}, wanted, 2e-7 * std::max(1.0, std::abs(v))) << v << ", " << isa;
    }
    restore_isa();
  }
}

}  // namespace
}  // namespace weft::test
