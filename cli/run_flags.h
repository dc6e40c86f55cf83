// The options of a training run as flags, on top of a configuration file.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "weft/run/run_options.h"

namespace weft::cli {

class RunFlags {
 public:
  // All fields but those of `except`.
  void declare(Flags& flags, const std::vector<std::string>& except = {});
  // The defaults, then the configuration file, then the flags.
  RunOptions options() const;
  // Sets what flags say, and not the configuration file.
  void apply(RunOptions& options) const;
  // The names of the options that the configuration file or a flag sets.
  std::vector<std::string> named() const;
  // The flags that were given, as in "--steps"; the configuration file counts as "--config".
  std::vector<std::string> given() const;

 private:
  struct Value {
    const OptionField* field = nullptr;
    std::string text;
    std::vector<std::string> texts;
    bool on = false;

    std::vector<std::string> given() const;
  };
  std::string config_;
  std::vector<std::string> except_;
  std::vector<Value> values_;
};

}  // namespace weft::cli
