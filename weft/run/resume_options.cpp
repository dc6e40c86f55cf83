#include "weft/run/resume_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/run/run_folder.h"

namespace weft {

RunOptions resume_options(const std::filesystem::path& folder) {
  const Json record = read_run_record(folder);
  const std::string name = printable((folder / "run.json").string(), 4096);
  RunOptions options = RunOptions::from_json(record["options"], name);
  // All cores then may be others than all cores now.
  if (options.threads == 0) {
    const Json& environment = record["environment"];
    WEFT_CHECK(environment.contains("threads") && environment["threads"].is_number_unsigned() &&
                   environment["threads"].get<uint64_t>() >= 1 &&
                   environment["threads"].get<uint64_t>() <= kMaxThreads,
               "{}: the number of threads is not in 1 to {}", name, kMaxThreads);
    options.threads = environment["threads"].get<int64_t>();
  }
  return options;
}

RunOptions options_to_continue(const std::filesystem::path& folder, const RunOptions& wanted,
                               const std::vector<std::string>& given) {
  RunOptions options = resume_options(folder);
  require_same_options(folder, options, wanted,
                       [](const OptionField& field) { return field.may_change; });
  const auto is_given = [&](const std::string& name) {
    return std::ranges::find(given, name) != given.end();
  };
  for (const OptionField& field : option_fields()) {
    const bool length = field.name == "steps" || field.name == "epochs";  // one says both
    const bool wants = length ? is_given("steps") || is_given("epochs") : is_given(field.name);
    if (field.may_change && wants) field.set(options, field.get(wanted));
  }
  return options;
}

void require_same_options(const std::filesystem::path& folder, const RunOptions& there,
                          const RunOptions& wanted,
                          const std::function<bool(const OptionField&)>& may_differ) {
  for (const OptionField& field : option_fields()) {
    if (may_differ(field) || field.get(there) == field.get(wanted)) continue;
    throw Error(fmt::format("{}: has a run with {} {}, not {}: choose another folder",
                            printable(folder.string(), 4096), field.name,
                            fmt::join(field.get(there), " "), fmt::join(field.get(wanted), " ")));
  }
}

}  // namespace weft
