#include "weft/report/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <cmath>
#include <span>

#include "weft/core/atomic_file.h"
#include "weft/core/error.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"
#include "weft/report/event_file.h"
#include "weft/report/runs.h"
#include "weft/run/run_folder.h"

namespace weft {
namespace {

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

// The shortest text that is the same number.
std::string csv_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "";
}

// "first,s-ste,2:4,1": what every row of the run begins with.
std::string row_head(const std::filesystem::path& folder, const std::string& name) {
  const Json record = read_run_record(folder);
  const RunOptions options =
      RunOptions::from_json(record["options"], printable((folder / "run.json").string(), 4096));
  return fmt::format("{},{},{},{}", csv_cell(name), csv_cell(options.recipe), options.pattern,
                     options.seed);
}

// Calls body(folder, name) for each run that the arguments name.
template <typename Body>
void for_each_run(const std::vector<std::string>& arguments, Body body) {
  const std::vector<std::filesystem::path> folders = run_folders(arguments);
  const std::vector<std::string> names = run_names(folders);
  for (size_t i = 0; i < folders.size(); ++i) body(folders[i], names[i]);
}

// Figures of a step or of a layer that are numbers, by their names in metrics.jsonl.
std::vector<Scalar> numbers_in(const Json& object, const std::string& before,
                               const std::string& after = "") {
  std::vector<Scalar> found;
  for (const Json::Member& member : object.members()) {
    if (!member.value.is_number()) continue;
    found.push_back({before + member.name + after, member.value.get<double>()});
  }
  return found;
}

std::vector<Scalar> finite(std::vector<Scalar> scalars) {
  std::erase_if(scalars, [](const Scalar& scalar) { return !std::isfinite(scalar.value); });
  return scalars;
}

std::vector<Scalar> step_scalars(const StepMetrics& s) {
  std::vector<Scalar> all = {{"train/loss", s.loss},
                             {"train/learning_rate", s.learning_rate},
                             {"train/gradient_norm", s.gradient_norm},
                             {"sparsity/flip_rate", s.flip_rate},
                             {"sparsity/density", s.density},
                             {"sparsity/retained", mean_over_layers(s.layers, "retained")},
                             {"time/step_ms", s.step_ms}};
  for (size_t i = 0; i < kStepParts.size(); ++i) {
    all.push_back({fmt::format("time/{}_ms", kStepParts[i]), s.part_ms[i]});
  }
  for (const Scalar& flips : numbers_in(s.dense_flips, "flips_of/")) all.push_back(flips);
  for (const Json::Member& layer : s.layers.members()) {
    for (const Scalar& figure : numbers_in(layer.value, "", "/" + layer.name))
      all.push_back(figure);
  }
  return finite(all);
}

double last_change(const std::filesystem::path& path) {
  struct stat found = {};
  WEFT_CHECK(::stat(path.c_str(), &found) == 0, "{}: cannot be read",
             printable(path.string(), 4096));
  return static_cast<double>(found.st_mtim.tv_sec) +
         1e-9 * static_cast<double>(found.st_mtim.tv_nsec);
}

// Pieces of a file, gathered so that the file is written in large ones.
class GatheredFile {
 public:
  explicit GatheredFile(const std::filesystem::path& target) : file_(target) {}
  void add(const std::string& piece) {
    gathered_ += piece;
    if (gathered_.size() >= size_t{1} << 20) flush();
  }
  void commit() {
    flush();
    file_.commit();
  }

 private:
  void flush() {
    file_.write_at(written_, std::as_bytes(std::span(gathered_)));
    written_ += gathered_.size();
    gathered_.clear();
  }

  AtomicFile file_;
  std::string gathered_;
  uint64_t written_ = 0;
};

void write_events(const std::filesystem::path& metrics, const std::filesystem::path& target) {
  double all_seconds = 0.0;
  read_metrics(metrics, {[&](const StepMetrics& s) { all_seconds = s.train_seconds; }, {}});
  const double begin = last_change(metrics) - all_seconds;
  GatheredFile file(target);
  file.add(first_event(begin));
  MetricsListener listener;
  listener.on_step = [&](const StepMetrics& s) {
    file.add(scalar_event(begin + s.train_seconds, s.step, step_scalars(s)));
  };
  listener.on_eval = [&](const EvalReport& e, double seconds) {
    file.add(scalar_event(begin + seconds, e.step,
                          finite({{"eval/loss", e.loss}, {"eval/accuracy", e.accuracy}})));
  };
  read_metrics(metrics, listener);
  file.commit();
}

// The folder below `target` for the events of a run, with the path of the run in its run.txt: "first",
// or "first-2" if that is of another run.
std::filesystem::path claim_events(const std::filesystem::path& target,
                                   const std::filesystem::path& run) {
  std::error_code failure;
  std::filesystem::path whole = std::filesystem::weakly_canonical(run, failure);
  if (!whole.has_filename()) whole = whole.parent_path();
  const std::string owner = (failure ? run : whole).string() + "\n",
                    name = run_names({run}).front();
  for (int number = 1;; ++number) {
    const auto place = target / (number == 1 ? name : fmt::format("{}-{}", name, number));
    const auto note = place / "run.txt";
    if (std::filesystem::exists(note, failure)) {
      if (read_small_file(note) == owner) return place;
      continue;
    }
    std::filesystem::create_directories(place, failure);
    WEFT_CHECK(!failure, "{}: cannot make the folder: {}", printable(place.string(), 4096),
               failure.message());
    write_file_atomically(note, owner);
    return place;
  }
}

}  // namespace

void export_csv(const std::vector<std::string>& folders, const TextSink& sink) {
  std::string heads =
      "run,recipe,pattern,seed,step,seconds,loss,learning_rate,gradient_norm,flip_rate,density,"
      "retained,step_ms";
  for (const std::string_view part : kStepParts) heads += fmt::format(",{}_ms", part);
  sink(heads + ",eval_loss,eval_accuracy,eval_samples\n");
  for_each_run(folders, [&](const std::filesystem::path& folder, const std::string& name) {
    const std::string head = row_head(folder, name);
    MetricsListener listener;
    listener.on_step = [&](const StepMetrics& s) {
      std::string row = fmt::format("{},{}", head, s.step);
      for (const double value :
           {s.train_seconds, s.loss, s.learning_rate, s.gradient_norm, s.flip_rate, s.density,
            mean_over_layers(s.layers, "retained"), s.step_ms}) {
        row += "," + csv_number(value);
      }
      for (const double ms : s.part_ms) row += "," + csv_number(ms);
      sink(row + ",,,\n");
    };
    listener.on_eval = [&](const EvalReport& e, double seconds) {
      // Between the seconds and the figures of an evaluation: those of a step.
      const std::string between(7 + kStepParts.size(), ',');
      sink(fmt::format("{},{},{}{},{},{},{}\n", head, e.step, csv_number(seconds), between,
                       csv_number(e.loss), csv_number(e.accuracy), e.samples));
    };
    read_metrics(folder / "metrics.jsonl", listener);
  });
}

void export_layers_csv(const std::vector<std::string>& folders, const TextSink& sink) {
  sink("run,recipe,pattern,seed,step,layer,figure,value\n");
  for_each_run(folders, [&](const std::filesystem::path& folder, const std::string& name) {
    const std::string head = row_head(folder, name);
    const auto on_step = [&](const StepMetrics& s) {
      for (const Json::Member& layer : s.layers.members()) {
        for (const Scalar& figure : numbers_in(layer.value, "")) {
          sink(fmt::format("{},{},{},{},{}\n", head, s.step, csv_cell(layer.name), figure.tag,
                           csv_number(figure.value)));
        }
      }
    };
    read_metrics(folder / "metrics.jsonl", {on_step, {}});
  });
}

std::vector<std::filesystem::path> export_tensorboard(const std::vector<std::string>& folders,
                                                      const std::filesystem::path& target) {
  std::vector<std::filesystem::path> written;
  for_each_run(folders, [&](const std::filesystem::path& folder, const std::string&) {
    written.push_back(claim_events(target, folder) / "events.out.tfevents.weft");
    write_events(folder / "metrics.jsonl", written.back());
  });
  return written;
}

}  // namespace weft
