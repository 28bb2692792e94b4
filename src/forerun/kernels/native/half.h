// Half precision to float and back, where no instruction does it.
#pragma once
#include <cstdint>
#include <cstring>

namespace forerun {

static inline float from_half(uint16_t half) {
    const uint32_t magnitude = half & 0x7fff, sign = uint32_t(half & 0x8000) << 16;
    float value;
    if (magnitude >= 0x7c00) {
        const uint32_t bits = 0x7f800000 | (magnitude & 0x3ff) << 13;
        std::memcpy(&value, &bits, sizeof value);
    } else {
        const uint32_t bits = magnitude << 13;  // as an exponent 112 too small
        std::memcpy(&value, &bits, sizeof value);
        value *= 0x1p112f;
    }
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits |= sign;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// To the nearest, ties to even; the caller's values are exact in half precision.
static inline uint16_t to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits < 0x38800000) {  // subnormal: the sum's last places are those of the half
        float magnitude;
        std::memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5f;
        std::memcpy(&bits, &magnitude, sizeof bits);
        return uint16_t(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return uint16_t(sign | ((bits - 0x38000000) >> 13));
}

}  // namespace forerun
