// The fuzz targets over their corpora: where a fuzzer begins, and what one has found. Their
// contract is in tests/fuzz/target.h.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/fuzz/target.h"
#include "tests/scratch_folder.h"

namespace weft {
namespace {

struct Target {
  const char* name;
  void (*call)(fuzz::Input);
  int files;  // at least, in the corpus
};
void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

class Fuzz : public ::testing::TestWithParam<Target> {};

TEST_P(Fuzz, TheCorpusGivesErrorsOrFilesThatHoldTogetherAndNothingElse) {
  const std::string folder = std::string(WEFT_SOURCE_DIR "/tests/fuzz/corpus/") + GetParam().name;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename().string());
    const std::string bytes = test::contents(entry.path());
    EXPECT_NO_THROW(
        GetParam().call({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
    ++files;
  }
  EXPECT_GE(files, GetParam().files) << "the corpus is gone";
}

INSTANTIATE_TEST_SUITE_P(Targets, Fuzz,
                         ::testing::Values(Target{"safetensors", fuzz::safetensors, 20},
                                           Target{"packed", fuzz::packed, 8},
                                           Target{"run", fuzz::run, 8},
                                           Target{"toml", fuzz::toml, 8}),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace weft
