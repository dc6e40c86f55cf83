#include "weft/data/text_set.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <utility>

#include "weft/core/error.h"
#include "weft/data/byte_source.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failure;
  fs::recursive_directory_iterator entry(folder, failure), end;
  for (; !failure && entry != end; entry.increment(failure)) {
    std::error_code gone;  // a link that leads nowhere is no text
    if (entry->is_regular_file(gone)) files.push_back(entry->path());
  }
  WEFT_CHECK(!failure, "{}: cannot read the folder: {}", folder.string(), failure.message());
  WEFT_CHECK(!files.empty(), "{}: the folder has no files", folder.string());
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

void append_file(const fs::path& path, std::vector<uint8_t>& bytes) {
  ByteSource source(path);
  WEFT_CHECK(source.most_bytes() <= kMostTextBytes - bytes.size(),
             "{}: with this file the text is more than the {} bytes that are read", source.name(),
             kMostTextBytes);
  const std::vector<uint8_t> more = source.read(source.most_bytes(), "the text");
  bytes.insert(bytes.end(), more.begin(), more.end());
}

}  // namespace

int64_t TextSet::windows(int64_t context) const {
  WEFT_CHECK(context >= 1, "context {}: at least 1", context);
  return bytes.empty() ? 0 : (static_cast<int64_t>(bytes.size()) - 1) / context;
}

std::span<const uint8_t> TextSet::window(int64_t index, int64_t context) const {
  WEFT_CHECK(index >= 0 && index < windows(context),
             "window {} of a text of {} bytes: it has {} of context {}", index, bytes.size(),
             windows(context), context);
  return std::span(bytes).subspan(static_cast<size_t>(index * context),
                                  static_cast<size_t>(context + 1));
}

TextData read_text(const fs::path& path) {
  std::error_code failure;
  std::vector<uint8_t> bytes;
  if (fs::is_directory(path, failure)) {
    for (const fs::path& file : files_in(path)) append_file(file, bytes);
  } else {
    append_file(path, bytes);
  }
  constexpr size_t kLeast = 10;
  WEFT_CHECK(bytes.size() >= kLeast, "{}: a text of {} bytes: at least {}, a tenth is the test",
             path.string(), bytes.size(), kLeast);
  const auto cut = bytes.end() - static_cast<int64_t>(bytes.size() / 10);
  TextData data;
  data.test.bytes.assign(cut, bytes.end());
  bytes.erase(cut, bytes.end());
  data.train.bytes = std::move(bytes);
  return data;
}

fs::path default_text_path(const fs::path& root) {
  std::error_code failure;
  std::pair<int64_t, std::string> highest(-1, "");
  fs::path found;
  for (fs::directory_iterator entry(root, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    std::pair<int64_t, std::string> version(0, name);  // of 12 and 12.2, the longer one
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), version.first);
    std::error_code gone;
    if (parsed.ec != std::errc() || version <= highest || !entry->is_directory(gone)) continue;
    highest = version;
    found = entry->path();
  }
  WEFT_CHECK(!found.empty(), "{}: no C++ headers there to train on: give text:PATH", root.string());
  return found;
}

}  // namespace weft
