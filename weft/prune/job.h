// What the functions from checkpoint to checkpoint have in common (check_checkpoint.h,
// mask_checkpoint.h, pack_checkpoint.h, merge_checkpoint.h, convert_checkpoint.h): where the result
// goes, how progress is reported, and how an option that does not fit the files is reported.
//
// They take paths and typed options, return a report with typed fields, and print nothing. What is
// wrong with a file is an Error; an option that does not fit is an OptionError; an output that
// would replace an input is an OverwriteError (same_file.h). Nothing is written then.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/select.h"

namespace weft {

// Callbacks while a function works. Both may be empty.
struct Listener {
  std::function<void(uint64_t done, uint64_t total)> progress;  // in bytes; done never falls
  std::function<void(const std::string&)> note;                 // what a user should know, one line
};

// Adds up what is done.
class ByteProgress {
 public:
  ByteProgress(const Listener& listener, uint64_t total) : listener_(listener), total_(total) {}
  void add(uint64_t bytes) {
    done_ += bytes;
    if (listener_.progress) listener_.progress(done_, total_);
  }

 private:
  const Listener& listener_;
  uint64_t total_;
  uint64_t done_ = 0;
};

// An option that is missing, or that does not fit the files. option(): the name of the field, such
// as in_place; problem() follows it without a gap, so that a command line can write its flag there.
class OptionError : public Error {
 public:
  OptionError(const std::string& option, const std::string& problem)
      : Error(option + problem), option_(option), problem_(problem) {}

  const std::string& option() const { return option_; }
  const std::string& problem() const { return problem_; }

 private:
  std::string option_, problem_;
};

// A Selection for a checkpoint, or for its tensors as they were before they were packed; its note
// goes to the listener.
Selection select_tensors(const NameExpressions& names, const Checkpoint& checkpoint,
                         const std::vector<TensorInfo>& tensors, const Listener& listener);
Selection select_tensors(const NameExpressions& names, const Checkpoint& checkpoint,
                         const Listener& listener);

// Where a checkpoint that is made from another one goes: a file; for shards, a folder or a name that
// ends in .index.json. If the other one was named by its folder, so is this one (unless the name
// ends in .safetensors), and what stands beside the weights is copied (checkpoint/companions.h).
struct Destination {
  std::filesystem::path path;
  bool in_place = false;  // `path` is the checkpoint that it is made from, which is replaced
};

struct Output {
  std::filesystem::path path;   // in place, the file itself if `path` was its folder
  std::vector<KeptFiles> kept;  // what CheckpointWriter must not replace
  Companions companions;
};
// `from`: the checkpoint that the result is made from; `name`: the word for it in messages, as
// "IN". Throws OptionError if in_place is asked for and the path is another checkpoint. That the
// files of `from` are not overwritten otherwise is up to output_files or CheckpointWriter
// (checkpoint.h).
Output output_of(const Destination& destination, const Checkpoint& from, const std::string& name,
                 const CheckpointLayout& layout);

}  // namespace weft
