#include "tests/emulator/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <type_traits>

#include "weft/core/bf16.h"

namespace weft::test {
namespace {

using Bytes = std::array<uint8_t, 64>;

template <typename T>
T get(const Bytes& vector, int index) {
  T value;
  std::memcpy(&value, vector.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void set(Bytes& vector, int index, std::type_identity_t<T> value) {
  std::memcpy(vector.data() + static_cast<size_t>(index) * sizeof(T), &value, sizeof(T));
}

// An instruction's operands as vectors, and its result: `out`, or `bits` if that is a mask.
struct Lanes {
  int size;                        // bytes of the destination, or of the sources of a mask
  int source_size;                 // bytes of the last source
  Bytes old = {}, b = {}, c = {};  // destination, first source, last source
  int constant = 0;
  uint64_t mask = 0;  // all ones if there is none
  bool zeroing = false;
  uint64_t from_mask = 0;  // the last source if it is a mask
  Bytes out = {};
  uint64_t bits = 0;

  template <typename T>
  int count() const {
    return size / static_cast<int>(sizeof(T));
  }
};

struct Rule {
  int element;  // bytes for each bit of the mask
  bool scalar;  // only element 0 is masked
  std::function<void(Lanes&)> compute;
};
using Rules = std::map<std::string, Rule, std::less<>>;

template <typename T, typename F>
Rule of_pairs(F f) {
  return {sizeof(T), false, [f](Lanes& v) {
            for (int i = 0; i < v.count<T>(); ++i) {
              set<T>(v.out, i, static_cast<T>(f(get<T>(v.b, i), get<T>(v.c, i))));
            }
          }};
}
template <typename T, typename F>
Rule of_lowest(F f) {
  return {sizeof(T), true, [f](Lanes& v) {
            v.out = v.b;
            set<T>(v.out, 0, f(get<T>(v.b, 0), get<T>(v.c, 0)));
          }};
}
// out[i] = f(lanes, i)
template <typename T, typename F>
Rule of_index(F f, int element = sizeof(T)) {
  return {element, false, [f](Lanes& v) {
            for (int i = 0; i < v.count<T>(); ++i) set<T>(v.out, i, f(v, i));
          }};
}

template <typename F>
void add_float_rules(Rules& rules, const std::string& name, F f) {
  rules[name + "ps"] = of_pairs<float>(f);
  rules[name + "pd"] = of_pairs<double>(f);
  rules[name + "ss"] = of_lowest<float>(f);
  rules[name + "sd"] = of_lowest<double>(f);
}

// a is the destination as it was: 132 is a c + b, 213 is b a + c, 231 is b c + a.
template <typename T>
Rule of_multiply_add(const std::string& order, bool negate, bool subtract, bool scalar) {
  return {sizeof(T), scalar, [=](Lanes& v) {
            v.out = v.old;
            for (int i = 0; i < (scalar ? 1 : v.count<T>()); ++i) {
              const T operands[] = {get<T>(v.old, i), get<T>(v.b, i), get<T>(v.c, i)};
              const T x = operands[order[0] - '1'], y = operands[order[1] - '1'];
              const T z = operands[order[2] - '1'];
              set<T>(v.out, i, std::fma(negate ? -x : x, y, subtract ? -z : z));
            }
          }};
}

void add_arithmetic(Rules& rules) {
  add_float_rules(rules, "vadd", [](auto x, auto y) { return x + y; });
  add_float_rules(rules, "vsub", [](auto x, auto y) { return x - y; });
  add_float_rules(rules, "vmul", [](auto x, auto y) { return x * y; });
  add_float_rules(rules, "vdiv", [](auto x, auto y) { return x / y; });
  // The second operand unless the first is truly smaller: of zeros and with NaNs too.
  add_float_rules(rules, "vmin", [](auto x, auto y) { return x < y ? x : y; });
  add_float_rules(rules, "vmax", [](auto x, auto y) { return x > y ? x : y; });
  add_float_rules(rules, "vsqrt", [](auto, auto y) { return std::sqrt(y); });
  for (const std::string order : {"132", "213", "231"}) {
    for (const bool negate : {false, true}) {
      for (const bool subtract : {false, true}) {
        const std::string name =
            std::string(negate ? "vfnm" : "vfm") + (subtract ? "sub" : "add") + order;
        rules[name + "ps"] = of_multiply_add<float>(order, negate, subtract, false);
        rules[name + "pd"] = of_multiply_add<double>(order, negate, subtract, false);
        rules[name + "ss"] = of_multiply_add<float>(order, negate, subtract, true);
        rules[name + "sd"] = of_multiply_add<double>(order, negate, subtract, true);
      }
    }
  }
  rules["vpaddd"] = of_pairs<uint32_t>([](uint32_t x, uint32_t y) { return x + y; });
  rules["vpsubd"] = of_pairs<uint32_t>([](uint32_t x, uint32_t y) { return x - y; });
  rules["vpaddq"] = of_pairs<uint64_t>([](uint64_t x, uint64_t y) { return x + y; });
  rules["vpaddw"] = of_pairs<uint16_t>([](unsigned x, unsigned y) { return x + y; });
  rules["vpmullw"] = of_pairs<uint16_t>([](unsigned x, unsigned y) { return x * y; });
  rules["vpmulld"] = of_pairs<uint32_t>([](uint32_t x, uint32_t y) { return x * y; });
  rules["vpmullq"] = of_pairs<uint64_t>([](uint64_t x, uint64_t y) { return x * y; });
  rules["vpmuludq"] = of_pairs<uint64_t>(
      [](uint64_t x, uint64_t y) { return (x & UINT32_MAX) * (y & UINT32_MAX); });
  rules["vpminsd"] = of_pairs<int32_t>([](int32_t x, int32_t y) { return y < x ? y : x; });
  rules["vpmaxsd"] = of_pairs<int32_t>([](int32_t x, int32_t y) { return y > x ? y : x; });
  rules["vpabsd"] =
      of_pairs<int32_t>([](int32_t, int64_t y) { return static_cast<uint32_t>(y < 0 ? -y : y); });
  rules["vdpbf16ps"] = of_index<float>([](const Lanes& v, int i) {
    const auto flush = [](float x) { return std::fpclassify(x) == FP_SUBNORMAL ? 0.0f : x; };
    float sum = get<float>(v.old, i);
    for (const int k : {2 * i + 1, 2 * i}) {
      const float x = flush(bf16_to_float(get<uint16_t>(v.b, k)));
      sum = flush(sum + x * flush(bf16_to_float(get<uint16_t>(v.c, k))));
    }
    return sum;
  });
}

template <typename F>
void add_bit_rules(Rules& rules, const std::string& name, F f) {
  rules["v" + name + "ps"] = rules["vp" + name + "d"] = of_pairs<uint32_t>(f);
  rules["v" + name + "pd"] = rules["vp" + name + "q"] = rules["vp" + name] = of_pairs<uint64_t>(f);
}

template <typename T>
Rule of_shift(bool left) {
  return of_index<T>([left](const Lanes& v, int i) -> T {
    // Two sources: by the lower 64 bits of the second. One: by the constant.
    const uint64_t by = v.constant >= 0 ? static_cast<uint64_t>(v.constant) : get<uint64_t>(v.c, 0);
    const T value = get<T>(v.constant >= 0 ? v.c : v.b, i);
    if (by >= 8 * sizeof(T)) return 0;
    return left ? value << by : value >> by;
  });
}

void add_bits(Rules& rules) {
  add_bit_rules(rules, "and", [](auto x, auto y) { return x & y; });
  add_bit_rules(rules, "andn", [](auto x, auto y) { return ~x & y; });
  add_bit_rules(rules, "or", [](auto x, auto y) { return x | y; });
  add_bit_rules(rules, "xor", [](auto x, auto y) { return x ^ y; });
  const auto logic = [](const Lanes& v, int i) {
    const auto a = get<uint64_t>(v.old, i), b = get<uint64_t>(v.b, i), c = get<uint64_t>(v.c, i);
    uint64_t out = 0;
    for (int row = 0; row < 8; ++row) {
      if ((v.constant >> row & 1) == 0) continue;
      out |= ((row & 4) != 0 ? a : ~a) & ((row & 2) != 0 ? b : ~b) & ((row & 1) != 0 ? c : ~c);
    }
    return out;
  };
  rules["vpternlogd"] = of_index<uint64_t>(logic, 4);
  rules["vpternlogq"] = of_index<uint64_t>(logic);
  rules["vpsrld"] = of_shift<uint32_t>(false);
  rules["vpslld"] = of_shift<uint32_t>(true);
  rules["vpsrlq"] = of_shift<uint64_t>(false);
  rules["vpsllq"] = of_shift<uint64_t>(true);
  rules["vpsrad"] = of_index<int32_t>([](const Lanes& v, int i) {
    return static_cast<int32_t>(
        std::floor(std::ldexp(get<int32_t>(v.c, i), -std::min(v.constant, 32))));
  });
  rules["vpsrlvd"] = of_pairs<uint32_t>([](uint64_t x, uint32_t y) { return y < 32 ? x >> y : 0; });
  rules["vpsllvd"] = of_pairs<uint32_t>([](uint64_t x, uint32_t y) { return y < 32 ? x << y : 0; });
}

// Elements of T of the result, each from one place: f(v, i) is its index in the last source; from
// 64 on, in the first.
template <typename T, typename F>
Rule of_places(F f, int element = sizeof(T)) {
  return of_index<T>(
      [f](const Lanes& v, int i) {
        const int from = f(v, i);
        return from < 64 ? get<T>(v.c, from) : get<T>(v.b, from - 64);
      },
      element);
}

template <typename T>
Rule of_unpack(bool upper) {
  return of_places<T>([upper](const Lanes&, int i) {
    constexpr int kLane = 16 / sizeof(T);
    const int from = i / kLane * kLane + (upper ? kLane / 2 : 0) + i % kLane / 2;
    return i % 2 == 0 ? 64 + from : from;
  });
}

template <typename T>
Rule of_two_tables(bool indices_in_old) {
  return of_index<T>([=](const Lanes& v, int i) {
    const int count = v.count<T>();
    const int from = static_cast<int>(get<T>(indices_in_old ? v.old : v.b, i) % (2 * count));
    return from >= count ? get<T>(v.c, from - count) : get<T>(indices_in_old ? v.b : v.old, from);
  });
}

// The mask chooses between the sources; only {z} makes it a mask of the result.
template <typename T>
Rule of_blend() {
  return {sizeof(T), false, [](Lanes& v) {
            for (int i = 0; i < v.count<T>(); ++i) {
              set<T>(v.out, i, get<T>((v.mask >> i & 1) != 0 ? v.c : v.b, i));
            }
            if (!v.zeroing) v.mask = ~uint64_t{0};
          }};
}

// Parts of `bytes`: one of the first source's replaced, or one of the source's taken.
Rule of_insert(int bytes, int element) {
  return {element, false, [=](Lanes& v) {
            v.out = v.b;
            std::memcpy(v.out.data() + v.constant % (v.size / bytes) * bytes, v.c.data(), bytes);
          }};
}
Rule of_extract(int bytes, int element) {
  return {element, false, [=](Lanes& v) {
            std::memcpy(v.out.data(), v.c.data() + v.constant % (v.source_size / bytes) * bytes,
                        bytes);
          }};
}

void add_shuffles(Rules& rules) {
  const auto quarter = [](const Lanes& v, int i) {
    return i / 4 * 4 + (v.constant >> i % 4 * 2 & 3);
  };
  rules["vpshufd"] = of_places<uint32_t>(quarter);
  rules["vpermilps"] = of_index<uint32_t>([=](const Lanes& v, int i) {
    if (v.constant >= 0) return get<uint32_t>(v.c, quarter(v, i));
    return get<uint32_t>(v.b, i / 4 * 4 + static_cast<int>(get<uint32_t>(v.c, i) % 4));
  });
  rules["vpermilpd"] =
      of_places<uint64_t>([](const Lanes& v, int i) { return i / 2 * 2 + (v.constant >> i & 1); });
  rules["vpshufhw"] =
      of_places<uint16_t>([=](const Lanes& v, int i) { return i % 8 < 4 ? i : quarter(v, i); });
  rules["vpshuflw"] =
      of_places<uint16_t>([=](const Lanes& v, int i) { return i % 8 >= 4 ? i : quarter(v, i); });
  rules["vshufps"] = of_places<uint32_t>(
      [=](const Lanes& v, int i) { return quarter(v, i) + (i % 4 < 2 ? 64 : 0); });
  rules["vmovsldup"] = of_places<uint32_t>([](const Lanes&, int i) { return i - i % 2; });
  rules["vmovshdup"] = of_places<uint32_t>([](const Lanes&, int i) { return i - i % 2 + 1; });
  rules["vpermps"] = rules["vpermd"] = of_places<uint32_t>([](const Lanes& v, int i) {
    return static_cast<int>(get<uint32_t>(v.b, i) % v.count<uint32_t>());
  });
  rules["vpermpd"] = rules["vpermq"] = of_places<uint64_t>([=](const Lanes& v, int i) {
    if (v.constant >= 0) return quarter(v, i);
    return static_cast<int>(get<uint64_t>(v.b, i) % v.count<uint64_t>());
  });
  const auto lanes = [](const Lanes& v, int i) {
    const int count = v.size / 16, per_lane = v.count<uint64_t>() / count, lane = i / per_lane;
    const int from = count == 4 ? v.constant >> 2 * lane & 3 : v.constant >> lane & 1;
    return from * per_lane + i % per_lane + (lane < count / 2 ? 64 : 0);
  };
  rules["vshuff32x4"] = rules["vshufi32x4"] = of_places<uint64_t>(lanes, 4);
  rules["vshuff64x2"] = rules["vshufi64x2"] = of_places<uint64_t>(lanes, 8);
  const auto aligned = [](int count, int from) { return from < count ? from : 64 + from - count; };
  rules["valignd"] = of_places<uint32_t>(
      [=](const Lanes& v, int i) { return aligned(v.size / 4, i + v.constant % (v.size / 4)); });
  rules["valignq"] = of_places<uint64_t>(
      [=](const Lanes& v, int i) { return aligned(v.size / 8, i + v.constant % (v.size / 8)); });
}

void add_permutations(Rules& rules) {
  rules["vunpcklps"] = rules["vpunpckldq"] = of_unpack<uint32_t>(false);
  rules["vunpckhps"] = rules["vpunpckhdq"] = of_unpack<uint32_t>(true);
  rules["vunpcklpd"] = rules["vpunpcklqdq"] = of_unpack<uint64_t>(false);
  rules["vunpckhpd"] = rules["vpunpckhqdq"] = of_unpack<uint64_t>(true);
  rules["vpunpcklwd"] = of_unpack<uint16_t>(false);
  rules["vpunpckhwd"] = of_unpack<uint16_t>(true);
  rules["vpermi2w"] = of_two_tables<uint16_t>(true);
  rules["vpermt2w"] = of_two_tables<uint16_t>(false);
  rules["vpermi2ps"] = of_two_tables<uint32_t>(true);
  rules["vpermt2ps"] = of_two_tables<uint32_t>(false);
  rules["vpblendmd"] = rules["vblendmps"] = of_blend<uint32_t>();
  rules["vpblendmq"] = rules["vblendmpd"] = of_blend<uint64_t>();
  const auto modulo = [](int count) { return [count](const Lanes&, int i) { return i % count; }; };
  rules["vpbroadcastb"] = of_places<uint8_t>(modulo(1));
  rules["vpbroadcastw"] = of_places<uint16_t>(modulo(1));
  rules["vpbroadcastd"] = rules["vbroadcastss"] = of_places<uint32_t>(modulo(1));
  rules["vpbroadcastq"] = rules["vbroadcastsd"] = of_places<uint64_t>(modulo(1));
  for (const std::string kind : {"f", "i"}) {
    rules["vbroadcast" + kind + "32x2"] = of_places<uint32_t>(modulo(2));
    rules["vbroadcast" + kind + "32x4"] = of_places<uint32_t>(modulo(4));
    rules["vbroadcast" + kind + "32x8"] = of_places<uint32_t>(modulo(8));
    rules["vbroadcast" + kind + "64x2"] = of_places<uint64_t>(modulo(2));
    rules["vbroadcast" + kind + "64x4"] = of_places<uint64_t>(modulo(4));
    rules["vinsert" + kind + "32x4"] = of_insert(16, 4);
    rules["vinsert" + kind + "32x8"] = of_insert(32, 4);
    rules["vinsert" + kind + "64x2"] = rules["vinsert" + kind + "128"] = of_insert(16, 8);
    rules["vinsert" + kind + "64x4"] = of_insert(32, 8);
    rules["vextract" + kind + "32x4"] = of_extract(16, 4);
    rules["vextract" + kind + "32x8"] = of_extract(32, 4);
    rules["vextract" + kind + "64x2"] = rules["vextract" + kind + "128"] = of_extract(16, 8);
    rules["vextract" + kind + "64x4"] = of_extract(32, 8);
  }
  rules["vextractps"] = of_extract(4, 4);
}

void add_moves(Rules& rules) {
  const auto same = [](const Lanes& v, int i) { return get<uint8_t>(v.c, i); };
  for (const char* name :
       {"vmovups", "vmovaps", "vmovdqu32", "vmovdqa32", "vmovdqu", "vmovntps", "vmovntdq"}) {
    rules[name] = of_index<uint8_t>(same, 4);
  }
  for (const char* name : {"vmovupd", "vmovdqu64", "vmovdqa64"}) {
    rules[name] = of_index<uint8_t>(same, 8);
  }
  rules["vmovdqu16"] = of_index<uint8_t>(same, 2);
  rules["vmovdqu8"] = of_index<uint8_t>(same, 1);
  const auto lowest = [](int bytes) {
    return [bytes](Lanes& v) { std::memcpy(v.out.data(), v.c.data(), bytes); };
  };
  rules["vmovss"] = rules["vmovd"] = {4, true, lowest(4)};
  rules["vmovsd"] = rules["vmovq"] = rules["vmovlps"] = {8, true, lowest(8)};
  rules["vmovmskps"] = {8, true, [](Lanes& v) {
                          uint32_t signs = 0;
                          for (int i = 0; i < v.source_size / 4; ++i) {
                            signs |= (get<uint32_t>(v.c, i) >> 31) << i;
                          }
                          set<uint32_t>(v.out, 0, signs);
                        }};
}

int32_t to_integer(double value) {
  return std::fabs(value) < 0x1p31 ? static_cast<int32_t>(value) : INT32_MIN;
}

// From T to U, as many as the source has.
template <typename T, typename U, typename F>
Rule of_conversion(F f) {
  return {sizeof(U), false, [f](Lanes& v) {
            const int given = v.source_size / static_cast<int>(sizeof(T));
            for (int i = 0; i < std::min(v.count<U>(), given); ++i) {
              set<U>(v.out, i, f(get<T>(v.c, i)));
            }
          }};
}

void add_conversions(Rules& rules) {
  rules["vcvtps2pd"] = of_conversion<float, double>([](float x) { return x; });
  rules["vcvtpd2ps"] = of_conversion<double, float>([](double x) { return static_cast<float>(x); });
  rules["vcvtdq2pd"] = of_conversion<int32_t, double>([](int32_t x) { return x; });
  rules["vcvtqq2pd"] =
      of_conversion<int64_t, double>([](int64_t x) { return static_cast<double>(x); });
  rules["vcvtdq2ps"] =
      of_conversion<int32_t, float>([](int32_t x) { return static_cast<float>(x); });
  rules["vcvtps2dq"] =
      of_conversion<float, int32_t>([](float x) { return to_integer(std::nearbyint(x)); });
  rules["vcvttps2dq"] = of_conversion<float, int32_t>([](float x) { return to_integer(x); });
  rules["vcvttpd2dq"] =
      of_conversion<double, int32_t>([](double x) { return to_integer(std::trunc(x)); });
  rules["vpmovzxwd"] = of_conversion<uint16_t, uint32_t>([](uint16_t x) { return x; });
  rules["vpmovzxdq"] = of_conversion<uint32_t, uint64_t>([](uint32_t x) { return x; });
  rules["vpackusdw"] = of_index<uint16_t>([](const Lanes& v, int i) {
    const int64_t value = get<int32_t>(i % 8 < 4 ? v.b : v.c, i / 8 * 4 + i % 4);
    return static_cast<uint16_t>(value < 0 ? 0 : value > 0xffff ? 0xffff : value);
  });
  rules["vpmovm2d"] = of_index<uint32_t>(
      [](const Lanes& v, int i) { return (v.from_mask >> i & 1) != 0 ? UINT32_MAX : 0; });
  rules["vpmovm2q"] = of_index<uint64_t>(
      [](const Lanes& v, int i) { return (v.from_mask >> i & 1) != 0 ? UINT64_MAX : 0; });
  rules["vcvtusi2sd"] = of_lowest<double>([](double, double bits) {
    uint64_t value;
    std::memcpy(&value, &bits, 8);
    return static_cast<double>(value);
  });
  rules["vcvttsd2usi"] = {8, true, [](Lanes& v) {
                            const auto value = get<double>(v.c, 0);
                            const double end = v.size == 4 ? 0x1p32 : 0x1p64;
                            const bool fits = value > -1 && value < end;
                            set<uint64_t>(v.out, 0,
                                          fits ? static_cast<uint64_t>(value) : UINT64_MAX);
                          }};
}

template <typename T, typename F>
Rule of_bits(F f) {
  return {sizeof(T), false, [f](Lanes& v) {
            for (int i = 0; i < v.count<T>(); ++i) {
              if (f(v, i)) v.bits |= uint64_t{1} << i;
            }
          }};
}

// As the manual's table lists the results for greater, less, equal and unordered.
template <typename T>
Rule of_compare() {
  return of_bits<T>([](const Lanes& v, int i) {
    static constexpr const char* kTrueFor[] = {"E",  "L",  "LE",  "U", "GLU", "GEU", "GU", "GLE",
                                               "EU", "LU", "LEU", "",  "GL",  "GE",  "G",  "GLEU"};
    static constexpr const char* kOfIntegers[] = {"E", "L", "LE", "", "GL", "GE", "G", "GLE"};
    const T x = get<T>(v.b, i), y = get<T>(v.c, i);
    const char order = x > y ? 'G' : x < y ? 'L' : x == y ? 'E' : 'U';
    const char* table =
        std::is_floating_point_v<T> ? kTrueFor[v.constant] : kOfIntegers[v.constant];
    return std::strchr(table, order) != nullptr;
  });
}

template <typename T>
Rule of_class() {
  return of_bits<T>([](const Lanes& v, int i) {
    const T x = get<T>(v.c, i);
    const int kind = std::fpclassify(x);
    const int of = kind == FP_NAN        ? 0x81
                   : kind == FP_ZERO     ? (std::signbit(x) ? 0x04 : 0x02)
                   : kind == FP_INFINITE ? (std::signbit(x) ? 0x10 : 0x08)
                                         : 0;
    return (of & v.constant) != 0;
  });
}

void add_comparisons(Rules& rules) {
  rules["vcmpps"] = of_compare<float>();
  rules["vcmppd"] = of_compare<double>();
  rules["vpcmpd"] = of_compare<int32_t>();
  rules["vpcmpq"] = of_compare<int64_t>();
  rules["vpcmpud"] = of_compare<uint32_t>();
  rules["vpcmpuq"] = of_compare<uint64_t>();
  rules["vpcmpeqd"] = of_bits<int32_t>(
      [](const Lanes& v, int i) { return get<int32_t>(v.b, i) == get<int32_t>(v.c, i); });
  rules["vpcmpgtd"] = of_bits<int32_t>(
      [](const Lanes& v, int i) { return get<int32_t>(v.b, i) > get<int32_t>(v.c, i); });
  rules["vptestmd"] = of_bits<uint32_t>(
      [](const Lanes& v, int i) { return (get<uint32_t>(v.b, i) & get<uint32_t>(v.c, i)) != 0; });
  rules["vptestnmd"] = of_bits<uint32_t>(
      [](const Lanes& v, int i) { return (get<uint32_t>(v.b, i) & get<uint32_t>(v.c, i)) == 0; });
  rules["vfpclassps"] = of_class<float>();
  rules["vfpclasspd"] = of_class<double>();
}

const Rules& all_rules() {
  static const Rules rules = [] {
    Rules all;
    add_arithmetic(all);
    add_bits(all);
    add_shuffles(all);
    add_permutations(all);
    add_moves(all);
    add_conversions(all);
    add_comparisons(all);
    return all;
  }();
  return rules;
}

Bytes value_of(const AsmOperand& operand, const MachineState& state) {
  Bytes bytes = {};
  if (operand.kind == AsmOperand::kVector) {
    std::memcpy(bytes.data(), state.vectors[operand.number], 64);
  } else if (operand.kind == AsmOperand::kGeneral) {
    std::memcpy(bytes.data(), &state.general[operand.number], operand.bytes);
  } else if (operand.kind == AsmOperand::kMemory && operand.copies == 1) {
    std::memcpy(bytes.data(), operand.address(), operand.bytes == 0 ? 64 : operand.bytes);
  } else if (operand.kind == AsmOperand::kMemory) {
    for (int i = 0; i < operand.copies; ++i) {
      std::memcpy(bytes.data() + i * operand.bytes, operand.address(), operand.bytes);
    }
  }
  return bytes;
}

// `out` where the mask has ones; otherwise what was there, or zero.
void put_result(const AsmOperand& to, const Rule& rule, const Lanes& v, MachineState& state) {
  if (to.kind == AsmOperand::kGeneral) {
    state.general[to.number] = 0;
    std::memcpy(&state.general[to.number], v.out.data(), to.bytes);
    return;
  }
  if (to.kind == AsmOperand::kMask) {
    state.masks[to.number] = v.bits & v.mask;
    return;
  }
  uint8_t* target = to.kind == AsmOperand::kMemory ? to.address() : state.vectors[to.number];
  for (int i = 0; i < v.size; ++i) {
    const int element = i / rule.element;
    const bool one = (rule.scalar && element > 0) || (v.mask >> element & 1) != 0;
    if (one) target[i] = v.out[i];
    if (!one && to.zeroing) target[i] = 0;
  }
  if (to.kind == AsmOperand::kVector) std::memset(target + v.size, 0, 64 - v.size);
}

void apply_rule(const Rule& rule, const AsmInstruction& instruction, MachineState& state) {
  std::vector<AsmOperand> sources(instruction.operands.begin() + 1, instruction.operands.end());
  const AsmOperand& to = instruction.operands[0];
  Lanes v{};
  v.constant = -1;
  if (sources.back().kind == AsmOperand::kConstant) {
    v.constant = sources.back().number;
    sources.pop_back();
  }
  const AsmOperand& last = sources.back();
  v.c = value_of(last, state);
  if (sources.size() > 1) v.b = value_of(sources[0], state);
  if (last.kind == AsmOperand::kMask) v.from_mask = state.masks[last.number];
  v.old = value_of(to, state);
  v.source_size = last.bytes == 0 ? 64 : last.bytes * last.copies;
  // The memory of a store is as long as its source, but for a part that is extracted.
  v.size = to.bytes != 0 ? to.bytes : to.kind == AsmOperand::kMask ? sources[0].bytes : 0;
  if (v.size == 0) v.size = instruction.name.starts_with("vextract") ? 16 : v.source_size;
  v.mask = to.mask == 0 ? ~uint64_t{0} : state.masks[to.mask];
  v.zeroing = to.zeroing;
  rule.compute(v);
  put_result(to, rule, v, state);
}

}  // namespace

bool apply_reference(const AsmInstruction& instruction, MachineState& state) {
  if (const auto rule = all_rules().find(instruction.name); rule != all_rules().end()) {
    apply_rule(rule->second, instruction, state);
    return true;
  }
  return apply_mask_reference(instruction, state) || apply_tile_reference(instruction, state);
}

}  // namespace weft::test
