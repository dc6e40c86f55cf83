#include "weft/report/runs.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "weft/core/error.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"
#include "weft/recipe/recipe.h"
#include "weft/run/run_folder.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string shown_path(const fs::path& path) { return printable(path.string(), 4096); }

bool is_run(const fs::path& folder) {
  std::error_code failure;
  return fs::exists(folder / "run.json", failure);
}

std::vector<fs::path> runs_below(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const bool for_times = RE2::FullMatch(entry->path().filename().string(), ".*-turns\\d+");
    if (!for_times && is_run(entry->path())) found.push_back(entry->path());
  }
  std::ranges::sort(found);
  return found;
}

// A text of the record; empty if there is none.
std::string text_of(const Json& object, std::string_view name, const std::string& where) {
  if (!object.contains(name)) return "";
  WEFT_CHECK(object[name].is_string(), "{}: '{}' is not a text", where, name);
  return object[name].get<std::string>();
}

ReportedLayer layer_from(const Json& entry, const std::string& where) {
  WEFT_CHECK(entry.is_object() && entry.contains("name"), "{}: a layer without a name", where);
  ReportedLayer layer{text_of(entry, "name", where),   text_of(entry, "kind", where),
                      text_of(entry, "recipe", where), text_of(entry, "pattern", where),
                      text_of(entry, "reason", where), {}};
  for (const Json::Member& member : entry.members()) {
    if (!member.value.is_object() || !member.value.contains("choice")) continue;
    layer.products.push_back({member.name, text_of(member.value, "choice", where),
                              text_of(member.value, "reason", where)});
  }
  // fwd, bwd_x, bwd_w: the order of a step.
  std::ranges::stable_sort(layer.products, {}, [](const ReportedProduct& product) {
    return product.name.starts_with("fwd") ? 0 : product.name.starts_with("bwd_x") ? 1 : 2;
  });
  return layer;
}

void read_figures(ReportedRun& run) {
  MetricsListener listener;
  Json last, last_measured;
  listener.on_step = [&](const StepMetrics& s) {
    StepFigures figures{s.step,
                        s.train_seconds,
                        s.loss,
                        s.flip_rate,
                        s.density,
                        s.step_ms,
                        mean_over_layers(s.layers, "retained"),
                        s.part_ms,
                        s.measuring};
    run.steps.push_back(figures);
    last = s.layers;
    if (std::isfinite(figures.retained)) last_measured = s.layers;
  };
  listener.on_eval = [&](const EvalReport& e, double seconds) {
    run.evals.push_back({e.step, seconds, e.loss, e.accuracy});
  };
  read_metrics(run.folder / "metrics.jsonl", listener);
  run.last_layers = last.is_null() ? Json::object() : last;
  for (const Json::Member& layer : last_measured.members()) {
    if (!run.last_layers.contains(layer.name) || !layer.value.contains("retained")) continue;
    run.last_layers[layer.name]["retained"] = layer.value["retained"];
  }
}

// Options in which runs may differ and be one variant: none of them changes what is learnt.
bool is_of_a_run_alone(const std::string& option) {
  static const std::set<std::string> kAlone = {"seed",        "threads",          "plan",
                                               "export",      "checkpoint-every", "flips-of",
                                               "dense-flips", "telemetry-every",  "metrics-every"};
  return kAlone.contains(option);
}

bool is_dense_run(const RunOptions& options) {
  return Recipe::parse(options.recipe).is_dense() && options.rules.empty();
}

using OptionTexts = std::map<std::string, std::vector<std::string>>;

// By option; those of a run alone are left out, and the pattern of a dense run.
OptionTexts shared_options(const RunOptions& options) {
  OptionTexts shared;
  for (const OptionField& field : option_fields()) {
    if (is_of_a_run_alone(field.name)) continue;
    if (field.name == "pattern" && is_dense_run(options)) continue;
    shared[field.name] = field.get(options);
  }
  const bool forced = options.plan == "dense" || options.plan == "sparse";
  if (forced) shared["plan"] = {options.plan};
  return shared;
}

void add_differing(const OptionTexts& a, const OptionTexts& b, std::set<std::string>& differing) {
  for (const auto& [option, values] : a) {
    const auto other = b.find(option);
    if (other == b.end() || other->second != values) differing.insert(option);
  }
  for (const auto& [option, values] : b) {
    if (!a.contains(option)) differing.insert(option);
  }
}

RunOptions usual_options(const RunOptions& like) {
  RunOptions usual;
  usual.model = like.model;
  usual.optimizer = like.optimizer;
  return usual.resolved();
}

// Names the recipe, the pattern, and of the other options in which variants differ those that are
// not the default.
std::string name_of(const RunOptions& options, const std::set<std::string>& differing) {
  std::string name = options.recipe;
  if (!is_dense_run(options)) name += " " + options.pattern;
  const auto usual = shared_options(usual_options(options));
  for (const auto& [option, values] : shared_options(options)) {
    if (option == "recipe" || option == "pattern" || !differing.contains(option)) continue;
    const auto found = usual.find(option);
    if (option != "model" && found != usual.end() && found->second == values) continue;
    name += fmt::format(", {}{}", option == "model" ? "" : option + " ",
                        values.empty() ? "none" : fmt::format("{}", fmt::join(values, " ")));
  }
  return name;
}

// The row of the comparison that the run is one of, if its table is there.
std::optional<ComparedSpeed> compared_speed(const ReportedRun& run) {
  const fs::path path = run.folder.parent_path() / "compare.json";
  std::error_code failure;
  if (!fs::exists(path, failure)) return std::nullopt;
  const std::string name = shown_path(path);
  const Json document = Json::parse(read_small_file(path), name);
  WEFT_CHECK(document.is_object() && document.contains("rows") && document["rows"].is_array(),
             "{}: not the table of a comparison: 'rows' is missing", name);
  const std::string pattern = is_dense_run(run.options) ? "" : run.options.pattern;
  try {
    for (const Json& row : document["rows"]) {
      if (row["recipe"] != run.options.recipe || row["pattern"] != pattern) continue;
      const Json& spread = row["step_ratio_spread"];
      WEFT_CHECK(spread.is_array() && spread.size() == 2, "'step_ratio_spread' is not two numbers");
      return ComparedSpeed{row["step_ratio"].get<double>(), spread[0].get<double>(),
                           spread[1].get<double>()};
    }
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()));
  }
  return std::nullopt;
}

// That of all runs, or none.
std::optional<ComparedSpeed> speed_of(const Variant& variant) {
  for (const ReportedRun* run : variant.runs) {
    if (run->folder.parent_path() != variant.runs.front()->folder.parent_path()) return {};
  }
  return compared_speed(*variant.runs.front());
}

}  // namespace

bool ReportedRun::diverged() const {
  return std::ranges::any_of(steps, [](const auto& s) { return !std::isfinite(s.loss); }) ||
         std::ranges::any_of(evals, [](const auto& e) { return !std::isfinite(e.loss); });
}

std::vector<fs::path> run_folders(const std::vector<std::string>& arguments) {
  std::vector<fs::path> folders;
  std::set<fs::path> seen;
  for (const std::string& argument : arguments) {
    const fs::path folder = argument;
    const std::vector<fs::path> found = is_run(folder) ? std::vector{folder} : runs_below(folder);
    WEFT_CHECK(!found.empty(),
               "{}: not the folder of a run or of a comparison: run.json is missing",
               shown_path(folder));
    for (const fs::path& run : found) {
      std::error_code failure;
      fs::path known = fs::weakly_canonical(run, failure);
      if (seen.insert(failure ? run : known).second) folders.push_back(run);
    }
  }
  return folders;
}

std::vector<std::string> run_names(const std::vector<fs::path>& folders) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const fs::path& folder : folders) {
    std::error_code failure;
    fs::path whole = fs::weakly_canonical(folder, failure);
    if (!whole.has_filename()) whole = whole.parent_path();  // "runs/first/", if it is not there
    const std::string base = whole.has_filename() ? whole.filename().string() : "run";
    std::string name = base;
    for (int number = 2; !taken.insert(name).second; ++number) {
      name = fmt::format("{}-{}", base, number);
    }
    names.push_back(name);
  }
  return names;
}

ReportedRun read_reported_run(const fs::path& folder, const std::string& name) {
  const std::string where = shown_path(folder / "run.json");
  const Json record = read_run_record(folder);
  ReportedRun run;
  run.folder = folder.lexically_normal();
  if (!run.folder.has_filename()) run.folder = run.folder.parent_path();  // "runs/first/"
  run.name = name;
  run.options = RunOptions::from_json(record["options"], where);
  if (const auto found = found_lambda(record, where)) run.lambda = found->lambda;
  run.changes = read_changes(record, where);
  WEFT_CHECK(record["environment"].is_object(), "{}: 'environment' is not an object", where);
  for (const Json::Member& member : record["environment"].members()) {
    const Json& value = member.value;
    run.environment[member.name] = value.is_string() ? value.get<std::string>() : value.dump();
    if (member.name == "threads" && run.options.threads == 0 && value.is_number_unsigned()) {
      run.options.threads =
          static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), 1 << 16));
    }
  }
  if (record.contains("layers")) {
    WEFT_CHECK(record["layers"].is_array(), "{}: 'layers' is not a list", where);
    for (const Json& layer : record["layers"]) run.layers.push_back(layer_from(layer, where));
  }
  if (record["status"] == "done") run.result = read_run_result(folder);
  read_figures(run);
  return run;
}

std::vector<Variant> variants_of(const std::vector<ReportedRun>& runs) {
  std::vector<OptionTexts> keys;
  std::vector<Variant> variants;
  std::set<std::string> differing;
  for (const ReportedRun& run : runs) {
    const auto key = shared_options(run.options);
    const auto found = std::ranges::find(keys, key);
    const auto at = static_cast<size_t>(found - keys.begin());
    if (found == keys.end()) {
      keys.push_back(key);
      add_differing(keys.front(), key, differing);
      variants.emplace_back().dense = is_dense_run(run.options);
    }
    variants[at].runs.push_back(&run);
  }
  std::ranges::stable_sort(variants, {}, [](const Variant& variant) { return !variant.dense; });
  int style = 0;
  bool neutral = false;  // whether a dense one has the neutral style
  for (Variant& variant : variants) {
    variant.name = name_of(variant.runs.front()->options, differing);
    variant.style = variant.dense && !neutral ? 0 : ++style;
    neutral |= variant.dense;
    variant.speed = speed_of(variant);
  }
  return variants;
}

}  // namespace weft
