// Data to train on, by the name that a user gives it:
//
//   glyphs        drawn characters, generated (glyphs.h)
//   idx:DIR       the files of MNIST and its family, gzip or not (idx.h)
//   cifar10:DIR   the binary version of CIFAR-10 (cifar10.h)
//   text:PATH     a file or a folder, as bytes (text_set.h); `text` alone: the C++ headers here
//
// Everything is in memory after load_data. A broken or missing file is an Error that names it.
// The order of samples is in sample_order.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>

#include "weft/data/glyphs.h"
#include "weft/data/image_set.h"
#include "weft/data/sample_order.h"
#include "weft/data/text_set.h"

namespace weft {

enum class DataKind : uint8_t { kGlyphs, kIdx, kCifar10, kText };

struct DataSpec {
  DataKind kind = DataKind::kGlyphs;
  std::filesystem::path path;  // empty for glyphs, and for the default text

  static DataSpec parse(std::string_view text);
  std::string to_string() const;  // parse gives it back
};

using Data = std::variant<ImageData, TextData>;

// `glyphs` says how many are drawn, and from which seed; other kinds do not read it.
Data load_data(const DataSpec& spec, const GlyphOptions& glyphs = {});

}  // namespace weft
