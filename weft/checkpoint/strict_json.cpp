#include "weft/checkpoint/strict_json.h"

#include <unordered_set>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {

using Json = nlohmann::ordered_json;

Json parse_strict_json(std::string_view text, const std::string& what) {
  constexpr int kMaxDepth = 16;
  std::vector<std::unordered_set<std::string>> names;  // of the objects that are open
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    WEFT_CHECK(depth <= kMaxDepth, "{}: nested more than {} deep", what, kMaxDepth);
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      WEFT_CHECK(names.back().insert(name).second, "{}: name '{}' appears twice", what,
                 printable(name));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    throw Error(fmt::format("{}: not valid JSON: {}", what, printable(error.what(), 300)));
  }
}

}  // namespace weft
