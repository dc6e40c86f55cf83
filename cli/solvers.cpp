// weft solvers: the table of mask solvers.
#include "cli/shared.h"
#include "weft/mask/solver.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class SolversCommand : public Command {
 public:
  void declare(Flags& flags) override { common_.declare(flags); }

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
    if (common_.json) {
      print_json(list);
    } else {
      print(table.str(kTableColumns));
    }
    return 0;
  }

 private:
  CommonFlags common_;
};

}  // namespace

CommandEntry solvers_command() {
  return {"solvers", "List the mask solvers and what they promise",
          "  weft solvers\n  weft solvers --json", std::make_unique<SolversCommand>()};
}

}  // namespace weft::cli
