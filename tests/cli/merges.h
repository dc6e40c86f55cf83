// Deltas for tests of weft merge, and the sums to expect.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/model_files.h"
#include "tests/program.h"

namespace weft::test {

// Small integers, whose sums and products are exact; no zeros.
inline std::vector<float> integers(int64_t count, uint64_t stream) {
  std::vector<float> values = gaussian(count, stream);
  for (float& value : values) value = std::copysign(1 + std::floor(std::abs(3 * value)), value);
  return values;
}

// scale * B A, the obvious way. a: [rank, cols], b: [outs, rank]
inline std::vector<double> lora_product(const std::vector<float>& a, const std::vector<float>& b,
                                        size_t rank, double scale) {
  const size_t cols = a.size() / rank, outs = b.size() / rank;
  std::vector<double> d(outs * cols);
  for (size_t o = 0; o < outs; ++o) {
    for (size_t c = 0; c < cols; ++c) {
      for (size_t k = 0; k < rank; ++k)
        d[o * cols + c] += double{b[o * rank + k]} * a[k * cols + c];
      d[o * cols + c] *= scale;
    }
  }
  return d;
}

// base + delta where the base is not zero.
inline std::vector<float> merged_within(const std::vector<float>& base,
                                        const std::vector<double>& delta) {
  std::vector<float> sum(base.size());
  for (size_t i = 0; i < base.size(); ++i) {
    sum[i] = base[i] == 0 ? 0 : static_cast<float>(double{base[i]} + delta[i]);
  }
  return sum;
}

inline Json merged_json(std::vector<std::string> args) {
  args.insert(args.begin(), "merge");
  args.push_back("--json");
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? outcome.json() : Json::object();
}

inline void expect_checked(const std::string& path) {
  const Outcome checked = run({"check", path});
  EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
}

}  // namespace weft::test
