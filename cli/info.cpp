// weft info: what is in a checkpoint, how sparse it is, and which patterns it obeys already.
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/text.h"
#include "weft/mask/verify.h"
#include "weft/pack/packed_file.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

struct TensorFacts {
  std::optional<double> density;  // of types that have a zero
  std::vector<std::string> patterns_in, patterns_out;
};

// The tightest pattern of every group size that fits into `length`, without those that a smaller
// group implies: 2:4 says 4:8 already.
std::vector<std::string> tightest(const MostPerGroup& most, int64_t length) {
  std::vector<std::string> patterns;
  for (size_t i = 0; i < most.size() && kReportedGroups[i] <= length; ++i) {
    const int group = kReportedGroups[i];
    bool implied = most[i] >= group;
    for (size_t j = 0; j < i; ++j) {
      implied |= most[j] * (group / kReportedGroups[j]) <= most[i];
    }
    if (!implied) patterns.push_back(fmt::format("{}:{}", std::max(1, most[i]), group));
  }
  return patterns;
}

void take_larger(MostPerGroup& most, const MostPerGroup& other) {
  for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], other[i]);
}

TensorFacts examine(const PackedCheckpoint& checkpoint, const LogicalTensor& tensor,
                    bool transposed) {
  const TensorInfo& info = tensor.info;
  TensorFacts facts;
  if (!has_zero(info.dtype) || info.bytes() == 0) return facts;
  // Anything but a matrix or a convolution is one row of elements, as far as density goes.
  const bool weights = WeightShape::accepts(info.shape);
  LogicalTensor flat = tensor;
  if (!weights) std::get<ShardedTensor>(flat.source).info.shape = {info.elements()};

  MostPerGroup most_in{}, most_out{};
  int64_t nonzero = 0;
  checkpoint.for_each_band(flat, false, kReportedGroups.back(), [&](const Band& band) {
    WeightShape shape{1, band.rows, 1};
    if (weights) {
      shape = WeightShape::of(info.shape);
      shape.outs = band.rows;
    }
    const Mask mask = nonzero_mask(info.dtype, band.bytes, shape.outs, shape.cols());
    nonzero += mask.count();
    if (weights) {
      take_larger(most_in, most_per_group_in(mask, shape));
      take_larger(most_out, most_per_group_out(mask, shape));
    }
  });
  facts.density = static_cast<double>(nonzero) / static_cast<double>(info.elements());
  if (weights) {
    facts.patterns_in = tightest(most_in, info.shape[1]);
    facts.patterns_out = tightest(most_out, info.shape[0]);
    if (transposed) std::swap(facts.patterns_in, facts.patterns_out);
  }
  return facts;
}

std::string joined(const std::vector<std::string>& patterns) {
  std::string text;
  for (const std::string& pattern : patterns) text += (text.empty() ? "" : " ") + pattern;
  return text.empty() ? "-" : text;
}

// Of one file; of a sharded checkpoint by the names of its shards.
Json metadata_of(const Checkpoint& checkpoint) {
  if (!checkpoint.sharded()) return checkpoint.shard(0).header().metadata;
  Json by_shard = Json::object();
  for (size_t i = 0; i < checkpoint.shard_count(); ++i) {
    const SafetensorsReader& shard = checkpoint.shard(i);
    by_shard.append(shard.path().filename().string(), shard.header().metadata);
  }
  return by_shard;
}

// Which tensors are stored [ins, outs]. Metadata that nobody can read is shown all the same.
std::function<bool(const TensorInfo&)> stored_ins_first(const Checkpoint& checkpoint,
                                                        const std::vector<TensorInfo>& infos) {
  try {
    const auto selection =
        std::make_shared<const Selection>(NameFilter().selection(checkpoint, infos));
    return [selection](const TensorInfo& info) { return selection->is_transposed(info); };
  } catch (const Error&) {
    return [](const TensorInfo&) { return false; };
  }
}

class InfoCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("file", file_, "Checkpoint: .safetensors, .index.json, or a folder");
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    const Checkpoint checkpoint = Checkpoint::open(file_);
    const PackedCheckpoint logical(checkpoint);
    std::vector<TensorInfo> infos;
    for (const LogicalTensor& tensor : logical.tensors()) infos.push_back(tensor.info);
    const auto is_transposed = stored_ins_first(checkpoint, infos);
    Progress progress("reading", checkpoint.bytes());
    Table table({"tensor", "dtype", "shape", "packed", ">size", ">density", "along inputs",
                 "along outputs"});
    Json tensors = Json::array();
    size_t packed = 0;
    for (const LogicalTensor& tensor : logical.tensors()) {
      const bool transposed = tensor.transposed() || is_transposed(tensor.info);
      const TensorFacts facts = examine(logical, tensor, transposed);
      progress.add(tensor.stored_bytes);
      packed += tensor.packed() ? 1 : 0;
      const std::string pattern = tensor.packed() ? tensor.pattern()->str() : "-";
      table.add({printable(tensor.info.name), std::string(dtype_name(tensor.info.dtype)),
                 stored_shape_text(tensor.info.shape, transposed), pattern,
                 bytes_text(tensor.stored_bytes), facts.density ? percent(*facts.density) : "-",
                 joined(facts.patterns_in), joined(facts.patterns_out)});
      tensors.push_back({{"name", tensor.info.name},
                         {"dtype", dtype_name(tensor.info.dtype)},
                         {"shape", tensor.info.shape},
                         {"transposed", transposed},
                         {"packed", tensor.packed() ? Json(pattern) : Json(nullptr)},
                         {"bytes", tensor.stored_bytes},
                         {"density", facts.density ? Json(*facts.density) : Json(nullptr)},
                         {"patterns_in", facts.patterns_in},
                         {"patterns_out", facts.patterns_out}});
    }
    progress.finish();
    const Json metadata = metadata_of(checkpoint);
    if (common_.json) {
      print_json({{"file", file_},
                  {"shards", checkpoint.shard_count()},
                  {"bytes", checkpoint.bytes()},
                  {"metadata", metadata},
                  {"tensors", tensors}});
      return 0;
    }
    print(table.str());
    if (!metadata.empty()) print("\nmetadata\n");
    for (const auto& [key, value] : metadata.members()) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      print(fmt::format("  {} = {}\n", printable(key), printable(text)));
    }
    print(fmt::format(
        "\n{}: {} tensors, {}{}{}\n", file_, logical.tensors().size(),
        bytes_text(checkpoint.bytes()), packed > 0 ? fmt::format(", {} packed", packed) : "",
        checkpoint.sharded() ? fmt::format(", {} shards", checkpoint.shard_count()) : ""));
    return 0;
  }

 private:
  std::string file_;
  CommonFlags common_;
};

}  // namespace

CommandEntry info_command() {
  return {
      "info", "List tensors, density and the tightest N:M patterns they obey",
      "  weft info model.safetensors\n"
      "  weft info sharded-model/ --json\n"
      "\n"
      "Patterns are of groups of 2, 4, 8, 16, 32 and 64; one that a smaller group implies is not\n"
      "repeated (2:4 implies 4:8). A packed tensor is shown as it was before, with the pattern it\n"
      "is packed by and the bytes that it takes now.",
      std::make_unique<InfoCommand>()};
}

}  // namespace weft::cli
