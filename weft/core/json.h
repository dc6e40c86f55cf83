// JSON, read strictly and written: the one place that knows nlohmann-json.
//
//   const Json document = Json::parse(text, "model.safetensors: weft.sparsity");   throws Error
//   Json{{"name", "fc1"}, {"shape", {24, 40}}}.dump()      {"name":"fc1","shape":[24,40]}
//
// nlohmann's own type takes ten seconds of compiler in every source that uses it; this one is a
// plain value with the same names for the same things, and json.cpp alone includes the template.
// Objects that are made keep the order in which their members came; those that are read stand
// sorted by name, so that what is read and written again is always the same.
//
// Finding a member looks at all of them: go through a large object with `members`, and make one
// with `append`. A new member or item leaves no reference to the others valid, as in a std::vector.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

class Json {
 public:
  struct Member;
  enum class BadText { kRefuse, kReplace };  // that is not UTF-8, when it is written

  Json(std::nullptr_t = nullptr);  // null
  Json(double value);
  Json(std::string text);
  Json(std::string_view text);
  Json(const char* text);
  Json(const std::map<std::string, std::string>& texts);
  // An object if all are lists of a text and a value, else a list.
  Json(std::initializer_list<Json> values);
  template <std::integral Number>
  Json(Number value) : kind_(kind_of<Number>()) {
    number_.whole = static_cast<uint64_t>(value);
  }
  template <typename Value>
  Json(const std::vector<Value>& values) : Json(array()) {
    for (const Value& value : values) items_.emplace_back(value);
  }
  static Json array();
  static Json object();

  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  // Throws Error that begins with `what` (a file, a metadata entry): no duplicate names, no deep
  // nesting, well-formed UTF-8.
  static Json parse(std::string_view text, const std::string& what);
  static Json parse_or_null(std::string_view text);
  // On one line, or with `indent` spaces per level. Text that is not UTF-8 is an Error, or its
  // wrong bytes are replaced.
  std::string dump(int indent = -1, BadText bad_text = BadText::kRefuse) const;

  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_number() const { return is_whole() || kind_ == Kind::kReal; }
  bool is_number_unsigned() const { return kind_ == Kind::kUnsigned; }
  bool is_boolean() const { return kind_ == Kind::kBool; }
  bool is_string() const { return kind_ == Kind::kText; }
  bool is_array() const { return kind_ == Kind::kList; }
  bool is_object() const { return kind_ == Kind::kObject; }

  // The value as a bool, a number or a std::string. Throws Error if it is none, or not a whole
  // number of that type where one is asked for.
  template <typename Value>
  Value get() const {
    if constexpr (std::same_as<Value, std::string>) {
      return text();
    } else if constexpr (std::same_as<Value, bool>) {
      return boolean();
    } else {
      require_number();
      if constexpr (std::integral<Value>) {
        const bool fits = kind_ == Kind::kSigned
                              ? std::in_range<Value>(static_cast<int64_t>(number_.whole))
                              : std::in_range<Value>(number_.whole);
        if (kind_ == Kind::kReal || !fits) refuse_as_whole();
        return static_cast<Value>(number_.whole);
      } else {
        if (kind_ == Kind::kReal) return static_cast<Value>(number_.real);
        return kind_ == Kind::kSigned ? static_cast<Value>(static_cast<int64_t>(number_.whole))
                                      : static_cast<Value>(number_.whole);
      }
    }
  }

  size_t size() const;  // items of a list, members of an object; 0 for null, 1 for all others
  bool empty() const { return size() == 0; }

  const Json& operator[](size_t i) const { return items_.at(i); }
  Json& operator[](size_t i) { return items_.at(i); }
  void push_back(Json value);  // null becomes a list
  std::vector<Json>::const_iterator begin() const { return items_.begin(); }
  std::vector<Json>::const_iterator end() const { return items_.end(); }

  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const Json& at(std::string_view name) const;  // throws Error if there is none
  const Json& operator[](std::string_view name) const { return at(name); }
  Json& operator[](std::string_view name);    // made if there is none; null becomes an object
  void append(std::string name, Json value);  // the caller knows that the name is new
  void erase(std::string_view name);
  void sort_members();  // by name
  const std::vector<Member>& members() const { return members_; }

  friend bool operator==(const Json& a, const Json& b) { return a.equals(b); }
  friend std::ostream& operator<<(std::ostream& stream, const Json& value) {
    return value.print_to(stream);
  }

 private:
  enum class Kind : uint8_t { kNull, kBool, kSigned, kUnsigned, kReal, kText, kList, kObject };

  template <typename Number>
  static constexpr Kind kind_of() {
    if (std::same_as<Number, bool>) return Kind::kBool;
    return std::signed_integral<Number> ? Kind::kSigned : Kind::kUnsigned;
  }
  bool is_whole() const { return kind_ == Kind::kSigned || kind_ == Kind::kUnsigned; }
  void require_number() const;
  [[noreturn]] void refuse_as_whole() const;
  const std::string& text() const;
  bool boolean() const;
  const Json* find(std::string_view name) const;
  bool equals(const Json& other) const;
  std::ostream& print_to(std::ostream& stream) const;
  void write(std::string& out, int indent, int level, BadText bad_text) const;

  Kind kind_ = Kind::kNull;
  union {
    uint64_t whole;  // two's complement if signed; 0 or 1 if bool
    double real;
  } number_ = {0};
  std::string text_;
  std::vector<Json> items_;
  std::vector<Member> members_;
};

struct Json::Member {
  std::string name;
  Json value;
};

// The events of a JSON text, in order, for callers that need no document.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void null() = 0;
  virtual void boolean(bool value) = 0;
  virtual void negative(int64_t value) = 0;
  virtual void whole(uint64_t value) = 0;
  virtual void real(double value, const std::string& text) = 0;  // or too large to be whole
  virtual void text(std::string& value) = 0;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void begin_object() = 0;
  virtual void name(std::string& name) = 0;  // of the member that comes next
  virtual void end_object() = 0;
};

// Throws Error "<subject> not valid JSON: ..."; the events may throw as well.
void read_json(std::string_view text, const std::string& subject, JsonEvents& events);

}  // namespace weft
