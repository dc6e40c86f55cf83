// What tests of the functions from checkpoint to checkpoint (weft/prune/job.h) have in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/model_files.h"
#include "tests/support.h"
#include "weft/prune/job.h"

namespace weft::test {

inline std::vector<std::string> names_of(const std::vector<SkippedTensor>& skipped) {
  std::vector<std::string> names;
  for (const SkippedTensor& tensor : skipped) names.push_back(tensor.info.name);
  return names;
}

// Reported in order, up to the total.
struct Heard {
  std::vector<uint64_t> done;
  uint64_t total = 0;
  std::vector<std::string> notes;

  Listener listener() {
    return {[this](uint64_t now, uint64_t all) {
              done.push_back(now);
              total = all;
            },
            [this](const std::string& note) { notes.push_back(note); }};
  }
  void expect_all(uint64_t bytes) const {
    EXPECT_EQ(total, bytes);
    ASSERT_FALSE(done.empty());
    EXPECT_TRUE(std::ranges::is_sorted(done));
    EXPECT_EQ(done.back(), bytes);
  }
};

template <typename Action>
std::string option_refused(Action action) {
  try {
    action();
  } catch (const OptionError& error) {
    return error.option();
  }
  return "(no OptionError)";
}

inline void expect_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  const std::string bytes = contents(a);
  EXPECT_FALSE(bytes.empty()) << a;
  EXPECT_TRUE(bytes == contents(b)) << a << " and " << b << " differ";
}

inline void expect_succeeds(const std::vector<std::string>& args) {
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

inline constexpr uint64_t kModelBytes =  // of write_model
    960 * 4 + 24 * 4 + 1152 * 4 + 128 * 2 + 153 * 2 + 144 * 8 + 256 * 4 + 16 * 4;

}  // namespace weft::test
