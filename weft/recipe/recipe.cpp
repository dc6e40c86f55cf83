#include "weft/recipe/recipe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/recipe/paper_settings.h"
#include "weft/recipe/schedule.h"

namespace weft {
namespace {

// The table of docs/recipes.md: name, forward, backward, gradient, decay, λ, schedule.
const std::vector<Recipe>& table() {
  const auto row = [](const char* name, const char* forward, const char* backward,
                      const char* gradient, const char* decay, double lambda, Schedule schedule) {
    Recipe recipe;
    recipe.name = name;
    recipe.forward = &forward_part(forward);
    recipe.backward = &backward_part(backward);
    recipe.gradient = &gradient_part(gradient);
    recipe.decay = &decay_part(decay);
    recipe.lambda = lambda;
    recipe.schedule = schedule;
    return recipe;
  };
  // clang-format off
  static const std::vector<Recipe> rows = {
      row("dense",        "dense",        "same",    "exact",  "none",     0.0,  {}),
      row("ste",          "top-n",        "same",    "exact",  "none",     0.0,  {}),
      row("sr-ste",       "top-n",        "same",    "exact",  "gradient", 2e-4, {}),
      row("static",       "top-n",        "same",    "masked", "none",     0.0,
          {.mask_every = 0, .dense_head = 0.5}),
      row("transposable", "transposable", "same",    "exact",  "gradient", 2e-4, {}),
      row("t-sr-ste",     "transposable", "same",    "mvue",   "gradient", 6e-5,
          {.dense_tail = 1.0 / 6.0}),
      row("bi-mask",      "top-n",        "bi-mask", "exact",  "gradient", 2e-4,
          {.permutation_every = 100}),
      row("lbc",          "union",        "same",    "masked", "none",     0.0,  {}),
      row("s-ste",        "soft",         "same",    "mvue",   "none",     0.0,  {}),
  };
  // clang-format on
  return rows;
}

constexpr std::array<std::pair<std::string_view, PermutationSearch>, 2> kSearchNames = {
    {{"swap", PermutationSearch::kSwap}, {"random", PermutationSearch::kRandom}}};
constexpr std::array<std::pair<std::string_view, PermutationGoal>, 2> kGoalNames = {
    {{"kept", PermutationGoal::kKept}, {"eligible", PermutationGoal::kEligible}}};

// What Adam's second moment does in the sparse phase; true: it stays.
constexpr std::array<std::pair<std::string_view, bool>, 2> kMomentNames = {
    {{"follow", false}, {"frozen", true}}};

template <typename Value, size_t count>
Value value_in(const std::array<std::pair<std::string_view, Value>, count>& names,
               std::string_view key, std::string_view name) {
  std::string known;
  for (const auto& [candidate, value] : names) {
    if (candidate == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(candidate);
  }
  throw Error(fmt::format("recipe: {}={}: accepted are {}", key, name, known));
}

double number(std::string_view key, std::string_view text, double low, double high) {
  double value = 0.0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  WEFT_CHECK(
      problem == std::errc() && end == text.data() + text.size() && value >= low && value <= high,
      "recipe: {}={}: accepted is a number from {} to {}", key, text, low, high);
  return value;
}

int64_t steps(std::string_view key, std::string_view text, int64_t low) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  WEFT_CHECK(problem == std::errc() && end == text.data() + text.size() && value >= low,
             "recipe: {}={}: accepted is a number of steps, at least {}", key, text, low);
  return value;
}

const Solver* transposable_solver(std::string_view name) {
  std::string known;
  for (const Solver& candidate : solvers()) {
    if (!candidate.transposable) continue;
    if (candidate.name == name) return &candidate;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate.name);
  }
  throw Error(fmt::format("recipe: solver={}: accepted are {}", name, known));
}

// "mvue", or "mvue@2:4".
void set_gradient(Recipe& recipe, std::string_view value) {
  const size_t at = value.find('@');
  recipe.gradient = &gradient_part(value.substr(0, at));
  recipe.gradient_pattern.reset();
  if (at == std::string_view::npos) return;
  WEFT_CHECK(recipe.samples_gradient(),
             "recipe: gradient={}: {} samples nothing, so it has no pattern", value,
             recipe.gradient->name);
  recipe.gradient_pattern = Pattern::parse(value.substr(at + 1));
}

void set_part(Recipe& recipe, std::string_view key, std::string_view value) {
  if (key == "forward") {
    recipe.forward = &forward_part(value);
  } else if (key == "backward") {
    recipe.backward = &backward_part(value);
    if (recipe.backward->set_defaults != nullptr) recipe.backward->set_defaults(recipe);
  } else if (key == "gradient") {
    set_gradient(recipe, value);
  } else if (key == "decay") {
    recipe.decay = &decay_part(value);
  } else if (key == "lambda") {
    recipe.lambda = number(key, value, 0.0, 1e6);
  } else if (key == "mask_every") {
    recipe.schedule.mask_every = value == "auto" ? Schedule::kAuto : steps(key, value, 0);
  } else if (key == "solver") {
    recipe.solver = transposable_solver(value);
  } else if (key == "permutation_every") {
    recipe.schedule.permutation_every = steps(key, value, 0);
  } else if (key == "order_every") {
    recipe.schedule.order_every = steps(key, value, 0);
  } else if (key == "order_end") {
    recipe.schedule.order_end = number(key, value, 0.0, 1.0);
  } else if (key == "permutation_search") {
    recipe.permutation_search = value_in(kSearchNames, key, value);
  } else if (key == "permutation_goal") {
    recipe.permutation_goal = value_in(kGoalNames, key, value);
  } else if (key == "moment") {
    recipe.frozen_moment = value_in(kMomentNames, key, value);
  } else if (key == "dense_head") {
    recipe.schedule.dense_head = number(key, value, 0.0, 1.0);
  } else if (key == "dense_tail") {
    recipe.schedule.dense_tail = number(key, value, 0.0, 1.0);
  } else if (key == "removal_end") {
    recipe.schedule.removal_end = number(key, value, 0.0, 1.0);
  } else if (key == "removal_power") {
    recipe.schedule.removal_power = number(key, value, 0.1, 100.0);
  } else {
    throw Error(fmt::format(
        "recipe: unknown part '{}': known are forward, backward, gradient, decay, lambda, solver, "
        "mask_every, permutation_every, permutation_search, permutation_goal, order_every, "
        "order_end, moment, dense_head, dense_tail, removal_end, removal_power, fp8",
        key));
  }
}

bool reads(SettingNames names, std::string_view key) {
  return std::ranges::find(names, key) != names.end();
}

// "forward=union", or "forward=top-n or forward=transposable".
template <typename Part>
void add_readers(const std::vector<const Part*>& parts, std::string_view kind, std::string_view key,
                 std::string& text) {
  for (const Part* part : parts) {
    if (!reads(part->settings, key)) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : " or ", kind, part->name);
  }
}

// A setting that nothing reads would be an unnoticed mistake.
void refuse_idle_settings(const Recipe& recipe, const std::set<std::string_view>& given) {
  const auto refuse_if = [&](bool idle, std::string_view key, std::string_view reason) {
    WEFT_CHECK(!idle || !given.contains(key), "recipe '{}': {} has no effect: {}", recipe.name, key,
               reason);
  };
  for (const std::string_view key : given) {
    std::string readers;
    add_readers(forward_parts(), "forward", key, readers);
    add_readers(backward_parts(), "backward", key, readers);
    refuse_if(!readers.empty() && !recipe.reads(key), key, "only " + readers + " reads it");
  }
  refuse_if(recipe.decay->none(), "lambda", "there is no decay");
  refuse_if(recipe.finds_lambda(), "lambda", "decay=auto finds it");
  for (const char* key : {"dense_head", "dense_tail", "moment"}) {
    refuse_if(recipe.is_dense(), key, "it is dense throughout");
  }
  refuse_if(recipe.schedule.order_every == 0 || recipe.has_fixed_mask(), "order_end",
            "the row order is not searched repeatedly");
}

std::string known_recipes() {
  std::string names;
  for (const Recipe& recipe : table()) names += (names.empty() ? "" : ", ") + recipe.name;
  for (const PaperSettings& one : paper_settings()) names += fmt::format(", {}", one.name);
  return names;
}

}  // namespace

RecipeAndPattern split_pattern(std::string_view text) {
  const size_t last_part = std::min(text.rfind('+') + 1, text.size());  // npos + 1 is 0
  size_t at = text.find('@', last_part);
  for (const PaperSettings& one : paper_settings()) {  // the "@" of a name is none of a pattern
    if (last_part == 0 && text.starts_with(one.name)) at = text.find('@', one.name.size());
  }
  if (at != std::string_view::npos && text.substr(last_part).starts_with("gradient=")) {
    at = text.find('@', at + 1);
  }
  if (at == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, at), text.substr(at + 1)};
}

std::string with_lambda(std::string_view recipe, double lambda) {
  constexpr std::string_view kPart = "+decay=auto";
  std::string text(recipe);
  if (!Recipe::parse(recipe).finds_lambda()) return text;
  return text.replace(text.rfind(kPart), kPart.size(),
                      fmt::format("+decay=gradient+lambda={}", lambda));
}

std::span<const Recipe> recipes() { return table(); }

Recipe Recipe::parse(std::string_view given_text) {
  const std::string spelled_out = with_paper_settings(given_text);
  const std::string_view text = spelled_out;
  const std::string_view base = text.substr(0, text.find('+'));
  const Recipe* found = nullptr;
  for (const Recipe& row : table()) {
    if (row.name == base) found = &row;
  }
  WEFT_CHECK(found != nullptr, "recipe '{}': known are {}", base, known_recipes());
  Recipe recipe = *found;
  recipe.name = given_text;
  std::set<std::string_view> given;
  for (size_t at = base.size(); at < text.size();) {
    const size_t end = std::min(text.find('+', at + 1), text.size());
    const std::string_view part = text.substr(at + 1, end - at - 1);
    const size_t equals = part.find('=');
    if (part == "fp8") {
      recipe.fp8 = true;
    } else {
      WEFT_CHECK(equals != std::string_view::npos, "recipe '{}': '{}': accepted is part=value",
                 text, part);
      set_part(recipe, part.substr(0, equals), part.substr(equals + 1));
      given.insert(part.substr(0, equals));
    }
    at = end;
  }
  if (found->decay->none() && !given.contains("lambda")) recipe.lambda = 2e-4;
  refuse_idle_settings(recipe, given);
  return recipe;
}

void Recipe::check(const Pattern& pattern) const {
  const auto refuse = [&](const std::string& reason) {
    WEFT_CHECK(reason.empty(), "recipe '{}' is not valid at {}: {}", name, pattern.str(), reason);
  };
  const auto ask = [&](const auto& part) {
    if (part.objection != nullptr) refuse(part.objection(*this, pattern));
  };
  ask(*backward);
  ask(*gradient);
  if (!decay->none() && (!forward->by_magnitude || has_fixed_mask())) {
    refuse("the decay needs a mask that is repeatedly chosen by magnitude");
  }
  ask(*forward);
  if (schedule.dense_head + schedule.dense_tail >= 1.0) {
    refuse("the dense head and tail leave no sparse steps");
  }
  if (frozen_moment && schedule.dense_head == 0.0) {
    refuse("moment=frozen needs a dense head, in which the moment is learned: add dense_head=0.25");
  }
}

bool Recipe::needs_total_steps() const {
  const bool orders = schedule.order_every > 0 && !has_fixed_mask();
  return schedule.dense_head > 0.0 || schedule.dense_tail > 0.0 || forward->keeps_more != nullptr ||
         orders;
}

bool Recipe::reads(std::string_view setting) const {
  return weft::reads(forward->settings, setting) || weft::reads(backward->settings, setting);
}

Recipe Recipe::without_backward_mask() const {
  Recipe recipe = *this;
  recipe.backward = &backward_part("same");
  return recipe;
}

namespace {

std::string describe_masks(const Recipe& recipe) {
  if (recipe.has_fixed_mask()) return "mask found once";
  const auto interval = [&](int group) {
    const int64_t every = mask_interval(recipe, Pattern(1, group));
    return every == 1 ? std::string("step") : fmt::format("{} steps", every);
  };
  std::string text = "mask every " + interval(4);
  if (recipe.schedule.mask_every != Schedule::kAuto || !recipe.forward->transposable) {
    return text;
  }
  for (const int group : {8, 16, 32}) {
    text += fmt::format("{}{}: {}", group == 8 ? " (groups of " : ", ", group,
                        mask_interval(recipe, Pattern(1, group)));
  }
  return text + ")";
}

}  // namespace

std::string describe_schedule(const Recipe& recipe) {
  const Schedule& s = recipe.schedule;
  std::string text;
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (s.dense_head > 0.0) add(fmt::format("dense for the first {:.3g}", s.dense_head));
  if (recipe.forward->schedule_text != nullptr) {
    add(recipe.forward->schedule_text(recipe));
  } else if (!recipe.is_dense()) {
    add(describe_masks(recipe));
  }
  if (recipe.backward->schedule_text != nullptr) {
    const std::string more = recipe.backward->schedule_text(recipe);
    if (!more.empty()) add(more);
  }
  if (s.order_every > 0) {
    add(recipe.has_fixed_mask()
            ? "row order found with it"
            : fmt::format("row order every {} until {:.3g}", s.order_every, s.order_end));
  }
  if (recipe.frozen_moment) add("second moment frozen while sparse");
  if (s.dense_tail > 0.0) add(fmt::format("dense for the last {:.3g}", s.dense_tail));
  return text.empty() ? "–" : text;
}

std::string sparse_products(const Recipe& recipe) {
  std::string text;
  if (!recipe.is_dense()) text = "fwd, bwd_x";
  if (recipe.samples_gradient()) text += text.empty() ? "bwd_w" : ", bwd_w";
  return text.empty() ? "none" : text;
}

}  // namespace weft
