#include "cli/run_flags.h"

#include <algorithm>

#include "cli/shared.h"

namespace weft::cli {
namespace {

std::string help_of(const OptionField& field) {
  const std::vector<std::string> values = field.get(RunOptions());
  const bool none = values.empty() || values[0].empty();
  if (field.kind == OptionKind::kSwitch || none) return field.help;
  return fmt::format("{} (default: {})", field.help, values[0]);
}

Flags::Problem problem_with(const OptionField& field) {
  return problem_in([&field](const std::string& text) {
    RunOptions scratch;
    field.set(scratch, {text});
  });
}

}  // namespace

std::vector<std::string> RunFlags::Value::given() const {
  if (field->kind == OptionKind::kTexts) return texts;
  if (field->kind == OptionKind::kSwitch) {
    return on ? std::vector<std::string>{"true"} : std::vector<std::string>{};
  }
  return text.empty() ? std::vector<std::string>{} : std::vector{text};
}

void RunFlags::declare(Flags& flags, const std::vector<std::string>& except) {
  except_ = except;
  flags.text("--config", "FILE", config_, "A TOML file with any of the options below as keys");
  for (const OptionField& field : option_fields()) {
    if (std::ranges::find(except, field.name) == except.end()) {
      values_.emplace_back().field = &field;
    }
  }
  for (Value& value : values_) {  // no longer moves
    const OptionField& field = *value.field;
    const std::string name = "--" + field.name + (field.alias.empty() ? "" : ",--" + field.alias);
    const std::string help = help_of(field);
    if (field.kind == OptionKind::kSwitch) {
      flags.flag(name.c_str(), value.on, help.c_str());
    } else if (field.kind == OptionKind::kTexts) {
      flags.texts(name.c_str(), field.type.c_str(), value.texts, help.c_str(), problem_with(field));
    } else {
      flags.text(name.c_str(), field.type.c_str(), value.text, help.c_str(), problem_with(field));
    }
  }
}

RunOptions RunFlags::options() const {
  RunOptions options;
  if (!config_.empty()) read_config(config_, options, except_);
  apply(options);
  return options;
}

void RunFlags::apply(RunOptions& options) const {
  for (const Value& value : values_) {
    const std::vector<std::string> given = value.given();
    if (!given.empty()) value.field->set(options, given);
  }
}

std::vector<std::string> RunFlags::named() const {
  std::vector<std::string> names;
  RunOptions scratch;
  if (!config_.empty()) names = read_config(config_, scratch, except_);
  for (const Value& value : values_) {
    if (!value.given().empty()) names.push_back(value.field->name);
  }
  return names;
}

std::vector<std::string> RunFlags::given() const {
  std::vector<std::string> names;
  if (!config_.empty()) names.push_back("--config");
  for (const Value& value : values_) {
    if (!value.given().empty()) names.push_back("--" + value.field->name);
  }
  return names;
}

}  // namespace weft::cli
