#include "weft/checkpoint/plan.h"

#include "weft/checkpoint/strict_json.h"
#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

constexpr const char* kKey = "weft.plan";
constexpr int kVersion = 1;

using Json = nlohmann::json;

const Json& member(const Json& object, const char* name, const std::string& what) {
  WEFT_CHECK(object.is_object() && object.contains(name), "{}: no '{}'", what, name);
  return object.at(name);
}

std::string text_member(const Json& object, const char* name, const std::string& what) {
  const Json& value = member(object, name, what);
  WEFT_CHECK(value.is_string(), "{}: '{}' is not a text", what, name);
  return value.get<std::string>();
}

Promise parse_promise(const Json& entry, const std::string& what) {
  try {
    return {Pattern::parse(text_member(entry, "pattern", what)),
            parse_axis(text_member(entry, "axis", what))};
  } catch (const Error& error) {
    const std::string message = error.what();
    throw Error(message.starts_with(what) ? message : fmt::format("{}: {}", what, message));
  }
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

SparsityPlan SparsityPlan::from_metadata(const Metadata& metadata, const std::string& file) {
  SparsityPlan plan;
  const auto found = metadata.find(kKey);
  if (found == metadata.end()) return plan;

  const std::string what = fmt::format("{}: {}", file, kKey);
  const Json document = parse_strict_json(found->second, what);
  const Json& version = member(document, "version", what);
  WEFT_CHECK(version == kVersion, "{}: version {} is not known to this weft, which reads {}", what,
             printable(version.dump(), 40), kVersion);
  const Json& tensors = member(document, "tensors", what);
  WEFT_CHECK(tensors.is_object(), "{}: 'tensors' is not an object", what);
  for (const auto& [name, entry] : tensors.items()) {
    const std::string where = fmt::format("{}: tensor '{}'", what, printable(name));
    plan.tensors.emplace(name, parse_promise(entry, where));
  }
  return plan;
}

void SparsityPlan::store_in(Metadata& metadata) const {
  metadata.erase(kKey);
  if (tensors.empty()) return;
  Json document = {{"version", kVersion}, {"tensors", Json::object()}};
  for (const auto& [name, promise] : tensors) {
    document["tensors"][name] = {{"pattern", promise.pattern.str()},
                                 {"axis", axis_name(promise.axis)}};
  }
  metadata[kKey] = document.dump();
}

}  // namespace weft
