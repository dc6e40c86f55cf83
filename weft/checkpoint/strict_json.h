// JSON from outside as a document: no duplicate names, no deep nesting, well-formed UTF-8.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace weft {

// Throws Error that begins with `what` (a file, a metadata entry).
nlohmann::json parse_strict_json(std::string_view text, const std::string& what);

}  // namespace weft
