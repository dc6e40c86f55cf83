#include "weft/checkpoint/checkpoint.h"

#include <algorithm>
#include <set>

#include "weft/checkpoint/shard_set.h"
#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderEndings[] = {".safetensors.index.json", ".safetensors"};
constexpr uint64_t kMaxIndexBytes = 32'000'000;
constexpr size_t kCopyBytes = size_t{8} << 20;

std::vector<fs::path> files_ending_in(const fs::path& folder, std::string_view ending) {
  std::vector<fs::path> found;
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure); !failure && entry != fs::directory_iterator();
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(ending) && !name.starts_with('.')) found.push_back(entry->path());
  }
  WEFT_CHECK(!failure, "{}: cannot read the folder: {}", folder.string(), failure.message());
  return found;
}

// The index of a folder, or else its only safetensors file.
fs::path entry_of_folder(const fs::path& folder) {
  for (const std::string_view ending : kFolderEndings) {
    const std::vector<fs::path> found = files_ending_in(folder, ending);
    if (found.size() == 1) return found.front();
    WEFT_CHECK(found.empty(), "{}: {} files end in {}: name one of them", folder.string(),
               found.size(), ending);
  }
  throw Error(fmt::format("{}: no .safetensors file and no .safetensors.index.json in the folder",
                          folder.string()));
}

// A shard is a file beside its index: a name that leads elsewhere is refused. So is one that no
// message could print as it is, or that no file can have.
bool is_plain_file_name(const std::string& name) {
  constexpr size_t kMostBytes = 255;
  return !name.empty() && name.size() <= kMostBytes && name != "." && name != ".." &&
         name.find('/') == std::string::npos && printable(name, kMostBytes) == name;
}

std::map<std::string, std::string> parse_weight_map(const Json& document, const fs::path& path) {
  WEFT_CHECK(
      document.is_object() && document.contains("weight_map") && document["weight_map"].is_object(),
      "{}: no object 'weight_map'", path.string());
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : document["weight_map"].members()) {
    WEFT_CHECK(shard.is_string() && is_plain_file_name(shard.get<std::string>()),
               "{}: tensor '{}': {} is not the name of a file beside the index", path.string(),
               printable(name), printable(shard.dump()));
    shard_of[name] = shard.get<std::string>();
  }
  return shard_of;
}

fs::path shard_name(const Checkpoint& checkpoint, size_t i) {
  return checkpoint.shard(i).path().filename();
}

// With these names for the shards.
std::string index_text(const CheckpointLayout& layout, const std::vector<std::string>& names) {
  std::map<std::string, std::string> shard_of;
  for (size_t i = 0; i < names.size(); ++i) {
    for (const TensorInfo& tensor : layout.shards[i].tensors) shard_of[tensor.name] = names[i];
  }
  // Not simply the sum: some programs count it otherwise.
  Json metadata = Json::parse(layout.index_metadata, "the metadata of the index");
  if (metadata.is_object() && metadata.contains("total_size") &&
      metadata["total_size"].is_number_unsigned()) {
    metadata["total_size"] =
        metadata["total_size"].get<uint64_t>() + layout.bytes() - layout.bytes_before;
  }
  return Json{{"metadata", metadata}, {"weight_map", shard_of}}.dump(2) + "\n";
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& path) {
  Checkpoint checkpoint;
  std::error_code failure;
  fs::path file = path;
  if (fs::is_directory(path, failure)) {
    checkpoint.folder_ = path;
    file = entry_of_folder(path);
  }
  if (file.string().ends_with(kIndexEnding)) {
    checkpoint.read_index(file);
  } else {
    checkpoint.add_shard(file);
  }
  return checkpoint;
}

void Checkpoint::add_shard(const fs::path& path) {
  const SafetensorsReader& shard = shards_.emplace_back(path);
  const size_t number = shards_.size() - 1;
  for (const TensorInfo& info : shard.header().tensors) tensors_.push_back({info, number});
}

void Checkpoint::read_index(const fs::path& path) {
  const Json document = Json::parse(read_small_file(path, kMaxIndexBytes), path.string());
  const std::map<std::string, std::string> shard_of = parse_weight_map(document, path);
  index_ = Index{path, document.contains("metadata") ? document["metadata"].dump() : "{}"};

  std::set<std::string> names;
  for (const auto& [tensor, shard] : shard_of) names.insert(shard);
  for (const std::string& name : names) add_shard(path.parent_path() / name);

  for (const ShardedTensor& tensor : tensors_) {
    const auto found = shard_of.find(tensor.info.name);
    WEFT_CHECK(found != shard_of.end(), "{}: tensor '{}' is not in the index {}", file_of(tensor),
               printable(tensor.info.name), path.filename().string());
    WEFT_CHECK(found->second == shard_name(*this, tensor.shard).string(),
               "{}: has tensor '{}', but the index says {}", file_of(tensor),
               printable(tensor.info.name), printable(found->second));
  }
  std::set<std::string> present;
  for (const ShardedTensor& tensor : tensors_) present.insert(tensor.info.name);
  for (const auto& [name, shard] : shard_of) {
    WEFT_CHECK(present.contains(name), "{}: tensor '{}' is not in {}, where the index says it is",
               path.string(), printable(name), shard);
  }
}

uint64_t Checkpoint::bytes() const {
  uint64_t total = 0;
  for (const ShardedTensor& tensor : tensors_) total += tensor.info.bytes();
  return total;
}

Sparsity Checkpoint::sparsity() const {
  Sparsity all;
  for (const SafetensorsReader& shard : shards_) {
    Sparsity sparsity = Sparsity::from_metadata(shard.header().metadata, shard.path().string());
    all.tensors.merge(sparsity.tensors);
  }
  return all;
}

std::vector<fs::path> Checkpoint::paths() const {
  std::vector<fs::path> all;
  if (index_) all.push_back(index_->path);
  for (const SafetensorsReader& shard : shards_) all.push_back(shard.path());
  return all;
}

void Checkpoint::read(const ShardedTensor& tensor, uint64_t offset,
                      std::span<std::byte> out) const {
  shards_[tensor.shard].read(tensor.info, offset, out);
}

std::string Checkpoint::file_of(const ShardedTensor& tensor) const {
  return shards_[tensor.shard].path().string();
}

CheckpointLayout Checkpoint::layout() const {
  CheckpointLayout result;
  for (size_t i = 0; i < shard_count(); ++i) {
    const Header& header = shard(i).header();
    const std::string name = settled_name(shard_name(*this, i).string());
    result.shards.push_back({name, header.tensors, header.metadata});
  }
  if (index_) {
    result.index = index_->path.filename();
    result.index_metadata = index_->metadata;
  }
  result.bytes_before = bytes();
  return result;
}

uint64_t CheckpointLayout::bytes() const {
  uint64_t total = 0;
  for (const ShardLayout& shard : shards) {
    for (const TensorInfo& tensor : shard.tensors)
      total += tensor_bytes(tensor.dtype, tensor.shape);
  }
  return total;
}

CheckpointLayout with_sparsity(CheckpointLayout layout, const Sparsity& sparsity) {
  for (ShardLayout& shard : layout.shards) {
    Sparsity of_shard;
    for (const TensorInfo& tensor : shard.tensors) {
      const auto promised = sparsity.tensors.find(tensor.name);
      if (promised != sparsity.tensors.end()) of_shard.tensors.insert(*promised);
    }
    of_shard.store_in(shard.metadata);
  }
  return layout;
}

std::vector<fs::path> output_files(const fs::path& target, const CheckpointLayout& layout,
                                   const std::vector<KeptFiles>& kept) {
  std::vector<fs::path> files;
  if (layout.index) {
    WEFT_CHECK(!target.string().ends_with(".safetensors"),
               "{}: the input is sharded: the output is a folder, or a name that ends in {}",
               target.string(), kIndexEnding);
    const bool names_index = target.string().ends_with(kIndexEnding);
    files.push_back(names_index ? target : target / *layout.index);
    for (const ShardLayout& shard : layout.shards) {
      files.push_back(files.front().parent_path() / shard.name);
    }
    for (const fs::path& file : files) {
      std::error_code failure;
      WEFT_CHECK(!fs::is_symlink(file, failure),
                 "{}: cannot write: it is a symbolic link, which weft does not follow here: remove "
                 "it, or choose another folder",
                 file.string());
    }
  } else {
    files.push_back(target);
  }
  refuse_overwriting("OUT", files, kept);
  return files;
}

CheckpointWriter::CheckpointWriter(const fs::path& target, const Checkpoint& like,
                                   const Sparsity& sparsity, const std::vector<KeptFiles>& kept,
                                   const Companions& companions)
    : CheckpointWriter(target, with_sparsity(like.layout(), sparsity), kept, companions) {}

CheckpointWriter::CheckpointWriter(const fs::path& target, const CheckpointLayout& layout,
                                   const std::vector<KeptFiles>& kept, const Companions& companions)
    : layout_(layout), targets_(output_files(target, layout, kept)) {
  const fs::path folder = targets_.front().parent_path();
  const bool in_folder = layout.index || !companions.folder.empty();
  if (in_folder && !folder.empty()) folder_ = NewFolder(folder);
  if (!companions.folder.empty()) {
    companions_ = std::make_unique<CompanionCopies>(companions, folder.empty() ? "." : folder);
  }
  for (size_t i = 0; i < layout.shards.size(); ++i) {
    const ShardLayout& shard = layout.shards[i];
    shards_.push_back(std::make_unique<SafetensorsWriter>(targets_[i + (layout.index ? 1 : 0)],
                                                          shard.tensors, shard.metadata));
  }
}

void CheckpointWriter::write(const ShardedTensor& tensor, uint64_t offset,
                             std::span<const std::byte> bytes) {
  shards_.at(tensor.shard)->write(tensor.info.name, offset, bytes);
}

void CheckpointWriter::copy(const Checkpoint& from, const ShardedTensor& tensor) {
  std::vector<std::byte> buffer(std::min<uint64_t>(kCopyBytes, tensor.info.bytes()));
  for (uint64_t offset = 0; offset < tensor.info.bytes(); offset += buffer.size()) {
    const std::span<std::byte> piece =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), tensor.info.bytes() - offset));
    from.read(tensor, offset, piece);
    write(tensor, offset, piece);
  }
}

void CheckpointWriter::sync() {
  for (const auto& shard : shards_) shard->sync();
}

void CheckpointWriter::commit() {
  if (companions_) companions_->write();
  sync();
  if (companions_) companions_->commit();
  if (layout_.index) {
    std::vector<NewShard> shards;
    for (size_t i = 0; i < shards_.size(); ++i) {
      shards.push_back({layout_.shards[i].name.string(), shards_[i].get()});
    }
    commit_shards(targets_.front(), shards,
                  [&](const auto& names) { return index_text(layout_, names); });
  } else {
    for (const auto& shard : shards_) shard->commit();
  }
  if (companions_) companions_->keep();
  folder_.keep();
}

}  // namespace weft
