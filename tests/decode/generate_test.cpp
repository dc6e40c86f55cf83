// Text from the decoder, and the sampling of bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/decode/gpt_reference.h"
#include "tests/weights.h"
#include "weft/decode/generate.h"

namespace weft::test {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
  double heard_seconds = 0;
  const double begun = now_seconds();
  const GenerateResult result = generate(decoder, "ab\xff", options, [&](uint8_t byte) {
    const double called = now_seconds();
    heard.push_back(static_cast<char>(byte));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    heard_seconds += now_seconds() - called;
  });
  const double own_seconds = now_seconds() - begun - heard_seconds;
  EXPECT_EQ(heard, result.text);
  EXPECT_EQ(result.prompt_tokens, 3);
  EXPECT_EQ(result.generation_tokens, 24);
  EXPECT_GT(result.prompt_seconds, 0);
  EXPECT_GT(result.generation_seconds, 0);
  EXPECT_LE(result.prompt_seconds + result.generation_seconds, own_seconds + 1e-6)
      << "what the listener takes belongs to neither";
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
  options.max_bytes = 1;  // the prompt alone says which
  const GenerateResult one_byte = generate(decoder, "ab", options);
  EXPECT_GT(one_byte.prompt_seconds, 0);
  EXPECT_EQ(one_byte.generation_seconds, 0);
  EXPECT_EQ(one_byte.generation_tokens, 0);
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
  EXPECT_EQ(message({}), "the logit of byte 17 is nan: logits must be finite");
  logits.pop_back();
  EXPECT_EQ(message({}), "255 logits: accepted are 256");
}

}  // namespace
}  // namespace weft::test
