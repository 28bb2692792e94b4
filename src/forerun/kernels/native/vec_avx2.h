// Sixteen lanes in two AVX2 registers, with FMA and F16C.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int kQueryTile = 3, kKeyGroups = 2, kValueChunk = 2, kTokenTile = 4;

struct Floats {
    __m256 a, b;
};
struct Ints {
    __m256i a, b;
};
struct Bytes {  // four a lane
    __m256i a, b;
};

inline Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline __m128i load_shorts(const uint16_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline Floats load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(load_shorts(p)), _mm256_cvtph_ps(load_shorts(p + 8))};
}
inline __m256 from_bfloat16(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline Floats load_bfloat16(const uint16_t* p) {
    return {from_bfloat16(load_shorts(p)), from_bfloat16(load_shorts(p + 8))};
}
inline __m256 low_bfloat16(__m256 x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16));
}
inline __m256 high_bfloat16(__m256 x) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(int(0xffff0000))));
}
// The first and the second of each lane's two.
inline Floats low_bfloat16(Floats x) { return {low_bfloat16(x.a), low_bfloat16(x.b)}; }
inline Floats high_bfloat16(Floats x) { return {high_bfloat16(x.a), high_bfloat16(x.b)}; }
inline Floats fma(Floats x, Floats y, Floats z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Floats operator+(Floats x, Floats y) {
    return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline Floats operator-(Floats x, Floats y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
inline Floats operator*(Floats x, Floats y) {
    return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
inline Floats operator/(Floats x, Floats y) {
    return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
inline Floats larger(Floats x, Floats y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
inline Floats smaller(Floats x, Floats y) {
    return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
inline Floats magnitude(Floats x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline Floats nearest(Floats x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline __m256 power_of_two(__m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
// 2^n for whole n from -126 to 127.
inline Floats power_of_two(Floats n) { return {power_of_two(n.a), power_of_two(n.b)}; }
// `value` where x reaches the limit, else 0.
inline Floats from_limit(Floats x, Floats limit, Floats value) {
    return {_mm256_and_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_GE_OQ), value.a),
            _mm256_and_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_GE_OQ), value.b)};
}

inline Ints no_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Ints operator+(Ints x, Ints y) {
    return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
inline Ints times_256(Ints x) { return {_mm256_slli_epi32(x.a, 8), _mm256_slli_epi32(x.b, 8)}; }
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Bytes load_bytes(const uint8_t* p) {
    const __m256i* at = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline __m256i high_nibbles(__m256i x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
inline Bytes low_nibbles(Bytes x) { return {low_nibbles(x.a), low_nibbles(x.b)}; }
inline Bytes high_nibbles(Bytes x) { return {high_nibbles(x.a), high_nibbles(x.b)}; }
// Sums of four products. Codes above 127 would overflow the sixteen bits of a pair, so bytes are
// multiplied by nibbles.
template <int bits>
inline __m256i four_products(__m256i codes, __m256i x) {
    const __m256i ones = _mm256_set1_epi16(1);
    if (bits == 4) return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), ones);
    const __m256i low = _mm256_madd_epi16(_mm256_maddubs_epi16(low_nibbles(codes), x), ones);
    const __m256i high = _mm256_madd_epi16(_mm256_maddubs_epi16(high_nibbles(codes), x), ones);
    return _mm256_add_epi32(low, _mm256_slli_epi32(high, 4));
}
template <int bits>
inline Ints dot(Ints sum, Bytes codes, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m256i all = _mm256_set1_epi32(four);
    return {_mm256_add_epi32(sum.a, four_products<bits>(codes.a, all)),
            _mm256_add_epi32(sum.b, four_products<bits>(codes.b, all))};
}
inline void store_int8(int8_t* p, Floats x) {
    const __m256i shorts = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline float lane_sum(Floats x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// Four of them.
inline void lane_sums(const Floats* rows, float* to) {
    for (int i = 0; i < 4; ++i) to[i] = lane_sum(rows[i]);
}
inline float lane_max(Floats x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// [8, 8], in place.
inline void transpose_eight(__m256* r) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

inline void transpose(Floats* rows) {
    __m256 quarters[2][2][8];  // [columns of 8][rows of 8]
    for (int i = 0; i < 16; ++i) {
        quarters[0][i / 8][i % 8] = rows[i].a;
        quarters[1][i / 8][i % 8] = rows[i].b;
    }
    for (auto& column : quarters)
        for (auto& quarter : column) transpose_eight(quarter);
    for (int i = 0; i < 16; ++i) rows[i] = {quarters[i / 8][0][i % 8], quarters[i / 8][1][i % 8]};
}

}  // namespace
