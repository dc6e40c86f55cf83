#include "weft/train/init_weights.h"

#include <charconv>
#include <set>

#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/text.h"
#include "weft/data/checksum.h"
#include "weft/pack/packed_file.h"
#include "weft/torch/export_model.h"
#include "weft/torch/tensor_file.h"

namespace weft {
namespace {

constexpr const char* kSparsityEntry = "weft.sparsity";  // checkpoint/sparsity.h

// What the model wants from the file, parameters before buffers.
NamedTensors wanted_tensors(torch::nn::Module& model) {
  const std::set<const void*> of_recipes = recipe_tensors(model);
  NamedTensors wanted;
  const auto add = [&](const auto& named) {
    if (of_recipes.contains(named.value().unsafeGetTensorImpl())) return;
    wanted.emplace_back(named.key(), named.value());
  };
  for (const auto& parameter : model.named_parameters()) add(parameter);
  for (const auto& buffer : model.named_buffers()) add(buffer);
  return wanted;
}

using FoundTensors = std::map<std::string, const ShardedTensor*>;

// Before anything is read.
void require_fitting(const Checkpoint& checkpoint, const FoundTensors& found,
                     const NamedTensors& wanted) {
  for (const auto& [name, tensor] : wanted) {
    const auto one = found.find(name);
    WEFT_CHECK(one != found.end(), "{}: tensor '{}' of the model is missing",
               printable(checkpoint.paths().front().string(), 4096), name);
    const TensorInfo& info = one->second->info;
    const std::string where =
        fmt::format("{}: tensor '{}'", printable(checkpoint.file_of(*one->second), 4096), name);
    WEFT_CHECK(tensor.sizes() == info.shape, "{} has shape {}, the model's has {}", where,
               shape_text(info.shape), shape_text(tensor.sizes().vec()));
    if (tensor.is_floating_point()) {
      WEFT_CHECK(is_weight_dtype(info.dtype), "{} is {}: accepted are F32, F16, BF16 and F64",
                 where, dtype_name(info.dtype));
    }
  }
}

torch::Tensor read_as(const torch::Tensor& model, const Checkpoint& checkpoint,
                      const ShardedTensor& from) {
  const torch::Tensor stored = read_tensor(checkpoint, from);
  const auto where = [&] {
    return fmt::format("{}: tensor '{}'", printable(checkpoint.file_of(from), 4096),
                       printable(from.info.name));
  };
  if (!model.is_floating_point()) {
    WEFT_CHECK(stored.scalar_type() == model.scalar_type(), "{} is {}, the model's is {}", where(),
               c10::toString(stored.scalar_type()), c10::toString(model.scalar_type()));
    return stored;
  }
  torch::Tensor weights = stored.to(model.scalar_type());
  WEFT_CHECK(torch::isfinite(weights).all().item<bool>(),
             "{} has a value that is not finite, or too large for {}", where(),
             c10::toString(model.scalar_type()));
  return weights;
}

void note_left_out(const Checkpoint& checkpoint, const NamedTensors& wanted,
                   std::set<std::string> names,
                   const std::function<void(const std::string&)>& note) {
  for (const auto& [name, tensor] : wanted) names.insert(name);
  const std::string* first = nullptr;
  int64_t count = 0;
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    if (names.contains(tensor.info.name)) continue;
    if (count++ == 0) first = &tensor.info.name;
  }
  if (count == 0) return;
  note(fmt::format("{}: tensor '{}'{}: ignored: the model has no such tensor",
                   printable(checkpoint.paths().front().string(), 4096), printable(*first),
                   count == 1 ? "" : fmt::format(" and {} more", count - 1)));
}

void begin_recipes_again(const Checkpoint& checkpoint, torch::nn::Module& model,
                         const std::function<void(const std::string&)>& note) {
  std::string first;
  int64_t count = 0;
  for (const auto& [name, layer] : layers_of(model)) {
    layer->begin_again();
    if (!layer->always_dense() && count++ == 0) first = name;
  }
  if (count == 0) return;
  note(fmt::format("{}: '{}'{} begin{} the recipe again with the weights of the file",
                   printable(checkpoint.paths().front().string(), 4096), first,
                   count == 1 ? "" : fmt::format(" and {} more layers", count - 1),
                   count == 1 ? "s" : ""));
}

}  // namespace

Json InitRecord::to_json() const {
  Json record{{"crc32", fmt::format("{:08x}", checksum)}};
  Metadata metadata;
  sparsity.store_in(metadata);
  if (!sparsity.tensors.empty())
    record["sparsity"] = Json::parse(metadata.at(kSparsityEntry), kSparsityEntry);
  return record;
}

InitRecord InitRecord::from_json(const Json& record, const std::string& what) {
  WEFT_CHECK(record.is_object() && record.contains("crc32") && record["crc32"].is_string(),
             "{}: 'init' has no checksum", what);
  InitRecord init;
  const std::string sum = record["crc32"].get<std::string>();
  const auto parsed = std::from_chars(sum.data(), sum.data() + sum.size(), init.checksum, 16);
  WEFT_CHECK(parsed.ec == std::errc() && parsed.ptr == sum.data() + sum.size(),
             "{}: the checksum of 'init' is '{}'", what, printable(sum));
  if (record.contains("sparsity")) {
    init.sparsity = Sparsity::from_metadata({{kSparsityEntry, record["sparsity"].dump()}}, what);
  }
  return init;
}

InitRecord load_init(const std::filesystem::path& path, torch::nn::Module& model,
                     const std::function<void(const std::string&)>& note) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  require_unpacked(checkpoint);
  InitRecord init;
  init.sparsity = checkpoint.sparsity();
  FoundTensors found;
  for (const ShardedTensor& tensor : checkpoint.tensors()) found[tensor.info.name] = &tensor;
  std::erase_if(init.sparsity.tensors,
                [&](const auto& promise) { return !found.contains(promise.first); });
  init.sparsity.require_outs_first(path.string());
  std::set<std::string> orders;  // of rows, by name
  const NamedTensors wanted = wanted_tensors(model);
  require_fitting(checkpoint, found, wanted);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : wanted) {
    const torch::Tensor weights = read_as(tensor, checkpoint, *found.at(name)).contiguous();
    torch::Tensor(tensor).copy_(weights);
    init.checksum = checksum(init.checksum, {static_cast<const std::byte*>(weights.data_ptr()),
                                             static_cast<size_t>(weights.nbytes())});
  }
  begin_recipes_again(checkpoint, model, note);
  for (const auto& [name, promise] : init.sparsity.tensors) {
    const std::vector<int64_t>& shape = found.at(name)->info.shape;
    if (promise.row_order.empty() || shape.empty()) continue;
    init.row_orders.emplace(name, read_row_order(checkpoint, promise, shape.front()));
    orders.insert(promise.row_order);
  }
  note_left_out(checkpoint, wanted, orders, note);
  return init;
}

}  // namespace weft
