// Sixteen lanes without instructions for them: slow, and what any machine can run.
#pragma once
#include <cstdint>
#include <cstring>

#include "half.h"

namespace {

constexpr int kQueryTile = 1, kKeyGroups = 2, kValueChunk = 1, kTokenTile = 4;

struct Floats {
    float v[16];
};
struct Ints {
    int32_t v[16];
};
struct Bytes {  // four a lane
    uint8_t v[64];
};

template <class Of>
inline Floats lanes(Of of) {
    Floats all;
    for (int i = 0; i < 16; ++i) all.v[i] = of(i);
    return all;
}

inline Floats splat(float x) {
    return lanes([=](int) { return x; });
}
inline Floats load(const float* p) {
    Floats a;
    std::memcpy(a.v, p, sizeof a.v);
    return a;
}
inline void store(float* p, const Floats& a) { std::memcpy(p, a.v, sizeof a.v); }
inline Floats load_half(const uint16_t* p) {
    return lanes([=](int i) { return forerun::from_half(p[i]); });
}
inline Floats load_bfloat16(const uint16_t* p) {
    return lanes([=](int i) {
        const uint32_t bits = uint32_t(p[i]) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    });
}
inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline Floats low_bfloat16(const Floats& a) {
    return lanes([&](int i) { return of_bits(bits_of(a.v[i]) << 16); });
}
inline Floats high_bfloat16(const Floats& a) {
    return lanes([&](int i) { return of_bits(bits_of(a.v[i]) & 0xffff0000); });
}
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return lanes([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Floats operator+(const Floats& a, const Floats& b) {
    return lanes([&](int i) { return a.v[i] + b.v[i]; });
}
inline Floats operator-(const Floats& a, const Floats& b) {
    return lanes([&](int i) { return a.v[i] - b.v[i]; });
}
inline Floats operator*(const Floats& a, const Floats& b) {
    return lanes([&](int i) { return a.v[i] * b.v[i]; });
}
inline Floats operator/(const Floats& a, const Floats& b) {
    return lanes([&](int i) { return a.v[i] / b.v[i]; });
}
// Like the instructions of x86, the second where either is NaN.
inline Floats larger(const Floats& a, const Floats& b) {
    return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats smaller(const Floats& a, const Floats& b) {
    return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats magnitude(const Floats& a) {
    return lanes([&](int i) { return __builtin_fabsf(a.v[i]); });
}
inline Floats nearest(const Floats& a) {
    return lanes([&](int i) { return __builtin_rintf(a.v[i]); });
}
inline Floats power_of_two(const Floats& n) {
    return lanes([&](int i) {
        const uint32_t bits = uint32_t(int32_t(n.v[i]) + 127) << 23;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    });
}
inline Floats from_limit(const Floats& x, const Floats& limit, const Floats& value) {
    return lanes([&](int i) { return x.v[i] >= limit.v[i] ? value.v[i] : 0.0f; });
}

inline Ints no_ints() { return {}; }
inline Ints operator+(const Ints& a, const Ints& b) {
    Ints sum;
    for (int i = 0; i < 16; ++i) sum.v[i] = a.v[i] + b.v[i];
    return sum;
}
inline Ints times_256(const Ints& a) {
    Ints more;
    for (int i = 0; i < 16; ++i) more.v[i] = a.v[i] * 256;
    return more;
}
inline Floats to_floats(const Ints& a) {
    return lanes([&](int i) { return float(a.v[i]); });
}
inline Bytes load_bytes(const uint8_t* p) {
    Bytes a;
    std::memcpy(a.v, p, sizeof a.v);
    return a;
}
inline Bytes low_nibbles(const Bytes& a) {
    Bytes low;
    for (int i = 0; i < 64; ++i) low.v[i] = a.v[i] & 15;
    return low;
}
inline Bytes high_nibbles(const Bytes& a) {
    Bytes high;
    for (int i = 0; i < 64; ++i) high.v[i] = a.v[i] >> 4;
    return high;
}
template <int bits>
inline Ints dot(Ints sum, const Bytes& codes, const int8_t* x) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 4; ++j) sum.v[i] += int(codes.v[4 * i + j]) * x[j];
    return sum;
}
inline void store_int8(int8_t* p, const Floats& a) {
    for (int i = 0; i < 16; ++i) {
        const bool within = a.v[i] >= -128.0f && a.v[i] <= 127.0f;
        p[i] = within ? int8_t(a.v[i]) : int8_t(a.v[i] > 0 ? 127 : -128);
    }
}

inline float lane_sum(Floats a) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    return a.v[0];
}
// Four of them.
inline void lane_sums(const Floats* rows, float* to) {
    for (int i = 0; i < 4; ++i) to[i] = lane_sum(rows[i]);
}
inline float lane_max(Floats a) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}

inline void transpose(Floats* rows) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < i; ++j) {
            const float lower = rows[i].v[j];
            rows[i].v[j] = rows[j].v[i];
            rows[j].v[i] = lower;
        }
}

}  // namespace
