#include "weft/report/html.h"

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char c : printable(text, std::string_view::npos)) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

HtmlTable::HtmlTable(std::string caption, std::vector<std::string> headings)
    : caption_(std::move(caption)) {
  for (std::string& heading : headings) {
    right_.push_back(heading.starts_with('>'));
    headings_.push_back(right_.back() ? heading.substr(1) : std::move(heading));
  }
}

void HtmlTable::add(const std::vector<Html>& cells) {
  WEFT_CHECK(cells.size() == headings_.size(), "a row of {} cells in a table of {} columns",
             cells.size(), headings_.size());
  rows_ += Html::trusted("<tr>");
  for (size_t c = 0; c < cells.size(); ++c) {
    const Html side = Html::trusted(right_[c] ? " class=\"n\"" : "");
    rows_ += c == 0 ? weft::html("<th scope=\"row\"{}>{}</th>", side, cells[c])
                    : weft::html("<td{}>{}</td>", side, cells[c]);
  }
  rows_ += Html::trusted("</tr>\n");
}

Html HtmlTable::html() const {
  Html heads;
  for (size_t c = 0; c < headings_.size(); ++c) {
    heads += weft::html("<th scope=\"col\"{}>{}</th>",
                        Html::trusted(right_[c] ? " class=\"n\"" : ""), headings_[c]);
  }
  return weft::html(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">\n"
      "<table><caption>{}</caption>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody></table>\n"
      "</div>\n",
      caption_, caption_, heads, rows_);
}

}  // namespace weft
