// The table of recipes, and recipes made of parts: which make sense, and why the others do not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support.h"
#include "weft/core/pattern.h"
#include "weft/mask/solver.h"
#include "weft/recipe/paper_settings.h"
#include "weft/recipe/recipe.h"

namespace weft::test {
namespace {

template <typename Action>
void expect_error(Action action, const std::string& part) {
  const std::string message = message_of(action);
  EXPECT_TRUE(contains(message, part)) << message;
}

TEST(Recipe, TableHasTheNineRecipesAndEachMakesSenseAtEveryPattern) {
  const std::vector<std::string> names = {"dense",    "ste",     "sr-ste", "static", "transposable",
                                          "t-sr-ste", "bi-mask", "lbc",    "s-ste"};
  ASSERT_EQ(recipes().size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(recipes()[i].name, names[i]);
    for (const char* pattern : {"2:4", "1:4", "4:8", "8:16", "2:4x2", "4:4"}) {
      EXPECT_NO_THROW(recipes()[i].check(Pattern::parse(pattern))) << names[i] << " " << pattern;
    }
  }
}

TEST(Recipe, PartsCanBeExchanged) {
  const Recipe recipe = Recipe::parse("s-ste+backward=bi-mask+gradient=mvue-two-draw+fp8");
  EXPECT_EQ(recipe.forward->name, "soft");
  EXPECT_EQ(recipe.backward->name, "bi-mask");
  EXPECT_EQ(recipe.gradient->name, "mvue-two-draw");
  EXPECT_EQ(recipe.schedule.permutation_every, 100);
  EXPECT_TRUE(recipe.fp8);
  EXPECT_DOUBLE_EQ(Recipe::parse("sr-ste+lambda=6e-5").lambda, 6e-5);
  EXPECT_EQ(Recipe::parse("ste+decay=decoupled").lambda, 2e-4);
  EXPECT_EQ(Recipe::parse("sr-ste+lambda=0+decay=decoupled").lambda, 0.0);
}

// What nobody has found yet is no λ to train with; what was found is a recipe as any other.
TEST(Recipe, ALambdaThatIsToBeFound) {
  const Recipe recipe = Recipe::parse("sr-ste+decay=auto+mask_every=3");
  EXPECT_TRUE(recipe.finds_lambda());
  EXPECT_NO_THROW(recipe.check(Pattern(2, 4)));
  EXPECT_FALSE(Recipe::parse("sr-ste").finds_lambda());
  expect_error([] { Recipe::parse("sr-ste+decay=auto+lambda=1e-3"); }, "decay=auto finds it");
  expect_error([] { Recipe::parse("lbc+decay=auto").check(Pattern(2, 4)); }, "by magnitude");
  const std::string found = with_lambda("sr-ste+decay=auto+mask_every=3", 3e-3);
  EXPECT_EQ(found, "sr-ste+decay=gradient+lambda=0.003+mask_every=3");
  EXPECT_EQ(Recipe::parse(found).lambda, 3e-3);
  EXPECT_EQ(Recipe::parse(with_lambda("ste+decay=auto", 1e-6)).lambda, 1e-6);
  EXPECT_EQ(with_lambda("sr-ste+lambda=1e-3", 3.0), "sr-ste+lambda=1e-3");
}

// STEP: the second moment is learned before there are masks.
TEST(Recipe, AMomentIsFrozenAfterADenseHead) {
  const Recipe recipe = Recipe::parse("sr-ste+dense_head=0.25+moment=frozen");
  EXPECT_TRUE(recipe.frozen_moment);
  EXPECT_NO_THROW(recipe.check(Pattern(2, 4)));
  EXPECT_TRUE(contains(describe_schedule(recipe), "second moment frozen while sparse"));
  EXPECT_FALSE(Recipe::parse("sr-ste").frozen_moment);
  EXPECT_FALSE(Recipe::parse("sr-ste+moment=frozen+moment=follow").frozen_moment);
  expect_error([] { Recipe::parse("sr-ste+moment=frozen").check(Pattern(2, 4)); },
               "needs a dense head");
  expect_error([] { Recipe::parse("sr-ste+moment=kept"); }, "accepted are follow, frozen");
  expect_error([] { Recipe::parse("dense+moment=frozen"); }, "has no effect");
}

// So that very sparse weights need not mean noisy gradients.
TEST(Recipe, AGradientMayHaveAPatternOfItsOwn) {
  const Pattern weights(1, 8);
  EXPECT_EQ(Recipe::parse("s-ste").sample_pattern(weights), weights);
  EXPECT_EQ(Recipe::parse("s-ste+gradient=mvue@2:4").sample_pattern(weights), Pattern(2, 4));
  EXPECT_EQ(Recipe::parse("s-ste+gradient=mvue@2:4+gradient=mvue").sample_pattern(weights),
            weights);
  EXPECT_NO_THROW(Recipe::parse("s-ste+gradient=mvue-two-draw@2:4").check(weights));
  expect_error([] { Recipe::parse("s-ste+gradient=mvue-two-draw@1:4").check(Pattern(2, 4)); },
               "is for 2:4");
  expect_error([] { Recipe::parse("ste+gradient=exact@2:4"); }, "exact samples nothing");
  expect_error([] { Recipe::parse("s-ste+gradient=mvue@5:4"); }, "5:4");
  expect_error([] { Recipe::parse("s-ste+gradient=mvue@"); }, "pattern");
}

TEST(Recipe, ThePatternOfTheWeightsStandsLast) {
  const auto expect_split = [](std::string_view text, std::string_view recipe,
                               std::optional<std::string_view> pattern) {
    const auto [found, its_pattern] = split_pattern(text);
    EXPECT_EQ(found, recipe) << text;
    EXPECT_EQ(its_pattern, pattern) << text;
  };
  expect_split("sr-ste", "sr-ste", std::nullopt);
  expect_split("sr-ste@1:4", "sr-ste", "1:4");
  expect_split("sr-ste@", "sr-ste", "");
  expect_split("sr-ste+lambda=1e-5@2:4x2", "sr-ste+lambda=1e-5", "2:4x2");
  expect_split("s-ste+gradient=mvue@2:4", "s-ste+gradient=mvue@2:4", std::nullopt);
  expect_split("s-ste+gradient=mvue@2:4@1:8", "s-ste+gradient=mvue@2:4", "1:8");
  expect_split("s-ste+gradient=mvue@2:4+fp8@1:8", "s-ste+gradient=mvue@2:4+fp8", "1:8");
  expect_split("s-ste@paper", "s-ste@paper", std::nullopt);
  expect_split("t-sr-ste@paper@2:4", "t-sr-ste@paper", "2:4");
  expect_split("t-sr-ste@paper+fp8@2:4", "t-sr-ste@paper+fp8", "2:4");
  expect_split("s-ste@paper+gradient=mvue@2:4@1:8", "s-ste@paper+gradient=mvue@2:4", "1:8");
  expect_split("ste@paper", "ste", "paper");  // no paper's settings have this name
}

// By name, with parts of one's own on top, and known as what the user wrote.
TEST(Recipe, SettingsOfPapersHaveNames) {
  EXPECT_EQ(paper_settings().size(), 8u);
  for (const PaperSettings& one : paper_settings()) {
    const Recipe named = Recipe::parse(one.name), spelled = Recipe::parse(one.recipe);
    EXPECT_EQ(named.name, one.name);
    EXPECT_NO_THROW(named.check(Pattern(2, 4))) << one.name;
    EXPECT_EQ(named.forward, spelled.forward);
    EXPECT_EQ(named.gradient, spelled.gradient);
    EXPECT_EQ(describe_schedule(named), describe_schedule(spelled));
    EXPECT_EQ(named.lambda, spelled.lambda);
  }
  const Recipe recipe = Recipe::parse("t-sr-ste@paper+mask_every=10");
  EXPECT_EQ(recipe.gradient->name, "mvue-two-draw");
  EXPECT_EQ(recipe.schedule.mask_every, 10);
  EXPECT_EQ(recipe.name, "t-sr-ste@paper+mask_every=10");
  EXPECT_EQ(Recipe::parse("transposable@paper").schedule.mask_every, 40);
  EXPECT_EQ(Recipe::parse("transposable@paper").mask_solver().name, "greedy-keep");
  EXPECT_TRUE(Recipe::parse("s-ste@paper").fp8);
  EXPECT_TRUE(Recipe::parse("step@paper").frozen_moment);
  expect_error([] { Recipe::parse("t-sr-ste@paper").check(Pattern(1, 4)); }, "is for 2:4");
  expect_error([] { Recipe::parse("ste@paper"); }, "s-ste@paper, step@paper");
}

TEST(Recipe, WhatMakesNoSenseIsRefusedWithTheReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"dense+backward=bi-mask", "this one is dense"},
      {"transposable+backward=bi-mask", "N:M along outputs already"},
      {"ste+gradient=masked", "could never change"},
      {"lbc+decay=gradient", "repeatedly chosen by magnitude"},
      {"s-ste+mask_every=40", "continuous only if"},
      {"static+mask_every=10", "could never change"},
      {"transposable+mask_every=0", "repeatedly chosen by magnitude"},
      {"lbc+removal_end=0", "removal_end"},
      {"t-sr-ste+dense_head=0.9", "leave no sparse steps"},
      {"lbc+order_every=10", "learn their scores together"},
  };
  for (const auto& [text, reason] : cases) {
    expect_error([&] { Recipe::parse(text).check(Pattern(2, 4)); }, reason);
  }
  expect_error([] { Recipe::parse("s-ste+gradient=mvue-two-draw").check(Pattern(1, 4)); },
               "is for 2:4");
  for (const char* idle :
       {"ste+lambda=1e-3", "dense+mask_every=10", "lbc+mask_every=2", "sr-ste+removal_end=0.2",
        "ste+permutation_every=5", "dense+dense_tail=0.1", "dense+order_every=5",
        "ste+order_end=0.5", "static+order_every=5+order_end=0.5"}) {
    expect_error([&] { Recipe::parse(idle); }, "has no effect");
  }
  expect_error([] { Recipe::parse("lbc+dense_head=0.5").check(Pattern(2, 4)); },
               "after the dense head");
  expect_error([] { Recipe::parse("sste"); }, "known are dense, ste");
  expect_error([] { Recipe::parse("ste+forwards=soft"); }, "unknown part 'forwards'");
  expect_error([] { Recipe::parse("ste+forward=hard"); }, "accepted are dense, top-n");
  expect_error([] { Recipe::parse("ste+lambda=x"); }, "accepted is a number");
  expect_error([] { Recipe::parse("ste+order_every=-1"); }, "number of steps, at least 0");
  expect_error([] { Recipe::parse("ste+"); }, "accepted is part=value");
}

TEST(Recipe, ASolverIsAPartOfTransposableMasks) {
  for (const Solver& candidate : solvers()) {
    const std::string part = fmt::format("+solver={}", candidate.name);
    if (!candidate.transposable) {
      expect_error([&] { Recipe::parse("transposable" + part); },
                   "accepted are exact, flow, greedy-keep, greedy-prune");
      continue;
    }
    for (const char* base :
         {"transposable", "t-sr-ste", "static+forward=transposable", "ste+forward=transposable"}) {
      const Recipe recipe = Recipe::parse(base + part);
      EXPECT_EQ(&recipe.mask_solver(), &solver(candidate.name)) << base;
      EXPECT_NO_THROW(recipe.check(Pattern(2, 4)));
    }
    for (const char* base : {"dense", "ste", "sr-ste", "static", "bi-mask", "lbc", "s-ste"}) {
      expect_error([&] { Recipe::parse(base + part); },
                   "solver has no effect: only forward=transposable");
    }
  }
  EXPECT_EQ(Recipe::parse("transposable").mask_solver().name, "exact");
  EXPECT_EQ(Recipe::parse("sr-ste").mask_solver().name, "magnitude");
}

}  // namespace
}  // namespace weft::test
