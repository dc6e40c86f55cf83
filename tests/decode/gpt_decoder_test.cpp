// The logits of the decoder against the reference, however the tokens are cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/decode/gpt_reference.h"
#include "tests/weights.h"
#include "weft/core/isa.h"
#include "weft/decode/gpt_decoder.h"

namespace weft::test {
namespace {

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

}  // namespace
}  // namespace weft::test
