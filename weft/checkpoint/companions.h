// Companions: what stands beside the weights in a model's folder, as Hugging Face has it.
//
//   config.json, generation_config.json, tokenizer files, README.md, modelling code ...
//
// So that a checkpoint made from such a folder is a folder that loads likewise. Taken are the
// regular files of the folder, symbolic links followed, and the folders that modules.json names (of
// sentence-transformers, whole: their dense layers are part of the model). Left behind are hidden
// files, files of 100 MB or more, and by their endings weights, in any format, and indices of them.
//
// Memory: 1 MB.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "weft/core/atomic_file.h"

namespace weft {

struct Companions {
  std::filesystem::path folder;              // where they are; empty: none are asked for
  std::vector<std::filesystem::path> names;  // relative to it, sorted
  std::vector<std::filesystem::path> left;   // likewise: neither taken nor weights of weft
};

// Throws Error if the folder or its modules.json cannot be read.
Companions companions_of(const std::filesystem::path& folder);

// Copies companions beside a checkpoint that is about to appear. Folders are made as needed. What
// was not there before goes again, with the folders, unless keep() is called: also when a signal
// ends the program (remove_unfinished_files).
class CompanionCopies {
 public:
  // The folder `to` exists. Throws Error if one of the files there is a symbolic link to anything
  // but the companion itself, which is then left as it is.
  CompanionCopies(const Companions& companions, const std::filesystem::path& to);
  ~CompanionCopies();
  CompanionCopies(const CompanionCopies&) = delete;
  CompanionCopies& operator=(const CompanionCopies&) = delete;

  void write();   // under temporary names, down to the disk
  void commit();  // by their own names; a file that is there is replaced
  void keep();

 private:
  struct Copy {
    std::filesystem::path from, to;
    std::unique_ptr<AtomicFile> file;
    bool is_new = false, appeared = false;
    UnfinishedPath unfinished;
  };

  std::vector<std::unique_ptr<NewFolder>> folders_;
  std::vector<Copy> copies_;
};

}  // namespace weft
