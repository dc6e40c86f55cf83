// Shared by several commands: flags, output, and texts for skipped tensors.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/progress.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/select.h"
#include "weft/core/json.h"
#include "weft/core/parallel.h"
#include "weft/core/pattern.h"
#include "weft/mask/solver.h"
#include "weft/prune/job.h"
#include "weft/report/table.h"

namespace weft::cli {

// --json and --threads, which every command has.
struct CommonFlags {
  bool json = false;
  int64_t threads = weft::threads();  // all cores

  void declare(Flags& flags);
  void apply() const;  // sets the threads
};

// The check of a flag whose value `parse` refuses by throwing Error.
Flags::Problem problem_in(const std::function<void(const std::string&)>& parse);
// The check of a flag that takes one of a few words.
Flags::Problem one_of(std::vector<std::string> accepted);

void declare_pattern(Flags& flags, std::string& pattern);          // --pattern
std::optional<Pattern> given_pattern(const std::string& pattern);  // nothing: the flag is not given

// --include, --exclude and --transposed, each of them any number of times
struct NameFilter {
  std::vector<std::string> include, exclude, transposed;

  void declare(Flags& flags);
  NameExpressions expressions() const;
};

// --wide: tables otherwise fit kTableColumns.
inline constexpr size_t kTableColumns = 100;
struct TableFlags {
  bool wide = false;

  void declare(Flags& flags);
  void print(const Table& table) const;
  void print_lines(const std::string& text) const;  // below a table: wrapped, unless it is wide
};

struct Skipped {
  std::string name;
  std::string reason;
  std::string kind = "";  // what it is counted as; empty: its reason
};
Skipped skipped(const TensorInfo& tensor, LeftAlone reason);
std::vector<Skipped> skipped(const std::vector<SkippedTensor>& tensors);
// "[768, 2304]", and "[768, 2304] = [ins, outs]" of a transposed one.
std::string stored_shape_text(const std::vector<int64_t>& shape, bool transposed);
Json to_json(const std::vector<Skipped>& skipped);

// --wide and --verbose, of commands that list the tensors of a model.
struct TensorTableFlags : TableFlags {
  bool verbose = false;

  void declare(Flags& flags);
  // How many tensors of all were left alone, by reason; with --verbose, which. After a blank line.
  void print_left_alone(const std::vector<Skipped>& skipped, size_t all) const;
};
// "name does not end in 'weight' (50), normalisation (13)": the reasons, the most frequent first.
std::string count_reasons(const std::vector<Skipped>& skipped);

// --in-place: OUT is IN.
struct InPlaceFlag {
  bool on = false;

  void declare(Flags& flags, const char* in = "IN");
};

// The bar, and notes on standard error, for a function of the library. `progress` must outlive it.
Listener listener(Progress& progress);

std::string threads_text(int count);            // "1 thread", "2 threads"
void print(const std::string& text);            // to standard output
void print_paragraph(const std::string& text);  // after a blank line, wrapped
// Lines: where the result is, and what was copied beside it.
void print_written(const std::filesystem::path& path, const Companions& companions);
Json to_json(const Companions& companions);      // {"copied": [...], "not_copied": [...]}
std::string name_text(const std::string& name);  // of a tensor, for a table
void print_note(const std::string& text);        // a line on standard error
void print_json(const Json& document);           // likewise, with a line end

std::string percent(double fraction);      // "70.23%"
std::string bytes_text(uint64_t bytes);    // "1.5 MB"
std::string seconds_text(double seconds);  // "1.23 s", "12.3 ms"

}  // namespace weft::cli
