// Html: pieces of a page, in which everything that comes from outside is escaped.
//
//   html("<td>{}</td>", layer.name)      a layer called <script> is text
//   html("<tr>{}</tr>", cells)           cells: Html, as it is
//
// The format is a literal of weft's own sources. Texts that are arguments are escaped, so that
// nobody can forget it; only what is Html already is taken as it is.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

class Html {
 public:
  Html() = default;
  // Code that does not come from outside, or is escaped.
  static Html trusted(std::string code) {
    Html html;
    html.code_ = std::move(code);
    return html;
  }

  const std::string& str() const { return code_; }
  bool empty() const { return code_.empty(); }
  Html& operator+=(const Html& more) {
    code_ += more.code_;
    return *this;
  }

 private:
  std::string code_;
};

// For the content of elements and for attributes in double quotes. Control characters and ill-formed
// UTF-8 become visible, as in printable().
std::string html_text(std::string_view text);

// What an argument of html() becomes: numbers stay, all others are text.
template <typename Argument>
using HtmlArgument = std::conditional_t<std::is_arithmetic_v<std::remove_cvref_t<Argument>>,
                                        std::remove_cvref_t<Argument>, std::string>;

template <typename Argument>
HtmlArgument<Argument> html_argument(const Argument& argument) {
  if constexpr (std::is_arithmetic_v<Argument>) {
    return argument;
  } else if constexpr (std::is_same_v<Argument, Html>) {
    return argument.str();
  } else {
    return html_text(argument);
  }
}

template <typename... Arguments>
Html html(fmt::format_string<HtmlArgument<Arguments>...> format, const Arguments&... arguments) {
  return Html::trusted(fmt::format(format, html_argument(arguments)...));
}

// A table that scrolls sideways on a narrow screen, also by keyboard.
class HtmlTable {
 public:
  // A heading that begins with '>' is aligned to the right, without the sign: numbers.
  HtmlTable(std::string caption, std::vector<std::string> headings);

  // As many as there are headings; the first is the name of the row.
  void add(const std::vector<Html>& cells);
  bool empty() const { return rows_.empty(); }
  Html html() const;

 private:
  std::string caption_;
  std::vector<std::string> headings_;
  std::vector<bool> right_;
  Html rows_;
};

}  // namespace weft
