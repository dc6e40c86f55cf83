#include "weft/recipe/recipe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/recipe/schedule.h"

namespace weft {
namespace {

using F = ForwardPart;
using B = BackwardPart;
using G = GradientPart;
using D = DecayPart;

// The table of docs/recipes.md: name, forward, backward, gradient, decay, λ, schedule.
const std::vector<Recipe>& table() {
  static const std::vector<Recipe> rows = {
      {"dense", F::kDense, B::kSame, G::kExact, D::kNone, 0.0, {}},
      {"ste", F::kTopN, B::kSame, G::kExact, D::kNone, 0.0, {}},
      {"sr-ste", F::kTopN, B::kSame, G::kExact, D::kGradient, 2e-4, {}},
      {"static",
       F::kTopN,
       B::kSame,
       G::kMasked,
       D::kNone,
       0.0,
       {.mask_every = 0, .dense_head = 0.5}},
      {"transposable", F::kTransposable, B::kSame, G::kExact, D::kGradient, 2e-4, {}},
      {"t-sr-ste",
       F::kTransposable,
       B::kSame,
       G::kMvue,
       D::kGradient,
       6e-5,
       {.dense_tail = 1.0 / 6.0}},
      {"bi-mask", F::kTopN, B::kBiMask, G::kExact, D::kGradient, 2e-4, {.permutation_every = 100}},
      {"lbc", F::kUnion, B::kSame, G::kMasked, D::kNone, 0.0, {}},
      {"s-ste", F::kSoft, B::kSame, G::kMvue, D::kNone, 0.0, {}},
  };
  return rows;
}

template <typename Part>
using Names = std::span<const std::pair<std::string_view, Part>>;

constexpr std::array<std::pair<std::string_view, F>, 5> kForwardNames = {
    {{"dense", F::kDense},
     {"top-n", F::kTopN},
     {"transposable", F::kTransposable},
     {"union", F::kUnion},
     {"soft", F::kSoft}}};
constexpr std::array<std::pair<std::string_view, B>, 2> kBackwardNames = {
    {{"same", B::kSame}, {"bi-mask", B::kBiMask}}};
constexpr std::array<std::pair<std::string_view, G>, 4> kGradientNames = {
    {{"exact", G::kExact},
     {"masked", G::kMasked},
     {"mvue", G::kMvue},
     {"mvue-two-draw", G::kMvueTwoDraw}}};
constexpr std::array<std::pair<std::string_view, D>, 3> kDecayNames = {
    {{"none", D::kNone}, {"gradient", D::kGradient}, {"decoupled", D::kDecoupled}}};
constexpr std::array<std::pair<std::string_view, PermutationSearch>, 2> kSearchNames = {
    {{"swap", PermutationSearch::kSwap}, {"random", PermutationSearch::kRandom}}};
constexpr std::array<std::pair<std::string_view, PermutationGoal>, 2> kGoalNames = {
    {{"kept", PermutationGoal::kKept}, {"eligible", PermutationGoal::kEligible}}};

template <typename Part>
std::string_view name_in(Names<Part> names, Part part) {
  for (const auto& [name, value] : names) {
    if (value == part) return name;
  }
  return "?";
}

template <typename Part>
Part part_in(Names<Part> names, std::string_view key, std::string_view name) {
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

void set_part(Recipe& recipe, std::string_view key, std::string_view value) {
  if (key == "forward") {
    recipe.forward = part_in<F>(kForwardNames, key, value);
  } else if (key == "backward") {
    recipe.backward = part_in<B>(kBackwardNames, key, value);
    if (recipe.backward == B::kBiMask && recipe.schedule.permutation_every == 0) {
      recipe.schedule.permutation_every = 100;
    }
  } else if (key == "gradient") {
    recipe.gradient = part_in<G>(kGradientNames, key, value);
  } else if (key == "decay") {
    recipe.decay = part_in<D>(kDecayNames, key, value);
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
    recipe.permutation_search = part_in<PermutationSearch>(kSearchNames, key, value);
  } else if (key == "permutation_goal") {
    recipe.permutation_goal = part_in<PermutationGoal>(kGoalNames, key, value);
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
        "order_end, dense_head, dense_tail, removal_end, removal_power, fp8",
        key));
  }
}

// A part that nothing looks at would be a mistake that nobody sees.
void refuse_idle_parts(const Recipe& recipe, const std::set<std::string_view>& given) {
  const auto refuse_if = [&](bool idle, std::string_view key, std::string_view reason) {
    WEFT_CHECK(!idle || !given.contains(key), "recipe '{}': {} has no effect: {}", recipe.name, key,
               reason);
  };
  const F forward = recipe.forward;
  refuse_if(recipe.decay == D::kNone, "lambda", "there is no decay");
  refuse_if(forward == F::kDense || forward == F::kUnion, "mask_every",
            "it has no mask by magnitude");
  refuse_if(forward != F::kTransposable, "solver", "only forward=transposable has several solvers");
  for (const char* key : {"removal_end", "removal_power"}) {
    refuse_if(forward != F::kUnion, key, "only forward=union removes candidates");
  }
  for (const char* key : {"permutation_every", "permutation_search", "permutation_goal"}) {
    refuse_if(recipe.backward != B::kBiMask, key, "only backward=bi-mask permutes");
  }
  for (const char* key : {"dense_head", "dense_tail", "order_every"}) {
    refuse_if(forward == F::kDense, key, "it is dense throughout");
  }
  refuse_if(recipe.schedule.order_every == 0 || recipe.has_fixed_mask(), "order_end",
            "no row order is looked for again and again");
}

std::string known_recipes() {
  std::string names;
  for (const Recipe& recipe : table()) names += (names.empty() ? "" : ", ") + recipe.name;
  return names;
}

}  // namespace

std::span<const Recipe> recipes() { return table(); }

Recipe Recipe::parse(std::string_view text) {
  const std::string_view base = text.substr(0, text.find('+'));
  const Recipe* found = nullptr;
  for (const Recipe& row : table()) {
    if (row.name == base) found = &row;
  }
  WEFT_CHECK(found != nullptr, "recipe '{}': known are {}", base, known_recipes());
  Recipe recipe = *found;
  recipe.name = text;
  std::set<std::string_view> given;
  for (size_t at = base.size(); at < text.size();) {
    const size_t end = std::min(text.find('+', at + 1), text.size());
    const std::string_view part = text.substr(at + 1, end - at - 1);
    const size_t equals = part.find('=');
    if (part == "fp8") {
      recipe.fp8 = true;
    } else {
      WEFT_CHECK(equals != std::string_view::npos,
                 "recipe '{}': '{}' is not of the form part=value", text, part);
      set_part(recipe, part.substr(0, equals), part.substr(equals + 1));
      given.insert(part.substr(0, equals));
    }
    at = end;
  }
  if (found->decay == D::kNone && !given.contains("lambda")) recipe.lambda = 2e-4;
  refuse_idle_parts(recipe, given);
  return recipe;
}

void Recipe::check(const Pattern& pattern) const {
  const auto refuse_if = [&](bool bad, std::string_view reason) {
    WEFT_CHECK(!bad, "recipe '{}' makes no sense at {}: {}", name, pattern.str(), reason);
  };
  refuse_if(backward == B::kBiMask && forward == F::kDense,
            "a bi-mask backward thins out a sparse forward operand, and this one is dense");
  refuse_if(backward == B::kBiMask && forward == F::kTransposable,
            "a transposable operand is N:M along outputs already; bi-mask would only remove more");
  refuse_if(gradient == G::kMasked && !has_fixed_mask() && forward != F::kUnion,
            "with a masked gradient pruned weights stand still, so a mask chosen by magnitude "
            "could never change; masked goes with a mask that is found once (mask_every=0) and "
            "with forward=union");
  refuse_if(decay != D::kNone && (forward == F::kDense || has_fixed_mask() || forward == F::kUnion),
            "the decay steers which weights a mask chooses, and this mask is not chosen by "
            "magnitude again and again");
  refuse_if(forward == F::kSoft && mask_interval(*this, pattern) != 1,
            "the soft threshold is continuous only if it follows the weights at every step");
  refuse_if(forward == F::kUnion && schedule.removal_end <= schedule.dense_head,
            "subsets need time to learn their scores: removal_end must come after the dense head");
  refuse_if(forward == F::kUnion && schedule.removal_end > 1.0 - schedule.dense_tail,
            "the removal must end before the dense tail begins");
  refuse_if(forward == F::kUnion && schedule.order_every > 0,
            "rows that share learn their scores together; an order goes with masks chosen by "
            "magnitude");
  refuse_if(gradient == G::kMvueTwoDraw && (pattern.keep() != 2 || pattern.group() != 4),
            "the two-draw sampler is for 2:4; mvue takes any pattern");
  refuse_if(schedule.dense_head + schedule.dense_tail >= 1.0,
            "the dense head and tail leave no sparse steps");
}

bool Recipe::needs_total_steps() const {
  const bool orders = schedule.order_every > 0 && !has_fixed_mask();
  return schedule.dense_head > 0.0 || schedule.dense_tail > 0.0 || forward == F::kUnion || orders;
}

std::string_view part_name(ForwardPart part) { return name_in<F>(kForwardNames, part); }
std::string_view part_name(BackwardPart part) { return name_in<B>(kBackwardNames, part); }
std::string_view part_name(GradientPart part) { return name_in<G>(kGradientNames, part); }
std::string_view part_name(DecayPart part) { return name_in<D>(kDecayNames, part); }

namespace {

std::string describe_masks(const Recipe& recipe) {
  if (recipe.has_fixed_mask()) return "mask found once";
  const auto interval = [&](int group) {
    const int64_t every = mask_interval(recipe, Pattern(1, group));
    return every == 1 ? std::string("step") : fmt::format("{} steps", every);
  };
  std::string text = "mask every " + interval(4);
  if (recipe.schedule.mask_every != Schedule::kAuto || recipe.forward != F::kTransposable) {
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
  switch (recipe.forward) {
    case F::kDense: break;
    case F::kUnion:
      add(fmt::format("removal to the power {:.3g} until {:.3g}", s.removal_power, s.removal_end));
      break;
    default: add(describe_masks(recipe));
  }
  if (recipe.backward == B::kBiMask && s.permutation_every > 0) {
    add(fmt::format("permutation every {}", s.permutation_every));
  }
  if (s.order_every > 0) {
    add(recipe.has_fixed_mask()
            ? "row order found with it"
            : fmt::format("row order every {} until {:.3g}", s.order_every, s.order_end));
  }
  if (recipe.forward == F::kSoft) add("β frozen");
  if (s.dense_tail > 0.0) add(fmt::format("dense for the last {:.3g}", s.dense_tail));
  return text.empty() ? "–" : text;
}

std::string sparse_products(const Recipe& recipe) {
  std::string text;
  if (recipe.forward != F::kDense) text = "fwd, bwd_x";
  if (recipe.samples_gradient()) text += text.empty() ? "bwd_w" : ", bwd_w";
  return text.empty() ? "none" : text;
}

}  // namespace weft
