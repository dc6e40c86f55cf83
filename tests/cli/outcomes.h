// What a command made of every tensor of a file, by its report.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/program.h"

namespace weft::test {

// What becomes of a tensor: a reason, or one of these.
inline constexpr const char* kMasked = "";
inline constexpr const char* kMaskedTransposed = "[ins, outs]";

// What a command that lists them made of the tensors, by name.
inline std::map<std::string, std::string> outcomes(const Json& report,
                                                   const char* list = "tensors") {
  std::map<std::string, std::string> found;
  for (const Json& tensor : report[list]) {
    found[tensor["name"].get<std::string>()] =
        tensor["transposed"].get<bool>() ? kMaskedTransposed : kMasked;
  }
  for (const Json& tensor : report["skipped"]) {
    found[tensor["name"].get<std::string>()] = tensor["reason"].get<std::string>();
  }
  return found;
}

inline Json report_of(std::vector<std::string> args) {
  args.push_back("--json");
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome.code == 0 ? outcome.json() : Json::object();
}

}  // namespace weft::test
