// weft solvers: the table of mask solvers.
#include "cli/command.h"
#include "weft/mask/solver.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class SolversCommand : public Command {
 public:
  void declare(CLI::App& app) { declare_json(app, json_); }

  int run() override {
    Table table({"solver", "transposable", "result", "guarantee", "source"});
    Json list = Json::array();
    for (const Solver& solver : solvers()) {
      const char* result = solver.exact ? "exact" : "approximate";
      table.add({std::string(solver.name), solver.transposable ? "yes" : "no", result,
                 std::string(solver.guarantee), std::string(solver.source)});
      list.push_back({{"name", solver.name},
                      {"transposable", solver.transposable},
                      {"exact", solver.exact},
                      {"guarantee", solver.guarantee},
                      {"source", solver.source}});
    }
    if (json_) {
      print_json(list);
    } else {
      print(table.str());
    }
    return 0;
  }

 private:
  bool json_ = false;
};

}  // namespace

void add_solvers(CLI::App& app, std::unique_ptr<Command>& chosen) {
  add_command<SolversCommand>(app, chosen, "solvers", "List the mask solvers and what they promise",
                              "  weft solvers\n  weft solvers --json");
}

}  // namespace weft::cli
