// Arithmetic over the sixteen lanes of vec_avx512.h, vec_avx2.h, vec_neon.h or vec_scalar.h.
//
// A lane is an output row of a linear, a key of attention, or an element of a row. Every operation
// rounds in the same way on every instruction set, so that they differ in speed alone.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

constexpr int kLanes = 16;

// e^x within 2 units in the last place; 0 from -87 down.
inline Floats exponential(Floats x) {
    const Floats clamped = larger(smaller(x, splat(88.0f)), splat(-87.0f));
    const Floats n = nearest(clamped * splat(1.44269504f));
    Floats r = fma(n, splat(-0.693359375f), clamped);
    r = fma(n, splat(2.12194440e-4f), r);
    Floats p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r + splat(1.0f));
    return from_limit(x, splat(-87.0f), p * power_of_two(n));
}

inline Floats sigmoid(Floats x) {
    return splat(1.0f) / (splat(1.0f) + exponential(splat(0.0f) - x));
}

// log(1 + e^x), by log(1 + y) = 2 artanh(y / (2 + y)) within 3 units in the last place.
inline Floats softplus(Floats x) {
    const Floats y = exponential(splat(0.0f) - magnitude(x));
    const Floats s = y / (splat(2.0f) + y), square = s * s;
    Floats series = splat(1.0f / 15);
    for (float odd = 13.0f; odd > 2.0f; odd -= 2.0f)
        series = fma(series, square, splat(1.0f / odd));
    const Floats twice = s + s;
    return larger(x, splat(0.0f)) + fma(series * square, twice, twice);
}

inline Floats silu(Floats x) { return x / (splat(1.0f) + exponential(splat(0.0f) - x)); }

inline Floats gelu_tanh(Floats x) {
    const Floats cubic = fma(splat(0.044715f) * x * x, x, x);
    const Floats e = exponential(splat(2.0f * 0.7978845608f) * cubic);
    const Floats tanh = splat(1.0f) - splat(2.0f) / (e + splat(1.0f));
    return splat(0.5f) * x * (splat(1.0f) + tanh);
}

inline uint16_t to_bfloat16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 64);  // stays NaN
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace
