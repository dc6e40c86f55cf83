#include "weft/checkpoint/strict_json.h"

#include <unordered_set>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

using Json = nlohmann::json;

// Looks at the text before a tree is built from it. A callback of Json::parse could do so on the
// way, but then takes time that grows with the square of the number of objects side by side.
class StrictReader : public nlohmann::json_sax<Json> {
 public:
  explicit StrictReader(const std::string& what) : what_(what) {}

  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    WEFT_CHECK(names_.back().insert(name).second, "{}: name '{}' appears twice", what_,
               printable(name));
    return true;
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    throw Error(fmt::format("{}: not valid JSON: {}", what_, printable(error.what(), 300)));
  }

 private:
  bool open() {
    constexpr size_t kMaxDepth = 16;
    WEFT_CHECK(names_.size() < kMaxDepth, "{}: nested more than {} deep", what_, kMaxDepth);
    names_.emplace_back();
    return true;
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  const std::string& what_;
  std::vector<std::unordered_set<std::string>> names_;  // of what is open; none in a list
};

}  // namespace

Json parse_strict_json(std::string_view text, const std::string& what) {
  // The parser takes a NUL for the end of the text and would not look at what lies behind it.
  WEFT_CHECK(text.find('\0') == std::string_view::npos, "{}: not valid JSON: it has a NUL byte",
             what);
  StrictReader reader(what);
  Json::sax_parse(text.begin(), text.end(), &reader);
  return Json::parse(text.begin(), text.end());
}

}  // namespace weft
