#include "weft/pack/pack.h"
#include "weft/pack/sections.h"

namespace weft {

PackedMatrix pack_stream(MatrixView<const float>, const Mask&, const Pattern&, ValueType, int64_t) {
  throw Error("not yet");
}
PackedMatrix pack_stream_by_magnitude(MatrixView<const float>, const Pattern&, ValueType, int64_t) {
  throw Error("not yet");
}
void check_stream_contents(const PackedMatrix&) { throw Error("not yet"); }

}  // namespace weft
