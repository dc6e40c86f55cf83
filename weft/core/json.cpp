#include "weft/core/json.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <ostream>
#include <unordered_set>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

// Passes on what nlohmann's parser finds.
class Forwarder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Forwarder(std::string_view text, const std::string& subject, JsonEvents& events)
      : text_(text), subject_(subject), events_(events) {}

  bool null() override { return events_.null(), true; }
  bool boolean(bool value) override { return events_.boolean(value), true; }
  bool number_integer(int64_t value) override { return events_.negative(value), true; }
  bool number_unsigned(uint64_t value) override { return events_.whole(value), true; }
  bool number_float(double value, const std::string& text) override {
    return events_.real(value, text), true;
  }
  bool string(std::string& value) override { return events_.text(value), true; }
  bool start_object(size_t) override { return events_.begin_object(), true; }
  bool key(std::string& name) override { return events_.name(name), true; }
  bool end_object() override { return events_.end_object(), true; }
  bool start_array(size_t) override { return events_.begin_list(), true; }
  bool end_array() override { return events_.end_list(), true; }
  bool binary(binary_t&) override { return false; }  // there is none in text
  // read: how many bytes were, the one that is wrong included; token: what they end in.
  bool parse_error(size_t read, const std::string& token,
                   const nlohmann::json::exception& error) override {
    const bool too_large = dynamic_cast<const nlohmann::json::out_of_range*>(&error) != nullptr;
    throw Error(fmt::format("{} not valid JSON: {}", subject_, problem_at(read, token, too_large)));
  }

 private:
  std::string problem_at(size_t read, const std::string& token, bool too_large) const {
    const size_t at = read == 0 ? 0 : read - 1;
    if (at >= text_.size()) return fmt::format("it ends too early, at byte {}", text_.size());
    if (too_large)
      return fmt::format("the number {} at byte {} is too large", printable(token), at);
    const size_t line_begin = text_.substr(0, at).rfind('\n') + 1;
    const auto line = 1 + std::ranges::count(text_.substr(0, at), '\n');
    const std::string place =
        fmt::format("at byte {} (line {}, column {})", at, line, at - line_begin + 1);
    if (is_not_utf8(at)) return "text that is not UTF-8, " + place;
    if (static_cast<unsigned char>(text_[at]) < 0x20) return "a control character, " + place;
    const std::string_view letter = text_.substr(at, utf8_length(text_.substr(at)));
    return fmt::format("'{}' is not expected, {}", printable(letter), place);
  }

  // Whether the byte, or the letter that it should have continued, is ill-formed.
  bool is_not_utf8(size_t at) const {
    const auto is_ascii = [&](size_t i) { return static_cast<unsigned char>(text_[i]) < 0x80; };
    if (is_ascii(at)) return at > 0 && !is_ascii(at - 1);
    return utf8_length(text_.substr(at)) == 0;
  }

  std::string_view text_;
  const std::string& subject_;
  JsonEvents& events_;
};

// Builds the document of Json::parse.
class DocumentReader : public JsonEvents {
 public:
  explicit DocumentReader(const std::string& what) : what_(what) {}

  void null() override { put(nullptr); }
  void boolean(bool value) override { put(value); }
  void negative(int64_t value) override { put(value); }
  void whole(uint64_t value) override { put(value); }
  void real(double value, const std::string&) override { put(value); }
  void text(std::string& value) override { put(std::move(value)); }
  void begin_list() override { open(Json::array()); }
  void end_list() override { close(); }
  void begin_object() override { open(Json::object()); }
  void end_object() override { close(); }
  void name(std::string& name) override {
    WEFT_CHECK(open_.back().names.insert(name).second, "{}: name '{}' appears twice", what_,
               printable(name));
    open_.back().next = std::move(name);
  }

  Json document() { return std::move(document_); }

 private:
  struct Open {
    Json value;
    std::string next;  // the name of the member that comes
    std::unordered_set<std::string> names;
  };

  void put(Json value) {
    if (open_.empty()) {
      document_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push_back(std::move(value));
    } else {
      open_.back().value.append(std::move(open_.back().next), std::move(value));
    }
  }
  void open(Json value) {
    constexpr size_t kMaxDepth = 16;
    WEFT_CHECK(open_.size() < kMaxDepth, "{}: nested more than {} deep", what_, kMaxDepth);
    open_.push_back({std::move(value), {}, {}});
  }
  void close() {
    Json value = std::move(open_.back().value);
    value.sort_members();
    open_.pop_back();
    put(std::move(value));
  }

  const std::string& what_;
  std::vector<Open> open_;
  Json document_;
};

std::string leaf_text(const nlohmann::json& leaf, Json::BadText bad_text) {
  using Handler = nlohmann::json::error_handler_t;
  try {
    return leaf.dump(-1, ' ', false,
                     bad_text == Json::BadText::kReplace ? Handler::replace : Handler::strict);
  } catch (const nlohmann::json::exception&) {
    throw Error("a text that was to be written as JSON is not valid UTF-8");
  }
}

}  // namespace

void read_json(std::string_view text, const std::string& subject, JsonEvents& events) {
  // The parser takes a NUL for the end of the text and would ignore the rest.
  WEFT_CHECK(text.find('\0') == std::string_view::npos, "{} not valid JSON: it has a NUL byte",
             subject);
  Forwarder forwarder(text, subject, events);
  nlohmann::json::sax_parse(text.begin(), text.end(), &forwarder);
}

Json Json::parse(std::string_view text, const std::string& what) {
  DocumentReader reader(what);
  read_json(text, what + ":", reader);
  return reader.document();
}

Json Json::parse_or_null(std::string_view text) {
  try {
    return parse(text, "");
  } catch (const Error&) {
    return nullptr;
  }
}

Json::Json(std::nullptr_t) {}
Json::Json(double value) : kind_(Kind::kReal) { number_.real = value; }
Json::Json(std::string text) : kind_(Kind::kText), text_(std::move(text)) {}
Json::Json(std::string_view text) : Json(std::string(text)) {}
Json::Json(const char* text) : Json(std::string(text)) {}
Json::Json(const std::map<std::string, std::string>& texts) : kind_(Kind::kObject) {
  for (const auto& [name, text] : texts) append(name, text);
}

Json::Json(std::initializer_list<Json> values) {
  const bool all_named = std::all_of(values.begin(), values.end(), [](const Json& value) {
    return value.is_array() && value.items_.size() == 2 && value.items_[0].is_string();
  });
  kind_ = all_named ? Kind::kObject : Kind::kList;
  if (all_named) {
    for (const Json& value : values) append(value.items_[0].text_, value.items_[1]);
  } else {
    items_.assign(values.begin(), values.end());
  }
}

Json Json::array() {
  Json list;
  list.kind_ = Kind::kList;
  return list;
}

Json Json::object() {
  Json object;
  object.kind_ = Kind::kObject;
  return object;
}

Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

void Json::require_number() const { WEFT_CHECK(is_number(), "JSON: {} is not a number", dump()); }

void Json::refuse_as_whole() const {
  throw Error(fmt::format("JSON: {} is not an integer in the accepted range", dump()));
}

const std::string& Json::text() const {
  WEFT_CHECK(is_string(), "JSON: {} is not a text", dump());
  return text_;
}

bool Json::boolean() const {
  WEFT_CHECK(kind_ == Kind::kBool, "JSON: {} is neither true nor false", dump());
  return number_.whole != 0;
}

size_t Json::size() const {
  if (is_null()) return 0;
  return is_array() ? items_.size() : is_object() ? members_.size() : 1;
}

void Json::push_back(Json value) {
  if (is_null()) kind_ = Kind::kList;
  WEFT_CHECK(is_array(), "JSON: {} is not a list", dump());
  items_.push_back(std::move(value));
}

const Json* Json::find(std::string_view name) const {
  for (const Member& member : members_) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view name) const {
  const Json* found = find(name);
  WEFT_CHECK(found != nullptr, "JSON: no '{}' in {}", printable(name), printable(dump()));
  return *found;
}

Json& Json::operator[](std::string_view name) {
  if (!contains(name)) append(std::string(name), nullptr);
  return const_cast<Json&>(at(name));
}

void Json::append(std::string name, Json value) {
  if (is_null()) kind_ = Kind::kObject;
  WEFT_CHECK(is_object(), "JSON: {} is not an object", dump());
  members_.push_back({std::move(name), std::move(value)});
}

void Json::erase(std::string_view name) {
  std::erase_if(members_, [&](const Member& member) { return member.name == name; });
}

void Json::sort_members() {
  std::sort(members_.begin(), members_.end(),
            [](const Member& a, const Member& b) { return a.name < b.name; });
}

bool Json::equals(const Json& other) const {
  if (is_number() && other.is_number()) {
    if (!is_whole() || !other.is_whole()) return get<double>() == other.get<double>();
    const auto is_negative = [](const Json& value) {
      return value.kind_ == Kind::kSigned && static_cast<int64_t>(value.number_.whole) < 0;
    };
    return number_.whole == other.number_.whole && is_negative(*this) == is_negative(other);
  }
  if (kind_ != other.kind_ || members_.size() != other.members_.size()) return false;
  if (kind_ == Kind::kBool) return number_.whole == other.number_.whole;
  return text_ == other.text_ && items_ == other.items_ &&
         std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
           const Json* same = other.find(member.name);
           return same != nullptr && *same == member.value;
         });
}

std::ostream& Json::print_to(std::ostream& stream) const {
  return stream << dump(-1, BadText::kReplace);
}

std::string Json::dump(int indent, BadText bad_text) const {
  std::string out;
  write(out, indent, 0, bad_text);
  return out;
}

void Json::write(std::string& out, int indent, int level, BadText bad_text) const {
  const auto new_line = [&](int at) {
    if (indent >= 0) out.append(1, '\n').append(static_cast<size_t>(indent * at), ' ');
  };
  const auto enclose = [&](const char* brackets, size_t count, const auto& write_one) {
    out += brackets[0];
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out += ',';
      new_line(level + 1);
      write_one(i);
    }
    if (count > 0) new_line(level);
    out += brackets[1];
  };
  switch (kind_) {
    case Kind::kNull: out += "null"; break;
    case Kind::kBool: out += number_.whole != 0 ? "true" : "false"; break;
    case Kind::kSigned: out += std::to_string(static_cast<int64_t>(number_.whole)); break;
    case Kind::kUnsigned: out += std::to_string(number_.whole); break;
    case Kind::kReal: out += leaf_text(number_.real, bad_text); break;
    case Kind::kText: out += leaf_text(text_, bad_text); break;
    case Kind::kList:
      enclose("[]", items_.size(),
              [&](size_t i) { items_[i].write(out, indent, level + 1, bad_text); });
      break;
    case Kind::kObject:
      enclose("{}", members_.size(), [&](size_t i) {
        out += leaf_text(members_[i].name, bad_text);
        out += indent >= 0 ? ": " : ":";
        members_[i].value.write(out, indent, level + 1, bad_text);
      });
      break;
  }
}

}  // namespace weft
