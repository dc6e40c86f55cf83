#include "weft/data/data.h"

#include <array>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/data/cifar10.h"
#include "weft/data/idx.h"

namespace weft {
namespace {

constexpr const char* kKnown = "known are glyphs, idx:DIR, cifar10:DIR, text:PATH, text";

struct Kind {
  std::string_view name;
  DataKind kind;
  bool takes_path;
  bool needs_path;
};
constexpr std::array<Kind, 4> kKinds = {{{"glyphs", DataKind::kGlyphs, false, false},
                                         {"idx", DataKind::kIdx, true, true},
                                         {"cifar10", DataKind::kCifar10, true, true},
                                         {"text", DataKind::kText, true, false}}};

}  // namespace

DataSpec DataSpec::parse(std::string_view text) {
  const size_t colon = text.find(':');
  const bool has_path = colon != std::string_view::npos;
  const std::string_view name = text.substr(0, colon);
  const std::string_view path = has_path ? text.substr(colon + 1) : std::string_view();
  WEFT_CHECK(path.find('\0') == std::string_view::npos, "data '{}': a path has no zero byte",
             printable(text));
  for (const Kind& kind : kKinds) {
    if (kind.name != name) continue;
    WEFT_CHECK(kind.takes_path || !has_path, "data '{}': {} takes no path; {}", printable(text),
               name, kKnown);
    WEFT_CHECK(has_path ? !path.empty() : !kind.needs_path, "data '{}': the path is missing; {}",
               printable(text), kKnown);
    return {kind.kind, std::filesystem::path(path)};
  }
  throw Error(fmt::format("data '{}' is unknown; {}", printable(text), kKnown));
}

std::string DataSpec::to_string() const {
  for (const Kind& row : kKinds) {
    if (row.kind != kind) continue;
    return path.empty() ? std::string(row.name) : fmt::format("{}:{}", row.name, path.string());
  }
  throw Error("this kind of data is not in the table");
}

Data load_data(const DataSpec& spec, const GlyphOptions& glyphs) {
  switch (spec.kind) {
    case DataKind::kGlyphs: return make_glyphs(glyphs);
    case DataKind::kIdx: return read_idx(spec.path);
    case DataKind::kCifar10: return read_cifar10(spec.path);
    case DataKind::kText: return read_text(spec.path.empty() ? default_text_path() : spec.path);
  }
  throw Error("this kind of data is not in the table");
}

}  // namespace weft
