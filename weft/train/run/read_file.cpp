#include "weft/train/run/read_file.h"

#include "weft/core/error.h"
#include "weft/train/data/byte_source.h"

namespace weft {

std::string read_small_file(const std::filesystem::path& path) {
  constexpr uint64_t kMost = uint64_t{64} << 20;
  ByteSource source(path);
  WEFT_CHECK(source.most_bytes() <= kMost, "{}: of {} bytes, more than the {} that are read",
             source.name(), source.most_bytes(), kMost);
  const std::vector<uint8_t> bytes = source.read(source.most_bytes(), "the text");
  return {bytes.begin(), bytes.end()};
}

}  // namespace weft
