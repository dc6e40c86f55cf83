// weft.packed: which tensors of a file are packed, as JSON text in its metadata.
//
//   {"version": 1, "tensors": {"fc1.weight": {"pattern": "2:4", "dtype": "F32",
//                                             "shape": [3072, 768], "index_bits": 2}}}
//
// dtype and shape are those of the weight before it was packed; with "transposed": true it was
// stored [ins, outs], and is packed as [outs, ins]. docs/format.md describes the file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weft/checkpoint/header.h"
#include "weft/core/pattern.h"

namespace weft {

struct PackedEntry {
  Pattern pattern;
  Dtype dtype;
  std::vector<int64_t> shape;
  int index_bits;
  bool transposed = false;

  std::vector<int64_t> dims() const;  // [outs, ins] or [outs, ins, kh, kw]
};
using PackedEntries = std::map<std::string, PackedEntry>;  // by the name of the weight

inline constexpr const char* kPackedKey = "weft.packed";

// Throws Error that begins with `file` if the metadata has the key, but nothing that we know.
PackedEntries packed_entries_from(const Metadata& metadata, const std::string& file);
// Replaces the text; removes it if there are no entries.
void store_packed_entries(const PackedEntries& entries, Metadata& metadata);

}  // namespace weft
