#include "weft/checkpoint/companions.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/regular_file.h"
#include "weft/core/same_file.h"
#include "weft/core/text.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostCompanionBytes = 100'000'000;

// Weights, in the formats of the frameworks, and what leads to them. A .bin may be anything, and is
// weights or the arguments of a training in practice.
constexpr std::string_view kWeightEndings[] = {
    ".safetensors", ".index.json", ".bin",  ".pt",        ".pth",    ".ckpt", ".h5",   ".hdf5",
    ".msgpack",     ".ot",         ".onnx", ".onnx_data", ".gguf",   ".ggml", ".ggjt", ".tflite",
    ".mlmodel",     ".npz",        ".npy",  ".pkl",       ".pickle", ".tar",  ".zip",  ".gz"};

bool has_weights(const std::string& name) {
  return std::ranges::any_of(kWeightEndings,
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

// Names of a folder, without hidden ones.
std::vector<std::string> companion_names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure); !failure && entry != fs::directory_iterator();
       entry.increment(failure)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with('.')) names.push_back(std::move(name));
  }
  WEFT_CHECK(!failure, "{}: cannot read the folder: {}", folder.string(), failure.message());
  std::ranges::sort(names);
  return names;
}

// The folders that modules.json names: plain names beside it.
std::set<std::string> module_folders(const fs::path& folder) {
  const fs::path path = folder / "modules.json";
  std::error_code ignored;
  std::set<std::string> names;
  if (!fs::exists(path, ignored)) return names;
  const Json modules = Json::parse(read_small_file(path), path.string());
  for (const Json& module : modules) {
    if (!module.is_object() || !module.contains("path") || !module["path"].is_string()) continue;
    const auto name = module["path"].get<std::string>();
    if (!name.empty() && name[0] != '.' && name.find('/') == std::string::npos) names.insert(name);
  }
  return names;
}

// Adds a file to one of the lists of companions, unless it is none.
void add_file(const fs::path& name, bool weights_too, Companions& companions) {
  const fs::path path = companions.folder / name;
  std::error_code failure;
  if (fs::status(path, failure).type() != fs::file_type::regular) return;
  const uint64_t bytes = fs::file_size(path, failure);
  const bool fits = !failure && bytes < kMostCompanionBytes;
  const bool takes = fits && (weights_too || !has_weights(name.string()));
  const bool of_weft = !weights_too && (name.string().ends_with(".safetensors") ||
                                        name.string().ends_with(".safetensors.index.json"));
  if (takes) companions.names.push_back(name);
  if (!takes && !of_weft) companions.left.push_back(name);
}

}  // namespace

Companions companions_of(const fs::path& folder) {
  Companions companions{folder, {}, {}};
  const std::set<std::string> modules = module_folders(folder);
  for (const std::string& name : companion_names_in(folder)) {
    std::error_code failure;
    if (modules.contains(name) && fs::is_directory(folder / name, failure)) {
      for (const std::string& part : companion_names_in(folder / name)) {
        add_file(fs::path(name) / part, true, companions);
      }
    } else {
      add_file(name, false, companions);
    }
  }
  return companions;
}

CompanionCopies::CompanionCopies(const Companions& companions, const fs::path& to) {
  for (const fs::path& name : companions.names) {
    Copy copy;
    copy.from = companions.folder / name;
    copy.to = to / name;
    std::error_code failure;
    if (FileIdentity::of(copy.from) == FileIdentity::of(copy.to)) continue;
    WEFT_CHECK(!fs::is_symlink(copy.to, failure),
               "{}: cannot write: it is a symbolic link, which weft does not follow here: remove "
               "it, or choose another folder",
               copy.to.string());
    copy.is_new = !fs::exists(copy.to, failure);
    copies_.push_back(std::move(copy));
  }
}

void CompanionCopies::write() {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  std::vector<std::byte> buffer(kPieceBytes);
  for (Copy& copy : copies_) {
    const fs::path folder = copy.to.parent_path();
    std::error_code failure;
    if (!fs::is_directory(folder, failure)) {
      folders_.push_back(std::make_unique<NewFolder>(folder));
    }
    copy.file = std::make_unique<AtomicFile>(copy.to);
    const int fd = open_regular_file(copy.from);
    uint64_t offset = 0;
    while (true) {
      const ssize_t count = ::read(fd, buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        const int problem = errno;
        ::close(fd);
        WEFT_CHECK(count == 0, "{}: cannot read: {}", copy.from.string(), std::strerror(problem));
        break;
      }
      copy.file->write_at(offset, std::span(buffer).first(static_cast<size_t>(count)));
      offset += static_cast<uint64_t>(count);
    }
    copy.file->sync();
  }
}

void CompanionCopies::commit() {
  for (Copy& copy : copies_) {
    if (copy.is_new) copy.unfinished = UnfinishedPath(copy.to);
    copy.file->commit();
    copy.appeared = true;
  }
}

void CompanionCopies::keep() {
  for (Copy& copy : copies_) copy.unfinished = {};
  for (const auto& folder : folders_) folder->keep();
  copies_.clear();
}

CompanionCopies::~CompanionCopies() {
  for (const Copy& copy : copies_) {
    if (copy.is_new && copy.appeared) ::unlink(copy.to.c_str());
  }
}

}  // namespace weft
