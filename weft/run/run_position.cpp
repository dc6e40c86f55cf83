#include "weft/run/run_position.h"

#include <fmt/format.h>

#include <cmath>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

constexpr const char* kEntry = "weft.checkpoint";
// Raised when older checkpoints cannot be trusted or read. 2: the checksum covers every tensor.
constexpr int64_t kCheckpointVersion = 2;

Json entry_of(const Metadata& metadata, const std::string& file) {
  const auto found = metadata.find(kEntry);
  WEFT_CHECK(found != metadata.end(), "{}: not a checkpoint of a run of weft", file);
  Json entry = Json::parse(found->second, file);
  WEFT_CHECK(entry.is_object() && entry.contains("version"), "{}: the entry {} has no version",
             file, kEntry);
  WEFT_CHECK(entry["version"] == kCheckpointVersion,
             "{}: checkpoint version {}: accepted is {}; continue with the weft that wrote it, or "
             "start the run again",
             file, printable(entry["version"].dump()), kCheckpointVersion);
  return entry;
}

int64_t whole_number(const Json& entry, const char* name) {
  const Json& value = entry[name];
  WEFT_CHECK(value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{1} << 62,
             "'{}' is not an integer", name);
  return value.get<int64_t>();
}

double amount(const Json& entry, const char* name) {
  const auto value = entry[name].get<double>();
  WEFT_CHECK(std::isfinite(value) && value >= 0.0, "'{}' is {}, accepted is 0 or more", name,
             value);
  return value;
}

}  // namespace

Metadata to_metadata(const SavedPosition& saved) {
  const RunPosition& position = saved.position;
  Json products = Json::array();
  for (const std::string& product : position.products) products.push_back(product);
  const Json entry{{"version", kCheckpointVersion},
                   {"run", position.run},
                   {"step", position.step},
                   {"data_position", position.data_position},
                   {"metrics_bytes", position.metrics_bytes},
                   {"flips", position.flips},
                   {"train_seconds", position.train_seconds},
                   {"products", products},
                   {"optimizer_steps", saved.optimizer_steps}};
  return {{kEntry, entry.dump()}};
}

SavedPosition position_from(const Metadata& metadata, const std::string& file) {
  const Json entry = entry_of(metadata, file);
  SavedPosition saved;
  RunPosition& position = saved.position;
  try {
    position.run = entry["run"].get<std::string>();
    position.step = whole_number(entry, "step");
    position.data_position = whole_number(entry, "data_position");
    position.metrics_bytes = static_cast<uint64_t>(whole_number(entry, "metrics_bytes"));
    position.flips = amount(entry, "flips");
    position.train_seconds = amount(entry, "train_seconds");
    WEFT_CHECK(entry["products"].is_array(), "'products' is not a list");
    for (const Json& product : entry["products"]) {
      position.products.insert(product.get<std::string>());
    }
    saved.optimizer_steps = entry["optimizer_steps"];
    WEFT_CHECK(saved.optimizer_steps.is_object(), "'optimizer_steps' is not an object");
  } catch (const Error& error) {
    throw Error(fmt::format("{}: the entry {} is malformed: {}", file, kEntry, error.what()));
  }
  return saved;
}

}  // namespace weft
