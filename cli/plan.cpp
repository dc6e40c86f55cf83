// weft plan: dense or sparse, for the three products of a layer, and why.
#include <cstdlib>

#include "cli/shared.h"
#include "weft/core/atomic_file.h"
#include "weft/core/isa.h"
#include "weft/core/regular_file.h"
#include "weft/plan/planner.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class PlanCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.texts("--shape", "TOKENSxINSxOUTS", shapes_, "Linear layers to plan for",
                problem_in([](const std::string& text) { LayerShape::parse(text); }));
    flags.texts(
        "--conv", "IMAGESxINSxHEIGHTxWIDTH:OUTSxKHxKW", convs_,
        "Convolutions to plan for; ',stride=2', ',pad=1', ',dilation=2' (or 2x1: height, "
        "width) and ',groups=4' may follow",
        problem_in([](const std::string& text) { check_measurable(ConvShape::parse(text)); }));
    declare_pattern(flags, pattern_);
    flags.flag("--transposable", transposable_,
               "The mask is N:M along outputs too (default: along inputs only)");
    flags.flag("--masked-gradient", masked_gradient_,
               "Compute the gradient of the weights for kept weights only");
    flags.text("--precision", "fp32|bf16", precision_,
               "Type of operands and activations; bf16: all arithmetics of the CPU are compared",
               problem_in([](const std::string& text) { parse_precision(text); }));
    flags.exclude("--precision", "--conv");
    flags.integer("--products-per-pack", products_per_pack_, 0, 1 << 20,
                  "Products that one packing of the weights serves; 0: they never change, and "
                  "streams for few tokens compete");
    flags.text("--mode", "MODE", mode_, "auto, dense or sparse",
               problem_in([](const std::string& text) { parse_plan_mode(text); }));
    flags.text("--save", "FILE", save_, "Write the choices, so that a run can be repeated");
    flags.text("--saved", "FILE", saved_, "Use the choices of such a file");
    flags.exclude("--saved", "--mode");
    flags.flag("--remeasure", remeasure_, "Measure again instead of reading cached timings");
    tables_.declare(flags);
    common_.declare(flags);
  }

  bool measures() const override { return true; }
  int run() override {
    if (shapes_.empty() && convs_.empty()) throw UsageError("--shape or --conv is needed");
    common_.apply();
    if (remeasure_) std::filesystem::remove(default_timings_path());
    Planner planner = saved_.empty() ? Planner(parse_plan_mode(mode_)) : saved_planner();
    Timings measured({});  // of this run: nothing from the cache
    Table table({"shape", "product", ">predicted dense", ">predicted sparse", ">predicted pack",
                 ">measured dense", ">sparse", ">pack", "choice", "why"});
    table.can_spare({"predicted pack", "predicted sparse", "predicted dense", "pack", "sparse"});
    Json list = Json::array();
    const Pattern pattern = Pattern::parse(pattern_);
    const int per_pack = static_cast<int>(products_per_pack_);
    const Precision precision = parse_precision(precision_);
    for (const std::string& text : shapes_) {
      const LayerShape shape = LayerShape::parse(text);
      const PlanRequest request{shape,    pattern,          transposable_,
                                per_pack, masked_gradient_, precision};
      for (const ProductPlan& one : planner.plan(request).products) {
        add(shape.str(), one, fastest(measured, one.form, request), table, list);
      }
    }
    for (const std::string& text : convs_) {
      const ConvShape conv = ConvShape::parse(text);
      const LayerPlan plan =
          planner.plan({conv, pattern, transposable_, per_pack, masked_gradient_});
      for (const ProductPlan& one : plan.products) {
        add(conv.spec(), one, measured.measure(one.form, conv, pattern), table, list);
      }
    }
    if (!planner.cache_problem().empty()) print_note(planner.cache_problem());
    const std::string elsewhere = planner.note_on_machine(saved_);
    if (!elsewhere.empty()) print_note(elsewhere);
    if (!save_.empty()) write_file_atomically(save_, planner.saved() + "\n");
    if (common_.json) {
      print_json(list);
    } else {
      tables_.print(table);
      print(fmt::format(
          "\n{}, {}, {}; timings: {}\n", pattern_, threads_text(weft::threads()), current_isa(),
          default_timings_path().empty() ? "not kept" : for_people(default_timings_path())));
    }
    return 0;
  }

 private:
  // With ~ for the home of the user, as people write it.
  static std::string for_people(const std::filesystem::path& path) {
    const char* home = std::getenv("HOME");
    const std::string text = path.string(), prefix = home ? std::string(home) + "/" : "";
    return prefix.size() > 1 && text.starts_with(prefix) ? "~/" + text.substr(prefix.size()) : text;
  }

  // Dense and sparse each in the arithmetic that is faster for it.
  static ProductTimes fastest(Timings& measured, const ProductForm& form,
                              const PlanRequest& request) {
    ProductTimes best;
    for (const Arithmetic& arithmetic : contestants(request, form)) {
      const ProductTimes one = measured.measure(form, request.shape, request.pattern, arithmetic);
      if (best.dense == 0 || one.dense < best.dense) best.dense = one.dense;
      if (best.sparse == 0 || one.sparse < best.sparse) {
        best.sparse = one.sparse;
        best.pack = one.pack;
      }
    }
    return best;
  }

  // One product, as a row of the table and as a record.
  void add(const std::string& shape, const ProductPlan& one, const ProductTimes& now, Table& table,
           Json& list) const {
    const bool predicted = one.predicted.has_value();
    const ProductTimes model = one.predicted.value_or(ProductTimes{});
    const auto ms = [](double value, bool known = true) {
      return known ? fmt::format("{:.3g} ms", value) : std::string("-");
    };
    table.add({shape, one.form.name(), ms(model.dense, predicted), ms(model.sparse, predicted),
               ms(model.pack, predicted), ms(now.dense), ms(now.sparse), ms(now.pack), one.path(),
               one.note.empty() ? one.reason() : one.reason() + "; " + one.note});
    const bool sparse = one.choice == Choice::kSparse && !one.form.masked;
    const auto json_ms = [&](double value) { return predicted ? Json(value) : Json(nullptr); };
    list.push_back({{"shape", shape},
                    {"pattern", Pattern::parse(pattern_).str()},
                    {"threads", weft::threads()},
                    {"isa", current_isa()},
                    {"product", one.form.name()},
                    {"predicted_dense_ms", json_ms(model.dense)},
                    {"predicted_sparse_ms", json_ms(model.sparse)},
                    {"predicted_pack_ms", json_ms(model.pack)},
                    {"decided_by", one.measured          ? "measurement"
                                   : one.times.dense > 0 ? "model"
                                                         : "order"},
                    {"measured_dense_ms", now.dense},
                    {"measured_sparse_ms", now.sparse},
                    {"measured_pack_ms", now.pack},
                    {"choice", choice_name(one.choice)},
                    {"precision", precision_},
                    {"compute", precision_name(one.arithmetic.compute)},
                    {"layout", sparse ? Json(layout_name(one.arithmetic.layout())) : Json(nullptr)},
                    {"arithmetic", one.note},
                    {"why", one.reason()}});
  }

  Planner saved_planner() const {
    const std::string text = read_small_file(saved_);
    try {
      return Planner::from_saved(text);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", saved_, error.what()));
    }
  }

  std::vector<std::string> shapes_, convs_;
  std::string pattern_ = "2:4", mode_ = "auto", precision_ = "fp32", save_, saved_;
  bool transposable_ = false, masked_gradient_ = false, remeasure_ = false;
  int64_t products_per_pack_ = 1;
  TableFlags tables_;
  CommonFlags common_;
};

}  // namespace

CommandEntry plan_command() {
  return {"plan", "Show which products of a layer are faster sparse, and why",
          "  weft plan --shape 2048x768x3072 --pattern 2:4\n"
          "  weft plan --shape 1024x1024x1024 --shape 64x256x256 --pattern 1:8 --threads 1 --json\n"
          "  weft plan --shape 2048x768x3072 --pattern 2:4 --transposable --save plan.json\n"
          "  weft plan --shape 2048x768x3072 --pattern 2:4x16 --transposable --precision bf16\n"
          "  weft plan --conv 8x64x56x56:64x3x3,pad=1 --conv 8x64x56x56:128x3x3,stride=2,pad=1",
          std::make_unique<PlanCommand>()};
}

}  // namespace weft::cli
