#include "weft/checkpoint/sparsity.h"

#include "weft/checkpoint/tensor_entries.h"
#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

constexpr const char* kKey = "weft.sparsity";

// parse(text), with `what` (the file, the key and the tensor) before its error.
template <typename Parse>
auto parsed(const std::string& text, const std::string& what, Parse parse) {
  try {
    return parse(text);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", what, error.what()));
  }
}

Promise parse_promise(const Json& entry, const std::string& what) {
  Promise promise{parsed(text_member_of(entry, "pattern", what), what, Pattern::parse),
                  parsed(text_member_of(entry, "axis", what), what, parse_axis)};
  if (entry.contains("row_order")) promise.row_order = text_member_of(entry, "row_order", what);
  if (entry.contains("transposed")) {
    const Json& transposed = entry.at("transposed");
    WEFT_CHECK(transposed.is_boolean(), "{}: 'transposed' is {}: accepted is true or false", what,
               printable(transposed.dump(), 40));
    promise.transposed = transposed.get<bool>();
  }
  return promise;
}

}  // namespace

Axis parse_axis(std::string_view text) {
  if (text == "in") return Axis::kIn;
  if (text == "out") return Axis::kOut;
  if (text == "both") return Axis::kBoth;
  throw Error(fmt::format("axis '{}': accepted is in, out or both", printable(text)));
}

std::string_view axis_name(Axis axis) {
  return axis == Axis::kIn ? "in" : axis == Axis::kOut ? "out" : "both";
}

Sparsity Sparsity::from_metadata(const Metadata& metadata, const std::string& file) {
  Sparsity sparsity;
  const std::string what = fmt::format("{}: {}", file, kKey);
  const std::optional<Json> document = read_tensor_entries(metadata, kKey, what);
  if (!document) return sparsity;
  for (const auto& [name, entry] : document->at("tensors").members()) {
    const std::string where = fmt::format("{}: tensor '{}'", what, printable(name));
    sparsity.tensors.emplace(name, parse_promise(entry, where));
  }
  return sparsity;
}

void Sparsity::require_outs_first(const std::string& file) const {
  for (const auto& [name, promise] : tensors) {
    WEFT_CHECK(!promise.transposed,
               "{}: tensor '{}' is stored [ins, outs] ({}): accepted is [outs, ins]", file,
               printable(name), kKey);
  }
}

void Sparsity::store_in(Metadata& metadata) const {
  Json entries = Json::object();
  for (const auto& [name, promise] : tensors) {
    Json entry{{"axis", axis_name(promise.axis)}, {"pattern", promise.pattern.str()}};
    if (!promise.row_order.empty()) entry["row_order"] = promise.row_order;
    if (promise.transposed) entry["transposed"] = true;
    entries.append(name, std::move(entry));
  }
  store_tensor_entries(entries, kKey, metadata);
}

}  // namespace weft
