#include "weft/pack/packed_entries.h"

#include "weft/checkpoint/tensor_entries.h"
#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/core/weight_shape.h"

namespace weft {
namespace {

std::vector<int64_t> shape_member(const Json& object, const std::string& what) {
  const Json& value = member_of(object, "shape", what);
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
  const std::string dtype_text = text_member_of(entry, "dtype", what);
  const auto dtype = parse_dtype(dtype_text);
  WEFT_CHECK(dtype && *dtype != Dtype::kF64 && is_weight_dtype(*dtype),
             "{}: dtype {}: accepted are F32, F16 and BF16", what, printable(dtype_text, 40));
  const Json& bits = member_of(entry, "index_bits", what);
  WEFT_CHECK(bits == 1 || bits == 2 || bits == 4 || bits == 8,
             "{}: index_bits {}: accepted are 1, 2, 4 and 8", what, printable(bits.dump(), 40));
  const bool has_transposed = entry.contains("transposed");
  WEFT_CHECK(entry.size() == (has_transposed ? 5 : 4),
             "{}: {} fields: accepted are pattern, dtype, shape, index_bits and transposed", what,
             entry.size());
  WEFT_CHECK(!has_transposed || entry.at("transposed").is_boolean(),
             "{}: 'transposed' is {}: accepted is true or false", what,
             printable(entry.at("transposed").dump(), 40));
  const std::string pattern = text_member_of(entry, "pattern", what);
  const std::vector<int64_t> shape = shape_member(entry, what);
  try {
    WeightShape::of(shape);  // throws if it is none
    return {Pattern::parse(pattern), *dtype, shape, bits.get<int>(),
            has_transposed && entry.at("transposed").get<bool>()};
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", what, error.what()));
  }
}

}  // namespace

std::vector<int64_t> PackedEntry::dims() const {
  std::vector<int64_t> dims = shape;
  if (transposed) std::swap(dims.at(0), dims.at(1));
  return dims;
}

PackedEntries packed_entries_from(const Metadata& metadata, const std::string& file) {
  PackedEntries entries;
  const std::string what = fmt::format("{}: {}", file, kPackedKey);
  const std::optional<Json> document = read_tensor_entries(metadata, kPackedKey, what);
  if (!document) return entries;
  WEFT_CHECK(document->size() == 2, "{}: {} fields: accepted are version and tensors", what,
             document->size());
  for (const auto& [name, entry] : document->at("tensors").members()) {
    entries.emplace(name,
                    parse_entry(entry, fmt::format("{}: tensor '{}'", what, printable(name))));
  }
  return entries;
}

void store_packed_entries(const PackedEntries& entries, Metadata& metadata) {
  Json tensors = Json::object();
  for (const auto& [name, entry] : entries) {
    Json fields{{"dtype", dtype_name(entry.dtype)},
                {"index_bits", entry.index_bits},
                {"pattern", entry.pattern.str()},
                {"shape", entry.shape}};
    if (entry.transposed) fields["transposed"] = true;
    tensors.append(name, std::move(fields));
  }
  store_tensor_entries(tensors, kPackedKey, metadata);
}

}  // namespace weft
