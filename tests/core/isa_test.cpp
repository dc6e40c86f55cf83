// The choice of the instruction set: forced, restored, and from the environment.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tests/support.h"
#include "weft/core/error.h"
#include "weft/core/isa.h"
#include "weft/core/text.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

class Isa : public ::testing::Test {
 protected:
  void TearDown() override { restore_isa(); }
};

TEST_F(Isa, CurrentFollowsForcedAndGoesBack) {
  restore_isa();
  const std::vector<std::string> all = available_isas();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(current_isa(), all.front());
  for (const std::string& name : all) {
    force_isa(name);
    EXPECT_EQ(current_isa(), name);
  }
  restore_isa();
  EXPECT_EQ(current_isa(), all.front());
  EXPECT_EQ(available_isas(), all);
}

TEST_F(Isa, AnUnknownNameIsAnErrorThatNamesTheAvailableOnes) {
  restore_isa();
  const std::vector<std::string> all = available_isas();
  for (const std::string name : {"abacus", "", "AVX2 ", "\x1b[31m\n"}) {
    const std::string message = message_of([&] { force_isa(name); });
    EXPECT_TRUE(contains(message, fmt::format("'{}'", printable(name)))) << message;
    for (const std::string& known : all) EXPECT_TRUE(contains(message, known)) << message;
    EXPECT_EQ(current_isa(), all.front());
  }
}

TEST_F(Isa, ARefusedNameLeavesTheForcedOneInPlace) {
  restore_isa();
  const std::string last = available_isas().back();
  force_isa(last);
  EXPECT_THROW(force_isa("abacus"), Error);
  EXPECT_EQ(current_isa(), last);
}

TEST_F(Isa, ObeysTheEnvironment) {
  const char* set = std::getenv("WEFT_ISA");
  const std::optional<std::string> before = set ? std::optional<std::string>(set) : std::nullopt;
  restore_isa();
  const std::string last = available_isas().back();
  ::setenv("WEFT_ISA", last.c_str(), 1);
  force_isa_from_environment();
  EXPECT_EQ(current_isa(), last);
  ::setenv("WEFT_ISA", "abacus", 1);
  const std::string message = message_of([] { force_isa_from_environment(); });
  EXPECT_TRUE(message.starts_with("WEFT_ISA: ")) << message;
  restore_isa();
  const std::string best = current_isa();
  ::setenv("WEFT_ISA", "", 1);
  force_isa_from_environment();
  EXPECT_EQ(current_isa(), best);
  before ? ::setenv("WEFT_ISA", before->c_str(), 1) : ::unsetenv("WEFT_ISA");
}

}  // namespace
}  // namespace weft
