// A saved plan names the machine that measured it, and serves about as many tokens as it was made for.
#include <gtest/gtest.h>

#include "tests/support.h"
#include "weft/core/json.h"
#include "weft/plan/planner.h"

namespace weft::test {
namespace {

PlanRequest request_of(int64_t tokens) {
  return {.shape = {tokens, 24, 36}, .pattern = Pattern(2, 4)};
}

Planner planner_with_a_plan() {
  Planner planner(PlanMode::kSparse, {});
  planner.plan(request_of(64));
  return planner;
}

TEST(SavedPlan, NamesItsMachine) {
  const Planner planner = planner_with_a_plan();
  EXPECT_FALSE(planner.saved_on());
  EXPECT_EQ(planner.note_on_machine("plan.json"), "");
  const PlanMachine here = PlanMachine::here();
  EXPECT_FALSE(here.cpu.empty());
  const Json machine = Json::parse(planner.saved(), "plan")["machine"];
  EXPECT_EQ(machine["cpu"], here.cpu);
  EXPECT_EQ(machine["isa"], here.isa);
  const Planner again = Planner::from_saved(planner.saved());
  EXPECT_EQ(again.saved_on(), here);
  EXPECT_EQ(again.note_on_machine("plan.json"), "");
}

TEST(SavedPlan, ACopyNamesTheMachineOfTheFirst) {
  Json plan = Json::parse(planner_with_a_plan().saved(), "plan");
  plan["machine"] = {{"cpu", "an abacus"}, {"isa", "beads"}};
  Planner copy(PlanMode::kAuto, {});
  copy.remember(plan.dump());
  ASSERT_TRUE(copy.saved_on());
  EXPECT_EQ(copy.saved_on()->text(), "an abacus, beads");
  const std::string note = copy.note_on_machine("plan.json");
  EXPECT_TRUE(note.starts_with("plan plan.json: measured on an abacus, beads; this is ")) << note;
  EXPECT_EQ(Planner::from_saved(copy.saved()).saved_on(), copy.saved_on());
}

TEST(SavedPlan, OfAnEarlierVersionNamesNone) {
  Json plan = Json::parse(planner_with_a_plan().saved(), "plan");
  plan.erase("machine");
  EXPECT_FALSE(Planner::from_saved(plan.dump()).saved_on());
}

TEST(SavedPlan, AMalformedMachineIsRefused) {
  Json plan = Json::parse(planner_with_a_plan().saved(), "plan");
  const auto problem = [&](Json machine) {
    plan["machine"] = std::move(machine);
    return message_of([&] { Planner::from_saved(plan.dump()); });
  };
  EXPECT_EQ(problem("this one"), "saved plan: object 'machine' is missing");
  EXPECT_EQ(problem({{"cpu", "x"}}), "saved plan: 'machine' has no text 'isa'");
  EXPECT_EQ(problem({{"cpu", 3}, {"isa", "x"}}), "saved plan: 'machine' has no text 'cpu'");
}

TEST(SavedPlan, IsKnownForAboutAsManyTokens) {
  Planner planner(PlanMode::kAuto, {});
  planner.remember(planner_with_a_plan().saved());
  const auto cause = [&](int64_t tokens) {
    return planner.known(request_of(tokens))[Product::kForward].cause;
  };
  EXPECT_EQ(cause(64), PlanCause::kSaved);
  EXPECT_EQ(cause(100), PlanCause::kSaved);
  EXPECT_EQ(cause(256), PlanCause::kMeasuring);
}

}  // namespace
}  // namespace weft::test
