#include "weft/torch/load_archive.h"

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/torch/layer_module.h"
#include "weft/torch/tensor_math.h"

namespace weft {
namespace {

// libtorch reads every module that a model has. What is attached to modules of torch, and not in the
// archive, is taken from them while this is in scope.
class Hidden {
 public:
  Hidden(torch::nn::Module& model, torch::serialize::InputArchive& archive) {
    hide(model, archive);
  }
  ~Hidden() {
    for (const Attached& one : all_) one.parent->register_module(kAttached, one.child);
  }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

  std::vector<std::shared_ptr<LayerModule>> layers() const {
    std::vector<std::shared_ptr<LayerModule>> found;
    for (const Attached& one : all_) {
      for (const auto& [name, layer] : layers_of(*one.child)) found.push_back(layer);
    }
    return found;
  }

 private:
  struct Attached {
    std::shared_ptr<torch::nn::Module> parent, child;
  };

  void hide(torch::nn::Module& module, torch::serialize::InputArchive& archive) {
    for (const auto& child : module.named_children()) {
      torch::serialize::InputArchive below;
      const bool there = archive.try_read(child.key(), below);
      if (child.key() != kAttached) {
        if (there) hide(*child.value(), below);
      } else if (!there) {
        all_.push_back({module.shared_from_this(), child.value()});
        module.unregister_module(kAttached);
      }
    }
  }

  std::vector<Attached> all_;
};

}  // namespace

std::vector<std::string> load_archive(torch::nn::Module& model,
                                      torch::serialize::InputArchive& archive) {
  return weft_errors("an archive", [&] {
    {
      const Hidden hidden(model, archive);
      model.load(archive);
      for (const auto& layer : hidden.layers()) layer->begin_again_after_load();
    }
    std::vector<std::string> again;
    for (const auto& [name, layer] : layers_of(model)) {
      const bool sparse = !layer->always_dense() || layer->settings().recipe.samples_gradient();
      if (layer->began_again() && sparse) again.push_back(name);
    }
    return again;
  });
}

std::vector<std::string> load_archive(torch::nn::Module& model, const std::filesystem::path& path) {
  const std::string file = printable(path.string(), 4096);
  torch::serialize::InputArchive archive;
  weft_errors(file, [&] { archive.load_from(path.string()); });
  try {
    return load_archive(model, archive);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", file, error.what()));
  }
}

}  // namespace weft
