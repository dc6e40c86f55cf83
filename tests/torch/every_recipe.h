// Loops over the recipes, layers and patterns that tests of layers have in common.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/layers.h"

namespace weft::test {

inline constexpr Kind kKinds[] = {Kind::kLinear, Kind::kConv};

inline std::string label(Kind kind, const std::string& recipe, const std::string& pattern) {
  return fmt::format("{} {} {}", kind_name(kind), recipe, pattern);
}

// Calls body(kind, recipe, pattern) for every recipe of the table and a few free ones.
template <typename Body>
void for_every_recipe(const std::vector<std::string>& patterns, Body body) {
  for (const Kind kind : kKinds) {
    for (const std::string& recipe : all_recipes()) {
      for (const std::string& pattern : patterns) {
        SCOPED_TRACE(label(kind, recipe, pattern));
        body(kind, recipe, pattern);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace weft::test
