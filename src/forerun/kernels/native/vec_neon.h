// Sixteen lanes in four NEON registers, with dot products (ARMv8.2).
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int kQueryTile = 3, kKeyGroups = 2, kValueChunk = 2, kTokenTile = 4;

struct Floats {
    float32x4_t v[4];
};
struct Ints {
    int32x4_t v[4];
};
struct Bytes {  // four a lane
    uint8x16_t v[4];
};

template <class Of>
inline Floats quarters(Of of) {
    return {{of(0), of(1), of(2), of(3)}};
}

inline Floats splat(float x) {
    return quarters([=](int) { return vdupq_n_f32(x); });
}
inline Floats load(const float* p) {
    return quarters([=](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, const Floats& a) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
inline Floats load_half(const uint16_t* p) {
    return quarters([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline Floats load_bfloat16(const uint16_t* p) {
    return quarters(
        [=](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
// The first and the second of each lane's two.
inline Floats low_bfloat16(const Floats& a) {
    return quarters([&](int i) {
        return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a.v[i]), 16));
    });
}
inline Floats high_bfloat16(const Floats& a) {
    return quarters([&](int i) {
        const uint32x4_t mask = vdupq_n_u32(0xffff0000);
        return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a.v[i]), mask));
    });
}
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return quarters([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline Floats operator+(const Floats& a, const Floats& b) {
    return quarters([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline Floats operator-(const Floats& a, const Floats& b) {
    return quarters([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline Floats operator*(const Floats& a, const Floats& b) {
    return quarters([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline Floats operator/(const Floats& a, const Floats& b) {
    return quarters([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
// Like the instructions of x86, the second where either is NaN.
inline Floats larger(const Floats& a, const Floats& b) {
    return quarters([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline Floats smaller(const Floats& a, const Floats& b) {
    return quarters([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline Floats magnitude(const Floats& a) {
    return quarters([&](int i) { return vabsq_f32(a.v[i]); });
}
inline Floats nearest(const Floats& a) {
    return quarters([&](int i) { return vrndnq_f32(a.v[i]); });
}
// 2^n for whole n from -126 to 127.
inline Floats power_of_two(const Floats& n) {
    return quarters([&](int i) {
        const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127));
        return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
    });
}
// `value` where x reaches the limit, else 0.
inline Floats from_limit(const Floats& x, const Floats& limit, const Floats& value) {
    return quarters([&](int i) {
        const uint32x4_t reached = vcgeq_f32(x.v[i], limit.v[i]);
        return vreinterpretq_f32_u32(vandq_u32(reached, vreinterpretq_u32_f32(value.v[i])));
    });
}

inline Ints no_ints() {
    const int32x4_t zero = vdupq_n_s32(0);
    return {{zero, zero, zero, zero}};
}
inline Ints operator+(const Ints& a, const Ints& b) {
    Ints sum;
    for (int i = 0; i < 4; ++i) sum.v[i] = vaddq_s32(a.v[i], b.v[i]);
    return sum;
}
inline Ints times_256(const Ints& a) {
    Ints more;
    for (int i = 0; i < 4; ++i) more.v[i] = vshlq_n_s32(a.v[i], 8);
    return more;
}
inline Floats to_floats(const Ints& a) {
    return quarters([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
inline Bytes load_bytes(const uint8_t* p) {
    return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}
inline Bytes low_nibbles(const Bytes& a) {
    Bytes low;
    for (int i = 0; i < 4; ++i) low.v[i] = vandq_u8(a.v[i], vdupq_n_u8(15));
    return low;
}
inline Bytes high_nibbles(const Bytes& a) {
    Bytes high;
    for (int i = 0; i < 4; ++i) high.v[i] = vshrq_n_u8(a.v[i], 4);
    return high;
}
// Adds to each lane its four codes times the four x. The instruction takes signed bytes, and codes
// of eight bits are not: they are multiplied as nibbles.
template <int bits>
inline Ints dot(const Ints& sum, const Bytes& codes, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const int8x16_t all = vreinterpretq_s8_s32(vdupq_n_s32(four));
    const auto product = [&](int32x4_t to, uint8x16_t small) {
        return vdotq_s32(to, vreinterpretq_s8_u8(small), all);
    };
    Ints more;
    for (int i = 0; i < 4; ++i) {
        if (bits == 4) {
            more.v[i] = product(sum.v[i], codes.v[i]);
        } else {
            const uint8x16_t low = vandq_u8(codes.v[i], vdupq_n_u8(15));
            const int32x4_t high = product(vdupq_n_s32(0), vshrq_n_u8(codes.v[i], 4));
            more.v[i] = vaddq_s32(product(sum.v[i], low), vshlq_n_s32(high, 4));
        }
    }
    return more;
}
inline void store_int8(int8_t* p, const Floats& a) {
    const auto shorts = [&](int i) {
        return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a.v[i])),
                            vqmovn_s32(vcvtnq_s32_f32(a.v[i + 1])));
    };
    vst1q_s8(p, vcombine_s8(vqmovn_s16(shorts(0)), vqmovn_s16(shorts(2))));
}

inline float lane_sum(const Floats& a) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
// Four of them.
inline void lane_sums(const Floats* rows, float* to) {
    for (int i = 0; i < 4; ++i) to[i] = lane_sum(rows[i]);
}
inline float lane_max(const Floats& a) {
    const float32x4_t four = vmaxq_f32(vmaxq_f32(a.v[0], a.v[2]), vmaxq_f32(a.v[1], a.v[3]));
    return vmaxvq_f32(four);
}

inline void transpose(Floats* rows) {
    float from[16][16];
    for (int i = 0; i < 16; ++i) store(from[i], rows[i]);
    float column[16];
    for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 16; ++j) column[j] = from[j][i];
        rows[i] = load(column);
    }
}

}  // namespace
