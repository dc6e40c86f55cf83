#include "weft/run/run_changes.h"

#include <fmt/format.h>

#include "weft/core/error.h"

namespace weft {
namespace {

// A member of to_json() as people write it.
std::string value_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

RunChange change_from(const Json& entry, const std::string& where) {
  WEFT_CHECK(entry.is_object() && entry.contains("step") && entry["step"].is_number_unsigned(),
             "{}: an entry has no 'step'", where);
  for (const char* name : {"was", "is"}) {
    WEFT_CHECK(entry.contains(name) && entry[name].is_object(), "{}: an entry has no '{}'", where,
               name);
    RunOptions::from_json(entry[name], where);  // options, with values that they accept
  }
  const RunChange change{entry["step"].get<int64_t>(), entry["was"], entry["is"]};
  for (const Json::Member& member : change.was.members()) {
    WEFT_CHECK(change.is.contains(member.name), "{}: '{}' is in 'was' alone", where, member.name);
  }
  return change;
}

}  // namespace

RunOptions RunChange::undone(const RunOptions& after) const {
  Json options = after.to_json();
  for (const Json::Member& member : was.members()) options[member.name] = member.value;
  return RunOptions::from_json(options, "changes");
}

std::string RunChange::text() const {
  std::string text;
  for (const Json::Member& member : was.members()) {
    text += fmt::format("{}{} {} to {}", text.empty() ? "" : ", ", member.name,
                        value_text(member.value), value_text(is.at(member.name)));
  }
  return text;
}

std::vector<RunChange> read_changes(const Json& record, const std::string& file) {
  std::vector<RunChange> changes;
  if (!record.contains("changes")) return changes;
  const std::string where = file + ": 'changes'";
  WEFT_CHECK(record["changes"].is_array(), "{} is not a list", where);
  for (const Json& entry : record["changes"]) changes.push_back(change_from(entry, where));
  return changes;
}

Json to_json(const std::vector<RunChange>& changes) {
  Json list = Json::array();
  for (const RunChange& change : changes) {
    list.push_back({{"step", change.step}, {"was", change.was}, {"is", change.is}});
  }
  return list;
}

std::vector<RunChange> changes_with(std::vector<RunChange> changes, RunOptions there,
                                    const RunOptions& now, int64_t step) {
  while (!changes.empty() && changes.back().step > step) {
    there = changes.back().undone(there);
    changes.pop_back();
  }
  RunChange change{step, Json::object(), Json::object()};
  const Json before = there.to_json(), after = now.to_json();
  for (const OptionField& field : option_fields()) {
    if (!field.may_change || before[field.name] == after[field.name]) continue;
    change.was.append(field.name, before[field.name]);
    change.is.append(field.name, after[field.name]);
  }
  if (!change.was.empty()) changes.push_back(std::move(change));
  return changes;
}

}  // namespace weft
