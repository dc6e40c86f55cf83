// Choices of the planner as text: the names of paths, reasons, and saved choices (JSON).
#include <utility>

#include "weft/core/cpu_name.h"
#include "weft/core/error.h"
#include "weft/core/isa.h"
#include "weft/core/json.h"
#include "weft/core/text.h"
#include "weft/plan/planner.h"

namespace weft {
namespace {

// The paths by their names, as they are printed and saved.
struct NamedPath {
  std::string_view name;
  Choice choice;
  Precision compute;
  bool stream;
};
constexpr NamedPath kPaths[] = {
    {"dense", Choice::kDense, Precision::kFp32, false},
    {"dense bf16", Choice::kDense, Precision::kBf16, false},
    {"sparse", Choice::kSparse, Precision::kFp32, false},
    {"sparse bf16", Choice::kSparse, Precision::kBf16, false},
    {"sparse stream", Choice::kSparse, Precision::kFp32, true},
};

ProductPlan plan_from(const Json& path, const std::string& key) {
  for (const NamedPath& named : kPaths) {
    if (path != std::string(named.name)) continue;
    ProductPlan plan;
    plan.choice = named.choice;
    plan.arithmetic.compute = named.compute;
    plan.arithmetic.stream = named.stream;
    plan.cause = PlanCause::kSaved;
    return plan;
  }
  throw Error(
      fmt::format("saved plan: the path of '{}': accepted are 'dense', 'sparse', 'sparse stream', "
                  "'dense bf16' and 'sparse bf16'",
                  printable(key)));
}

// The member of the saved plan's root, or of an entry, that must be an object.
const Json& object_in(const Json& root, const char* name) {
  WEFT_CHECK(root.contains(name) && root[name].is_object(), "saved plan: object '{}' is missing",
             name);
  return root[name];
}

int64_t whole_in(const Json& entry, const char* name, const std::string& key) {
  WEFT_CHECK(entry.is_object() && entry.contains(name) && entry[name].is_number_unsigned(),
             "saved plan: '{}' has no integer '{}'", printable(key), name);
  return entry[name].get<int64_t>();
}

PlanMachine machine_in(const Json& root) {
  const Json& machine = object_in(root, "machine");
  for (const char* name : {"cpu", "isa"}) {
    WEFT_CHECK(machine.contains(name) && machine[name].is_string(),
               "saved plan: 'machine' has no text '{}'", name);
  }
  return {machine["cpu"].get<std::string>(), machine["isa"].get<std::string>()};
}

}  // namespace

PlanMachine PlanMachine::here() { return {cpu_name(), current_isa()}; }

std::string_view choice_name(Choice choice) {
  return choice == Choice::kDense ? "dense" : "sparse";
}

std::string path_text(Choice choice, const Arithmetic& arithmetic) {
  for (const NamedPath& path : kPaths) {
    const bool stream =
        choice == Choice::kSparse && arithmetic.compute == Precision::kFp32 && arithmetic.stream;
    if (path.choice == choice && path.compute == arithmetic.compute && path.stream == stream) {
      return std::string(path.name);
    }
  }
  return std::string(choice_name(choice));
}

std::string Way::text() const {
  return path_text(sparse ? Choice::kSparse : Choice::kDense, {.compute = compute});
}

std::string ProductPlan::reason() const {
  switch (cause) {
    case PlanCause::kMeasuring: return "being measured";
    case PlanCause::kNothingPruned: return "nothing is pruned";
    case PlanCause::kAskedFor: return "asked for";
    case PlanCause::kSaved: return "saved";
    case PlanCause::kExactGradient: return "exact";
    case PlanCause::kNotComputed: return "not computed";
    case PlanCause::kTrial:
      return fmt::format(
          "measured in the run: dense / (sparse + packing) = {:.2f} ({:.2f} to {:.2f})", ratio,
          ratio_low, ratio_high);
    case PlanCause::kMeasured:
    case PlanCause::kPredicted: break;
  }
  return fmt::format("{}: dense / (sparse{}) = {:.2f}", measured ? "measured" : "predicted",
                     packs ? " + packing" : "", ratio);
}

PlanMode parse_plan_mode(std::string_view text) {
  if (text == "auto") return PlanMode::kAuto;
  if (text == "dense") return PlanMode::kDense;
  WEFT_CHECK(text == "sparse", "plan '{}': accepted are auto, dense and sparse", printable(text));
  return PlanMode::kSparse;
}

// ---- saved choices

std::string Planner::saved() const {
  Json plans = Json::object();
  for (const auto& [key, entry] : entries_) {
    Json one{{"begun", entry.begun},
             {"since", entry.since},
             {"size", entry.size},
             {"weights", entry.weights}};
    if (entry.decided) one["path"] = entry.plan.path();
    plans.append(key, std::move(one));
  }
  Json untrained = Json::object();
  for (const auto& [key, plan] : untrained_) untrained.append(key, plan.path());
  const PlanMachine machine = saved_on_.value_or(PlanMachine::here());
  return Json{{"machine", {{"cpu", machine.cpu}, {"isa", machine.isa}}},
              {"plans", plans},
              {"untrained", untrained},
              {"version", 2}}
      .dump();
}

std::string Planner::note_on_machine(const std::string& name) const {
  const PlanMachine here = PlanMachine::here();
  if (!saved_on_ || *saved_on_ == here) return "";
  return fmt::format("plan {}: measured on {}; this is {}: other choices may be faster here",
                     printable(name, 4096), printable(saved_on_->text()), here.text());
}

Planner Planner::from_saved(std::string_view text) {
  Planner planner(PlanMode::kAuto, {});
  planner.remember(text);
  planner.only_saved_ = true;
  return planner;
}

std::map<std::string, Planner::Entry> Planner::entries_from(const Json& root) {
  std::map<std::string, Entry> entries;
  for (const auto& [key, value] : object_in(root, "plans").members()) {
    Entry entry;
    entry.begun = whole_in(value, "begun", key);
    entry.since = whole_in(value, "since", key);
    entry.size = whole_in(value, "size", key);
    WEFT_CHECK(value.contains("weights") && value["weights"].is_string(),
               "saved plan: '{}' has no text 'weights'", printable(key));
    entry.weights = value["weights"].get<std::string>();
    entry.decided = value.contains("path");
    if (entry.decided) entry.plan = plan_from(value["path"], key);
    entries.emplace(key, std::move(entry));
  }
  return entries;
}

void Planner::remember(std::string_view text) {
  const Json root = Json::parse_or_null(text);
  WEFT_CHECK(root.is_object() && root.contains("version"),
             "saved plan: it is not a JSON object with a 'version'");
  WEFT_CHECK(root["version"] == 2, "saved plan: version {}, accepted is 2",
             printable(root["version"].dump()));
  std::map<std::string, Entry> entries = entries_from(root);
  for (const auto& [key, path] : object_in(root, "untrained").members()) {
    untrained_.emplace(key, plan_from(path, key));
  }
  for (auto& [key, entry] : entries) {
    const auto there = entries_.find(key);
    // Existing entries stay, but a choice replaces an interrupted trial.
    const bool replaces =
        there != entries_.end() && entry.decided && !there->second.decided && !there->second.trial;
    if (there == entries_.end() || replaces) entries_.insert_or_assign(key, std::move(entry));
  }
  if (root.contains("machine")) saved_on_ = machine_in(root);
  ++revision_;
}

void Planner::adopt(std::string_view text) {
  for (auto& [key, other] : entries_from(Json::parse(text, "the plan of rank 0"))) {
    if (!other.decided) continue;
    const auto there = entries_.find(key);
    if (there == entries_.end()) {
      entries_.emplace(key, std::move(other));
      continue;
    }
    Entry& entry = there->second;
    entry.plan.choice = other.plan.choice;
    entry.plan.arithmetic = other.plan.arithmetic;
    entry.plan.cause = PlanCause::kSaved;
    entry.since = other.since;
    entry.decided = true;
    entry.trial.reset();
  }
  ++revision_;
}

}  // namespace weft
