#include "weft/checkpoint/tensor_entries.h"

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

constexpr int kVersion = 1;

}  // namespace

const Json& member_of(const Json& entry, const char* name, const std::string& what) {
  WEFT_CHECK(entry.contains(name), "{}: no '{}'", what, name);
  return entry.at(name);
}

std::string text_member_of(const Json& entry, const char* name, const std::string& what) {
  const Json& value = member_of(entry, name, what);
  WEFT_CHECK(value.is_string(), "{}: '{}' is not a text", what, name);
  return value.get<std::string>();
}

std::optional<Json> read_tensor_entries(const Metadata& metadata, const std::string& key,
                                        const std::string& what) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  Json document = Json::parse(found->second, what);
  const Json& version = member_of(document, "version", what);
  WEFT_CHECK(version == kVersion, "{}: version {} is not known to this weft, which reads {}", what,
             printable(version.dump(), 40), kVersion);
  WEFT_CHECK(member_of(document, "tensors", what).is_object(), "{}: 'tensors' is not an object",
             what);
  return document;
}

void store_tensor_entries(const Json& entries, const std::string& key, Metadata& metadata) {
  metadata.erase(key);
  if (entries.empty()) return;
  metadata[key] = Json{{"tensors", entries}, {"version", kVersion}}.dump();
}

}  // namespace weft
