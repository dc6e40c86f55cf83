#include "weft/pack/packed_entries.h"

#include "weft/checkpoint/strict_json.h"
#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/core/weight_shape.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;

const Json& member(const Json& object, const char* name, const std::string& what) {
  WEFT_CHECK(object.is_object() && object.contains(name), "{}: no '{}'", what, name);
  return object.at(name);
}

std::string text_member(const Json& object, const char* name, const std::string& what) {
  const Json& value = member(object, name, what);
  WEFT_CHECK(value.is_string(), "{}: '{}' is not a text", what, name);
  return value.get<std::string>();
}

std::vector<int64_t> shape_member(const Json& object, const std::string& what) {
  const Json& value = member(object, "shape", what);
  std::vector<int64_t> shape;
  WEFT_CHECK(value.is_array(), "{}: 'shape' is not a list", what);
  for (const Json& size : value) {
    WEFT_CHECK(size.is_number_unsigned() && size.get<uint64_t>() <= INT64_MAX,
               "{}: {} in 'shape' is not a size", what, printable(size.dump(), 40));
    shape.push_back(static_cast<int64_t>(size.get<uint64_t>()));
  }
  return shape;
}

PackedEntry parse_entry(const Json& entry, const std::string& what) {
  const std::string dtype_text = text_member(entry, "dtype", what);
  const auto dtype = parse_dtype(dtype_text);
  WEFT_CHECK(dtype && *dtype != Dtype::kF64 && is_weight_dtype(*dtype),
             "{}: dtype {}: packed are F32, F16 and BF16", what, printable(dtype_text, 40));
  const Json& bits = member(entry, "index_bits", what);
  WEFT_CHECK(bits == 1 || bits == 2 || bits == 4 || bits == 8,
             "{}: index_bits {}: accepted are 1, 2, 4 and 8", what, printable(bits.dump(), 40));
  WEFT_CHECK(entry.size() == 4,
             "{}: {} fields where pattern, dtype, shape and index_bits are known", what,
             entry.size());
  const std::string pattern = text_member(entry, "pattern", what);
  const std::vector<int64_t> shape = shape_member(entry, what);
  try {
    WeightShape::of(shape);  // throws if it is none
    return {Pattern::parse(pattern), *dtype, shape, bits.get<int>()};
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", what, error.what()));
  }
}

}  // namespace

PackedEntries packed_entries_from(const Metadata& metadata, const std::string& file) {
  PackedEntries entries;
  const auto found = metadata.find(kPackedKey);
  if (found == metadata.end()) return entries;

  const std::string what = fmt::format("{}: {}", file, kPackedKey);
  const Json document = parse_strict_json(found->second, what);
  const Json& version = member(document, "version", what);
  WEFT_CHECK(version == kVersion, "{}: version {} is not known to this weft, which reads {}", what,
             printable(version.dump(), 40), kVersion);
  const Json& tensors = member(document, "tensors", what);
  WEFT_CHECK(tensors.is_object(), "{}: 'tensors' is not an object", what);
  WEFT_CHECK(document.size() == 2, "{}: {} fields where version and tensors are known", what,
             document.size());
  for (const auto& [name, entry] : tensors.items()) {
    entries.emplace(name,
                    parse_entry(entry, fmt::format("{}: tensor '{}'", what, printable(name))));
  }
  return entries;
}

void store_packed_entries(const PackedEntries& entries, Metadata& metadata) {
  metadata.erase(kPackedKey);
  if (entries.empty()) return;
  Json document = {{"version", kVersion}, {"tensors", Json::object()}};
  for (const auto& [name, entry] : entries) {
    document["tensors"][name] = {{"pattern", entry.pattern.str()},
                                 {"dtype", dtype_name(entry.dtype)},
                                 {"shape", entry.shape},
                                 {"index_bits", entry.index_bits}};
  }
  metadata[kPackedKey] = document.dump();
}

}  // namespace weft
