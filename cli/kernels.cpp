// weft kernels: the table of kernels, and what they run on here.
#include "weft/kernel/kernels.h"
#include "cli/shared.h"
#include "weft/core/isa.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class KernelsCommand : public Command {
 public:
  void declare(Flags& flags) override { common_.declare(flags); }

  int run() override {
    Table table({"kernel", "layer", "compute", "operand", "products", "for"});
    Json list = Json::array();
    for (const Kernel& kernel : kernels()) {
      Json products = Json::array();
      std::string names;
      for (const Product product : kernel.products) {
        products.push_back(product_name(product));
        names += (names.empty() ? "" : " ") + std::string(product_name(product));
      }
      table.add({std::string(kernel.name), std::string(kernel.layer),
                 std::string(precision_name(kernel.compute)), std::string(kernel.operand), names,
                 std::string(kernel.use)});
      list.push_back({{"name", kernel.name},
                      {"layer", kernel.layer},
                      {"compute", precision_name(kernel.compute)},
                      {"operand", kernel.operand},
                      {"products", products},
                      {"use", kernel.use}});
    }
    std::string sets;
    for (const std::string& isa : available_isas()) sets += (sets.empty() ? "" : ", ") + isa;
    Json units = Json::array();
    std::string unit_names;
    for (const TileUnit unit : available_tile_units()) {
      units.push_back(tile_unit_name(unit));
      unit_names += (unit_names.empty() ? "" : ", ") + std::string(tile_unit_name(unit));
    }
    if (common_.json) {
      print_json({{"isa", current_isa()},
                  {"available_isas", available_isas()},
                  {"tile_unit", tile_unit_name(tile_unit())},
                  {"tile_unit_lacks", tile_unit_lacks()},
                  {"available_tile_units", units},
                  {"kernels", list}});
    } else {
      print(table.str(kTableColumns));
      print(
          fmt::format("\ninstruction set: {} (WEFT_ISA forces one of {})\n"
                      "tile unit: {}{}\n  (WEFT_TILES forces one of {})\n",
                      current_isa(), sets, tile_unit_name(tile_unit()),
                      tile_unit_lacks().empty() ? "" : ": " + tile_unit_lacks(), unit_names));
    }
    return 0;
  }

 private:
  CommonFlags common_;
};

}  // namespace

CommandEntry kernels_command() {
  return {"kernels", "List the kernels and the instruction sets they can run on",
          "  weft kernels\n  WEFT_ISA=sse4 weft kernels --json",
          std::make_unique<KernelsCommand>()};
}

}  // namespace weft::cli
