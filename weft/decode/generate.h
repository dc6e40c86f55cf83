// Text from a GptDecoder, byte by byte; UTF-8 is not interpreted.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "weft/decode/gpt_decoder.h"

namespace weft {

struct GenerateOptions {
  int64_t max_bytes = 256;
  double temperature = 0.8;  // logits are divided by it; 0: always the likeliest byte
  int top_k = 0;             // sample from the k likeliest bytes; 0: from all
  uint64_t seed = 1;
};

// The byte with number `index` of a text. The likeliest if the temperature is 0; otherwise drawn
// with probability softmax(logits / temperature), by a random number that is a function of the seed
// and the index alone. Among equal logits the lower byte counts as the likelier.
// logits: [256], finite, else Error.
uint8_t pick_byte(std::span<const float> logits, const GenerateOptions& options, uint64_t index);

struct GenerateResult {
  std::string text;               // what follows the prompt
  int64_t prompt_tokens = 0;      // at least 1
  double prompt_seconds = 0;      // until the logits of the first byte are there
  double generation_seconds = 0;  // of the steps that follow; without on_byte
  int64_t generation_tokens = 0;  // steps: one fewer than there are bytes, as the last is not taken
  double tokens_per_second = 0;   // generation_tokens / generation_seconds; 0 if there are none
};

// Continues the prompt with max_bytes bytes, after a reset of the decoder. An empty prompt is that
// of one byte 10, the end of a line. on_byte gets each byte as soon as it is there, and ends the
// generation by throwing. The text does not depend on the number of threads.
GenerateResult generate(GptDecoder& decoder, std::string_view prompt,
                        const GenerateOptions& options = {},
                        const std::function<void(uint8_t)>& on_byte = {});

}  // namespace weft
