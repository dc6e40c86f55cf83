#include "weft/report/event_file.h"

#include <array>
#include <bit>

namespace weft {
namespace {

constexpr std::array<uint32_t, 256> crc32c_table() {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kReversedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

template <typename Word>
void append_word(std::string& out, Word word) {
  for (size_t i = 0; i < sizeof(Word); ++i) out += static_cast<char>(word >> 8 * i & 0xff);
}

// The wire types of protocol buffers that are used here.
enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}
void append_key(std::string& out, int field, Wire wire) {
  append_varint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}
void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_key(out, field, Wire::kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string event_at(double wall_time) {
  std::string event;
  append_key(event, 1, Wire::kFixed64);
  append_word(event, std::bit_cast<uint64_t>(wall_time));
  return event;
}

uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8; }

std::string record_of(const std::string& event) {
  std::string record;
  append_word(record, static_cast<uint64_t>(event.size()));
  append_word(record, masked_crc(record));
  record += event;
  append_word(record, masked_crc(event));
  return record;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc32c_table();
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string first_event(double wall_time) {
  std::string event = event_at(wall_time);
  append_bytes(event, 3, "brain.Event:2");
  return record_of(event);
}

std::string scalar_event(double wall_time, int64_t step, const std::vector<Scalar>& scalars) {
  std::string event = event_at(wall_time), summary;
  append_key(event, 2, Wire::kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_bytes(value, 1, scalar.tag);
    append_key(value, 2, Wire::kFixed32);
    append_word(value, std::bit_cast<uint32_t>(static_cast<float>(scalar.value)));
    append_bytes(summary, 1, value);
  }
  append_bytes(event, 5, summary);
  return record_of(event);
}

}  // namespace weft
