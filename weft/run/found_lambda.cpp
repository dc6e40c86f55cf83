#include "weft/run/found_lambda.h"

#include <fmt/format.h>

#include <algorithm>

#include "weft/core/error.h"
#include "weft/recipe/recipe.h"

namespace weft {

Json to_json(const FoundLambda& found) {
  Json trials = Json::array();
  for (const LambdaSearch::Trial& trial : found.trials) {
    trials.push_back({{"lambda", trial.lambda}, {"ratio", trial.ratio}});
  }
  return {{"value", found.lambda},
          {"ratio", found.ratio},
          {"dense_flip_rate", found.dense_flip_rate},
          {"steps", found.steps},
          {"trials", trials}};
}

std::optional<FoundLambda> found_lambda(const Json& record, const std::string& file) {
  if (!record.contains("lambda")) return std::nullopt;
  try {
    const Json& saved = record["lambda"];
    FoundLambda found{saved["value"].get<double>(),
                      saved["ratio"].get<double>(),
                      saved["dense_flip_rate"].get<double>(),
                      saved["steps"].get<int64_t>(),
                      {}};
    for (const Json& trial : saved["trials"]) {
      found.trials.push_back({trial["lambda"].get<double>(), trial["ratio"].get<double>()});
    }
    WEFT_CHECK(found.lambda >= 0.0 && found.lambda <= 1e6, "{} is not a number from 0 to 1e6",
               found.lambda);
    return found;
  } catch (const Error& error) {
    throw Error(fmt::format("{}: 'lambda': {}", file, error.what()));
  }
}

bool finds_lambda(const RunOptions& options) {
  const auto is_auto = [](const std::string& recipe) {
    return Recipe::parse(recipe).finds_lambda();
  };
  const Pattern pattern = Pattern::parse(options.pattern);
  return is_auto(options.recipe) || std::ranges::any_of(options.rules, [&](const auto& rule) {
           return is_auto(parse_rule(rule, pattern).recipe);
         });
}

RunOptions with_auto_recipes(const RunOptions& options,
                             const std::function<std::string(const std::string&)>& other) {
  const auto replaced = [&](const std::string& recipe) {
    return Recipe::parse(recipe).finds_lambda() ? other(recipe) : recipe;
  };
  RunOptions changed = options;
  changed.recipe = replaced(options.recipe);
  for (std::string& text : changed.rules) {
    const RunRule rule = parse_rule(text, Pattern::parse(options.pattern));
    text = fmt::format("{}={}", rule.layers, replaced(rule.recipe));
    if (rule.own_pattern) text += fmt::format("@{}", rule.pattern.str());
  }
  return changed;
}

RunOptions with_lambda(const RunOptions& options, double lambda) {
  return with_auto_recipes(options,
                           [&](const std::string& recipe) { return with_lambda(recipe, lambda); });
}

}  // namespace weft
