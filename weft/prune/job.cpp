#include "weft/prune/job.h"

namespace weft {
namespace {

Selection noted(Selection selection, const Listener& listener) {
  const std::string note = selection.note();
  if (!note.empty() && listener.note) listener.note(note);
  return selection;
}

}  // namespace

Selection select_tensors(const NameExpressions& names, const Checkpoint& checkpoint,
                         const std::vector<TensorInfo>& tensors, const Listener& listener) {
  return noted(Selection(names, checkpoint, tensors), listener);
}

Selection select_tensors(const NameExpressions& names, const Checkpoint& checkpoint,
                         const Listener& listener) {
  return noted(Selection(names, checkpoint), listener);
}

}  // namespace weft
