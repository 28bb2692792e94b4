// Sixteen lanes in one AVX-512 register, with VNNI.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int kQueryTile = 6;   // queries whose scores are held in registers
constexpr int kKeyGroups = 4;   // sixteens of keys that are scored together
constexpr int kValueChunk = 4;  // registers of a value row that are summed together
constexpr int kTokenTile = 8;   // rows that share the unpacked codes of a weight

struct Floats {
    __m512 v;
};
struct Ints {
    __m512i v;
};
struct Bytes {  // four a lane
    __m512i v;
};

inline Floats splat(float x) { return {_mm512_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline __m256i load_shorts(const uint16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Floats load_half(const uint16_t* p) { return {_mm512_cvtph_ps(load_shorts(p))}; }
inline Floats load_bfloat16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_shorts(p)), 16))};
}
// The first and the second of each lane's two.
inline Floats low_bfloat16(Floats a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16))};
}
inline Floats high_bfloat16(Floats a) {
    return {_mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(int(0xffff0000))))};
}
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats magnitude(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats nearest(Floats a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for whole n from -126 to 127.
inline Floats power_of_two(Floats n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}
// `value` where x reaches the limit, else 0.
inline Floats from_limit(Floats x, Floats limit, Floats value) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ), value.v)};
}

inline Ints no_ints() { return {_mm512_setzero_si512()}; }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints times_256(Ints a) { return {_mm512_slli_epi32(a.v, 8)}; }
inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline Bytes high_nibbles(Bytes a) {
    return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
// Adds to each lane its four codes times the four x.
template <int bits>
inline Ints dot(Ints sum, Bytes codes, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return {_mm512_dpbusd_epi32(sum.v, codes.v, _mm512_set1_epi32(four))};
}
inline void store_int8(int8_t* p, Floats a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

inline float lane_sum(Floats a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// Four of them at once.
inline void lane_sums(const Floats* rows, float* to) {
    const auto halves = [](__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    };
    const __m512 first = halves(rows[0].v, rows[1].v), second = halves(rows[2].v, rows[3].v);
    const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x88),
                                      _mm512_shuffle_f32x4(first, second, 0xdd));
    const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
    const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
    const __m512i blocks = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(blocks, one)));
}
inline float lane_max(Floats a) { return _mm512_reduce_max_ps(a.v); }

inline void transpose(Floats* rows) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
        a[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    const auto pair = [](__m512 x, __m512 y, bool high) {
        const __m512d p = _mm512_castps_pd(x), q = _mm512_castps_pd(y);
        return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(p, q) : _mm512_unpacklo_pd(p, q));
    };
    for (int i = 0; i < 16; i += 4) {
        b[i] = pair(a[i], a[i + 2], false);
        b[i + 1] = pair(a[i], a[i + 2], true);
        b[i + 2] = pair(a[i + 1], a[i + 3], false);
        b[i + 3] = pair(a[i + 1], a[i + 3], true);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512 p = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
        const __m512 q = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
        const __m512 r = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
        const __m512 s = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
        rows[i].v = _mm512_shuffle_f32x4(p, r, 0x88);
        rows[i + 4].v = _mm512_shuffle_f32x4(q, s, 0x88);
        rows[i + 8].v = _mm512_shuffle_f32x4(p, r, 0xdd);
        rows[i + 12].v = _mm512_shuffle_f32x4(q, s, 0xdd);
    }
}

}  // namespace
