// What weft says about the tensors of a file, as JSON text in its metadata:
//
//   {"version": 1, "tensors": {name: entry}}
//
// under a key of its own for each thing said: weft.sparsity (sparsity.h), weft.packed (pack). Errors begin
// with the file, the key and the tensor.
#pragma once

#include <optional>
#include <string>

#include "weft/checkpoint/header.h"
#include "weft/core/json.h"

namespace weft {

// The document under `key`, if there is one, of a version that we know and with an object
// 'tensors'. `what`: the file and the key.
std::optional<Json> read_tensor_entries(const Metadata& metadata, const std::string& key,
                                        const std::string& what);
// Replaces the document; removes it if there are no entries. entries: by the name of the tensor.
void store_tensor_entries(const Json& entries, const std::string& key, Metadata& metadata);

// Members of an entry. `what`: the file, the key and the tensor.
const Json& member_of(const Json& entry, const char* name, const std::string& what);
std::string text_member_of(const Json& entry, const char* name, const std::string& what);

}  // namespace weft
