// Which tensors are weights to prune, and why the others are not.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/checkpoint/tensor_files.h"
#include "tests/support.h"
#include "weft/checkpoint/select.h"

namespace weft::test {
namespace {

// "" if the tensor is selected.
std::string reason_of(const Selection& selection, const TensorInfo& info) {
  const auto reason = selection.left_alone(info);
  return reason ? reason_text(*reason, info) : "";
}

TEST(Selection, ByDefaultTakesWeightsAndLeavesEmbeddingsAndNormsAside) {
  const Selection selection("", "");
  const auto selected = [&](const char* name) {
    return !selection.left_alone(tensor(name, Dtype::kF32, {8, 8}));
  };
  const auto with_bytes = [](TensorInfo info) {
    info.end = tensor_bytes(info.dtype, info.shape);
    return info;
  };
  for (const char* name :
       {"fc1.weight", "weight", "h.0.attn.c_attn.weight", "in_proj_weight",
        "model.layers.0.mlp.gate_proj.weight", "aln.weight", "features.0.weight", "blnd.weight"}) {
    EXPECT_EQ(reason_of(selection, with_bytes(tensor(name, Dtype::kF32, {8, 8}))), "") << name;
  }
  for (const char* name : {"fc1.bias",
                           "fc1.weight_scale",
                           "weight.0",
                           "model.embed_tokens.weight",
                           "wte.weight",
                           "transformer.wpe.weight",
                           "word_embeddings.weight",
                           "patch_embed.proj.weight",
                           "Embedding.weight",
                           "tok_emb.weight",
                           "input_layernorm.weight",
                           "norm1.weight",
                           "LayerNorm.weight",
                           "batch_norm.weight",
                           "ln_f.weight",
                           "h.0.ln_1.weight",
                           "ln1.weight",
                           "layer1.0.bn1.weight",
                           "bn.weight",
                           ""}) {
    EXPECT_FALSE(selected(name)) << name;
  }
}

TEST(Selection, SaysWhyANameIsLeftAside) {
  const Selection selection("", "");
  const auto reason = [&](const char* name) {
    return reason_of(selection, tensor(name, Dtype::kF32, {8, 8}));
  };
  EXPECT_EQ(reason("wte.weight"), "embedding");
  EXPECT_EQ(reason("norm1.weight"), "normalisation");
  EXPECT_EQ(reason("fc1.bias"), "name does not end in 'weight'");
  EXPECT_EQ(reason("lm_head.weight"), "head");
  EXPECT_EQ(reason("block_sparse_moe.gate.weight"), "router of experts");
  EXPECT_EQ(reason("layer.0.SelfAttention.relative_attention_bias.weight"), "position bias");
}

TEST(Selection, TakesTwoOrFourDimensionsOfAWeightType) {
  for (const std::string include : {"", "."}) {
    const Selection selection(include, "");
    const auto reason = [&](Dtype dtype, std::vector<int64_t> shape) {
      TensorInfo info = tensor("fc.weight", dtype, std::move(shape));
      info.end = tensor_bytes(info.dtype, info.shape);
      return reason_of(selection, info);
    };
    for (const Dtype dtype : all_dtypes()) {
      if (is_weight_dtype(dtype)) {
        EXPECT_EQ(reason(dtype, {8, 8}), "");
        EXPECT_EQ(reason(dtype, {8, 8, 3, 3}), "");
      } else {
        EXPECT_TRUE(contains(reason(dtype, {8, 8}), dtype_name(dtype)));
      }
    }
    EXPECT_EQ(reason(Dtype::kF32, {}), "0 dimensions: weights have 2 or 4");
    EXPECT_EQ(reason(Dtype::kF32, {8}), "1 dimension: weights have 2 or 4");
    EXPECT_EQ(reason(Dtype::kF32, {8, 8, 3}), "3 dimensions: weights have 2 or 4");
    for (const std::vector<int64_t>& empty :
         {std::vector<int64_t>{8, 0}, {0, 8}, {0, 0}, {8, 0, 3, 3}, {8, 8, 0, 3}}) {
      EXPECT_EQ(reason(Dtype::kF32, empty), "");
    }
    // Legal in a file, but no matrix.
    const int64_t vast = int64_t{1} << 62;
    EXPECT_TRUE(contains(reason(Dtype::kF32, {0, 1, vast, 4}), "overflow"));
    EXPECT_TRUE(contains(reason(Dtype::kF32, {0, vast, 2, 2}), "overflow"));
  }
}

TEST(Selection, IncludeReplacesTheRulesAboutNamesAndExcludeTakesOut) {
  const Selection selection("embed|fc[0-9]", "fc2|\\.bias$");
  const auto reason = [&](const char* name) {
    TensorInfo info = tensor(name, Dtype::kF32, {2, 2});
    info.end = 16;
    EXPECT_EQ(selection.left_alone(info), selection.left_alone_by_name(name)) << name;
    return reason_of(selection, info);
  };
  EXPECT_EQ(reason("model.embed_tokens.table"), "");
  EXPECT_EQ(reason("fc1.weight"), "");
  EXPECT_EQ(reason("fc2.weight"), "excluded");
  EXPECT_EQ(reason("fc1.bias"), "excluded");
  EXPECT_EQ(reason("attention.weight"), "not included");
}

TEST(Selection, AWrongExpressionIsAnErrorThatSaysWhich) {
  for (const std::string wrong : {"(", "[a", "*", "a{2000}", "(?=look)", "\\1", "\n("}) {
    const std::string include = message_of([&] { const Selection selection(wrong, ""); });
    const std::string exclude = message_of([&] { const Selection selection("", wrong); });
    EXPECT_TRUE(include.starts_with("include expression '")) << include;
    EXPECT_TRUE(contains(include, "': not a regular expression: ")) << include;
    EXPECT_TRUE(exclude.starts_with("exclude expression '")) << exclude;
    EXPECT_FALSE(contains(include, "\n")) << include;
  }
}

}  // namespace
}  // namespace weft::test
