// Replaces the shards under an index atomically.
//
// A rename replaces one file, and a sharded checkpoint has several. So while shards are replaced,
// the new ones have names of their own, and the index, which is one file, says which names count:
//
//   1. the new shards appear as .in-place-K.NAME        index: the old shards
//   2. the index is replaced                            index: .in-place-K.NAME, all new
//   3. NAME becomes a second name of each (a hard link)
//   4. the index is replaced again                      index: NAME, all new
//   5. .in-place-K.NAME are removed
//
// The mark stands in front because readers choose a loader by the ending of a name.
//
// Whenever the process is killed, the index leads to all of the old shards or to all of the new
// ones. Files that a killed process leaves and no index refers to are removed when shards of the
// same names are written there again.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/safetensors.h"

namespace weft {

inline constexpr std::string_view kIndexEnding = ".index.json";  // of its name

struct NewShard {
  std::string name;  // that it is to have in the end
  SafetensorsWriter* file = nullptr;
};

// Commits shards and their index. index_text: the index for shards of these names, in the order of
// `shards`. If neither the index nor a file of these names exists, nothing leads to the shards
// before the index is written, and they take their names at once.
using IndexText = std::function<std::string(const std::vector<std::string>& names)>;
void commit_shards(const std::filesystem::path& index, const std::vector<NewShard>& shards,
                   const IndexText& index_text);

// NAME of .in-place-K.NAME, which an index leads to if a process was killed between 2 and 4; any
// other name as it is.
std::string settled_name(const std::string& name);

}  // namespace weft
