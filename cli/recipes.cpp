// weft recipes: the table of training methods, as compositions of parts.
#include "cli/shared.h"
#include "weft/recipe/paper_settings.h"
#include "weft/recipe/recipe.h"
#include "weft/recipe/schedule.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class RecipesCommand : public Command {
 public:
  void declare(Flags& flags) override {
    tables_.declare(flags);
    flags.flag("--json", json_, "Print JSON");
  }

  int run() override {
    Table table({"recipe", "forward", "backward", "gradient", "decay", ">lambda", "sparse products",
                 "schedule"});
    Json list = Json::array();
    std::vector<Recipe> all(recipes().begin(), recipes().end());
    const size_t own = all.size();
    for (const PaperSettings& one : paper_settings()) all.push_back(Recipe::parse(one.name));
    for (size_t i = 0; i < all.size(); ++i) {
      const Recipe& recipe = all[i];
      const bool decays = !recipe.decay->none();
      if (i < own)
        table.add({recipe.name, std::string(recipe.forward->name),
                   std::string(recipe.backward->name), std::string(recipe.gradient->name),
                   std::string(recipe.decay->name),
                   decays ? fmt::format("{:g}", recipe.lambda) : "", sparse_products(recipe),
                   describe_schedule(recipe)});
      list.push_back({{"name", recipe.name},
                      {"forward", recipe.forward->name},
                      {"backward", recipe.backward->name},
                      {"gradient", recipe.gradient->name},
                      {"decay", recipe.decay->name},
                      {"lambda", decays ? recipe.lambda : 0.0},
                      {"sparse_products", sparse_products(recipe)},
                      {"schedule", describe_schedule(recipe)}});
    }
    if (json_) {
      print_json(list);
      return 0;
    }
    table.can_spare({"lambda"});
    tables_.print(table);
    print("\n" + intervals());
    print("\n" + papers());
    print(
        "\nParts can be exchanged: s-ste+backward=bi-mask, sr-ste+lambda=6e-5+gradient=mvue+fp8,\n"
        "transposable+mask_every=40+solver=greedy-keep, static+forward=transposable.\n"
        "docs/recipes.md has the formula of each part.\n");
    return 0;
  }

 private:
  // What mask_every=auto is for transposable masks; for all others it is 1.
  static std::string intervals() {
    Table table({"mask_every=auto", ">groups of 4", ">8", ">16", ">32"});
    for (const Solver& solver : solvers()) {
      if (!solver.transposable) continue;
      Recipe recipe = Recipe::parse("transposable");
      recipe.solver = &solver;
      std::vector<std::string> row = {fmt::format("solver={}", solver.name)};
      for (const int group : {4, 8, 16, 32}) {
        row.push_back(fmt::format("{}", mask_interval(recipe, Pattern(1, group))));
      }
      table.add(row);
    }
    return table.str();
  }

  // The papers' own settings, by name.
  static std::string papers() {
    Table table({"a paper's settings", "of", "are"});
    for (const PaperSettings& one : paper_settings()) {
      table.add({std::string(one.name), std::string(one.paper), std::string(one.recipe)});
    }
    return table.str();
  }

  TableFlags tables_;
  bool json_ = false;
};

}  // namespace

CommandEntry recipes_command() {
  return {"recipes", "List the training methods and the parts they are made of",
          "  weft recipes\n  weft recipes --json", std::make_unique<RecipesCommand>()};
}

}  // namespace weft::cli
