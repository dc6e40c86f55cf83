#include "weft/prune/job.h"

#include "weft/checkpoint/shard_set.h"
#include "weft/core/text.h"

namespace weft {
namespace {

Selection noted(Selection selection, const Listener& listener) {
  const std::string note = selection.note();
  if (!note.empty() && listener.note) listener.note(note);
  return selection;
}

// Whoever reads the folder would go on reading the shards of that index, and not the file.
void refuse_index_in(const std::filesystem::path& folder) {
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    WEFT_CHECK(name.starts_with('.') || !name.ends_with(".safetensors.index.json"),
               "{}: has {}, which leads to other weights: choose another folder, or remove it",
               folder.string(), printable(name));
  }
}

}  // namespace

Selection select_tensors(const NameExpressions& names, const Checkpoint& checkpoint,
                         const std::vector<TensorInfo>& tensors, const Listener& listener) {
  return noted(Selection(names, checkpoint, tensors), listener);
}

Selection select_tensors(const NameExpressions& names, const Checkpoint& checkpoint,
                         const Listener& listener) {
  return noted(Selection(names, checkpoint), listener);
}

Output output_of(const Destination& destination, const Checkpoint& from, const std::string& name,
                 const CheckpointLayout& layout) {
  Output output{destination.path, {}, {}};
  if (!destination.in_place) {
    output.kept.push_back({name, from.paths(), true});
    const std::string text = output.path.string();
    const bool names_file = text.ends_with(".safetensors") || text.ends_with(kIndexEnding);
    std::error_code failure;
    WEFT_CHECK(layout.index || !from.folder().empty() ||
                   !std::filesystem::is_directory(output.path, failure),
               "{}: is a folder, and not a regular file: name a file in it; or name {} by its "
               "folder, so that its config.json and tokenizer are copied too",
               text, name);
    if (from.folder().empty() || names_file) return output;
    WEFT_CHECK(!std::filesystem::is_regular_file(output.path, failure),
               "{}: exists and is a file: {} is a folder, so the output is one (or a name that "
               "ends in .safetensors)",
               text, name);
    output.companions = companions_of(from.folder());
    if (!layout.index) refuse_index_in(output.path);
    if (!layout.index) output.path /= layout.shards.front().name;
    return output;
  }
  // The index comes first, if there is one: it says which files are the checkpoint.
  const std::filesystem::path source = from.paths().front();
  const std::filesystem::path folder = source.has_parent_path() ? source.parent_path() : ".";
  if (!layout.index && FileIdentity::of(output.path) == FileIdentity::of(folder)) {
    output.path = source;
  }
  const std::filesystem::path target = output_files(output.path, layout).front();
  if (FileIdentity::of(target) != FileIdentity::of(source)) {
    throw OptionError("in_place",
                      fmt::format(": OUT {} is not {} {}", target.string(), name, source.string()));
  }
  return output;
}

}  // namespace weft
