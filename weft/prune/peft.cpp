#include "weft/prune/peft.h"

#include <re2/re2.h>

#include <cmath>

#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"

namespace weft {
namespace {

// Ends of layer names, as PEFT's get_pattern_key matches them.
RE2 end_of_layer(const std::string& key) { return RE2("(?:.*\\.)?(?:" + key + ")", RE2::Quiet); }

// The members of the file, each checked on its way out.
class ConfigReader {
 public:
  ConfigReader(const Json& document, const std::string& name) : document_(document), name_(name) {}

  // Absent and null are the same to PEFT.
  bool has(const char* key) const {
    return document_.contains(key) && !document_.at(key).is_null();
  }
  bool flag(const char* key) const {
    if (!has(key)) return false;
    const Json& value = document_.at(key);
    if (!value.is_boolean()) refuse(key, value, "true or false");
    return value.get<bool>();
  }
  std::string text(const char* key) const {
    if (!has(key)) return "";
    const Json& value = document_.at(key);
    if (!value.is_string()) refuse(key, value, "a text");
    return value.get<std::string>();
  }
  double number(const char* key) const {
    WEFT_CHECK(has(key), "{}: no '{}'", name_, key);
    return number_in(key, document_.at(key));
  }
  double rank(const char* key) const {
    WEFT_CHECK(has(key), "{}: no '{}'", name_, key);
    return rank_in(key, document_.at(key));
  }
  std::map<std::string, double> pattern(const char* key, bool of_ranks) const {
    std::map<std::string, double> values;
    if (!has(key)) return values;
    const Json& object = document_.at(key);
    if (!object.is_object()) refuse(key, object, "an object of numbers");
    for (const auto& [layers, value] : object.members()) {
      const std::string what = fmt::format("{}.{}", key, printable(layers));
      const RE2 expression = end_of_layer(layers);
      WEFT_CHECK(expression.ok(), "{}: '{}': not a regular expression that weft knows: {}", name_,
                 what, printable(expression.error()));
      values[layers] = of_ranks ? rank_in(what, value) : number_in(what, value);
    }
    return values;
  }

  [[noreturn]] void refuse(const std::string& key, const Json& value,
                           const std::string& accepted) const {
    throw Error(fmt::format("{}: '{}' is {}: accepted is {}", name_, key,
                            printable(value.dump(), 80), accepted));
  }
  const Json& at(const char* key) const { return document_.at(key); }

 private:
  double number_in(const std::string& key, const Json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      refuse(key, value, "a number");
    }
    return value.get<double>();
  }
  double rank_in(const std::string& key, const Json& value) const {
    if (!value.is_number_unsigned() || value == 0)
      refuse(key, value, "a whole number of 1 or more");
    return value.get<double>();
  }

  const Json& document_;
  const std::string& name_;
};

// What a plain LoRA has not. Each is a switch that changes what the adapter computes.
void refuse_what_is_not_lora(const ConfigReader& config) {
  if (!config.has("peft_type") || config.text("peft_type") != "LORA") {
    config.refuse("peft_type", config.has("peft_type") ? config.at("peft_type") : Json(),
                  "\"LORA\"");
  }
  for (const char* key : {"use_dora", "lora_bias", "use_qalora"}) {
    if (config.flag(key)) config.refuse(key, true, "false: weft merges plain LoRA");
  }
  for (const char* key : {"modules_to_save", "layer_replication", "alora_invocation_tokens",
                          "trainable_token_indices", "target_parameters"}) {
    if (!config.has(key) || config.at(key).empty()) continue;
    config.refuse(key, config.at(key), "null: weft merges LoRA pairs alone");
  }
  // These take something out of the base before training: B A is not the difference from it.
  if (!config.has("init_lora_weights") || !config.at("init_lora_weights").is_string()) return;
  const std::string init = config.text("init_lora_weights");
  for (const char* changes_base : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
    if (!init.starts_with(changes_base)) continue;
    config.refuse("init_lora_weights", config.at("init_lora_weights"),
                  "an initialisation that leaves the base unchanged: let PEFT convert the adapter "
                  "to plain LoRA");
  }
}

}  // namespace

std::optional<PeftConfig> PeftConfig::beside(const Checkpoint& adapter) {
  const std::filesystem::path path = adapter.paths().front().parent_path() / "adapter_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return parse(read_small_file(path), path.string());
}

PeftConfig PeftConfig::parse(const std::string& text, const std::string& name) {
  const Json document = Json::parse(text, name);
  WEFT_CHECK(document.is_object(), "{}: not an object", name);
  const ConfigReader reader(document, name);
  refuse_what_is_not_lora(reader);
  PeftConfig config;
  config.name_ = name;
  config.rank_ = reader.rank("r");
  config.alpha_ = reader.number("lora_alpha");
  config.rslora_ = reader.flag("use_rslora");
  config.fan_in_fan_out_ = reader.flag("fan_in_fan_out");
  config.ranks_ = reader.pattern("rank_pattern", true);
  config.alphas_ = reader.pattern("alpha_pattern", false);
  return config;
}

double PeftConfig::scale_of(const std::string& layer, int64_t rank) const {
  const auto value_for = [&](const char* key, const std::map<std::string, double>& pattern,
                             double usual) {
    const std::string* matched = nullptr;
    double value = usual;
    for (const auto& [layers, own] : pattern) {
      if (!RE2::FullMatch(layer, end_of_layer(layers))) continue;
      WEFT_CHECK(matched == nullptr || own == value,
                 "{}: '{}': both '{}' and '{}' match layer '{}', with {} and {}: accepted is one",
                 name_, key, printable(*matched), printable(layers), printable(layer), value, own);
      matched = &layers;
      value = own;
    }
    return value;
  };
  const double r = value_for("rank_pattern", ranks_, rank_);
  const double alpha = value_for("alpha_pattern", alphas_, alpha_);
  WEFT_CHECK(r == static_cast<double>(rank),
             "{}: 'r' is {} for layer '{}', but its tensors have rank {}", name_, r,
             printable(layer), rank);
  return alpha / (rslora_ ? std::sqrt(r) : r);
}

}  // namespace weft
