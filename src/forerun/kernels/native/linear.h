// Rows quantised to 16 bits, and their products with packed weights.
//
// A packed weight is blocks of 16 rows, and a block is groups of columns: codes, then 16 scales,
// then 16 zero terms. Codes lie in chunks of 64 bytes, four columns of each row. In an int4 chunk c
// of a sub-group the low nibbles are columns [8c, 8c + 4) and the high ones [8c + 4, 8c + 8).
#pragma once
#include "scratch.h"
#include "vec.h"

namespace {

// How far ahead of the product the weights are asked for, in bytes: first into the second-level
// cache, then into the first. Measured; the wide rows of a head are read in longer runs.
template <int bits>
constexpr int kFar = bits == 4 ? 6144 : 8192;
template <int bits>
constexpr int kNear = bits == 4 ? 512 : 1024;
constexpr float kSmallest = 1e-30f;  // rows below it count as 0: kLargest / x would not be finite
constexpr float kLargest = 32639;    // 127 * 256 + 127: both parts of a code stay within a byte

// The parts of sixteen whole numbers: `x` is 256 times the first and the second.
inline void store_parts(int8_t* high_codes, Floats x) {
    // a quarter decides between two equally near: a low part is a byte, from -128 to 127
    const Floats high = nearest((x + splat(0.25f)) * splat(1.0f / 256));
    store_int8(high_codes, high);
    store_int8(high_codes + kSub, fma(high, splat(-256.0f), x));
}

inline float largest(const float* x, int size) {
    Floats most = splat(0.0f);
    for (int i = 0; i < size; i += kLanes) most = larger(magnitude(load(x + i)), most);
    return lane_max(most);
}

inline void quantise(const float* x, const Quantised& to, int row) {
    int8_t* codes = to.codes_of(row);
    float* sums = to.sums_of(row);
    const float most = largest(x, to.columns);
    const bool zero = most < kSmallest;
    const Floats inverse = splat(zero ? 0.0f : kLargest / most);
    to.scales[row] = zero ? 0.0f : most / kLargest;
    for (int sub = 0; sub < to.subs(); ++sub, x += kSub) {
        const Floats first = nearest(load(x) * inverse);
        const Floats second = nearest(load(x + kLanes) * inverse);
        store_parts(codes, first);
        store_parts(codes + kLanes, second);
        *sums = lane_sum(first + second);  // exact; NaN where x has NaN or infinities
        codes += kTile * kSub * 2;
        sums += kTile;
    }
}

// x / rms(x) * weight; `to` may be x, a null weight is 1.
inline void norm(const float* x, const float* weight, int size, float epsilon, float* to) {
    Floats squares = splat(0.0f);
    for (int i = 0; i < size; i += kLanes) {
        const Floats v = load(x + i);
        squares = fma(v, v, squares);
    }
    const float mean = lane_sum(squares) / float(size);
    const Floats factor = splat(1.0f / __builtin_sqrtf(mean + epsilon));
    for (int i = 0; i < size; i += kLanes) {
        const Floats v = load(x + i) * factor;
        store(to + i, weight ? v * load(weight + i) : v);
    }
}

// x [size] times as many rows of weights. A sum's order does not depend on `count`.
template <int count>
inline void dots(const float* x, const float* weights, int size, float* to) {
    Floats sums[count];
    for (int k = 0; k < count; ++k) sums[k] = splat(0.0f);
    for (int i = 0; i < size; i += kLanes) {
        const Floats v = load(x + i);
#pragma GCC unroll 4
        for (int k = 0; k < count; ++k)
            sums[k] = fma(v, load(weights + int64_t(k) * size + i), sums[k]);
    }
    for (int k = 0; k < count; ++k) to[k] = lane_sum(sums[k]);
}

inline int64_t sub_bytes(int bits) { return int64_t(bits) * kSub * kLanes / 8; }
inline int64_t term_bytes(const FrLinear& w) { return kLanes * (w.wide_terms ? 4 : 2); }
inline int64_t block_bytes(const FrLinear& w) {
    const int64_t group = w.group / kSub * sub_bytes(w.bits) + 2 * term_bytes(w);
    return w.columns / w.group * group;
}
inline int blocks_of(const FrLinear& w) { return divided_up(w.rows, kLanes); }

inline Floats load_terms(const uint8_t* p, int wide) {
    if (wide) return load(reinterpret_cast<const float*>(p));
    return load_half(reinterpret_cast<const uint16_t*>(p));
}

// Memory's own prefetching stops at pages and between groups. The address need not exist.
inline void read_soon(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }

template <int bits>
inline void read_ahead(const uint8_t* p) {
#pragma GCC unroll 8
    for (int chunk = 0; chunk < bits; ++chunk) {
        __builtin_prefetch(p + kFar<bits> + 64 * chunk, 0, 2);
        __builtin_prefetch(p + kNear<bits> + 64 * chunk, 0, 3);
    }
}

// The codes of columns [4c, 4c + 4) of a sub-group, of sixteen rows.
template <int bits>
inline Bytes codes_at(const uint8_t* p, int c) {
    if (bits == 8) return load_bytes(p + 64 * c);
    const Bytes bytes = load_bytes(p + 64 * (c / 2));
    return c % 2 ? high_nibbles(bytes) : low_nibbles(bytes);
}

// Sixteen outputs of each of `tokens` rows. A row's sum runs over its sub-groups in order, whatever
// rows stand beside it. fresh: these weights have not been read for other rows yet.
template <int bits, int tokens>
inline void multiply(const FrLinear& w, const uint8_t* p, const Quantised& x, int row, bool fresh,
                     Floats* sums) {
    const int wide = w.wide_terms;
    const int64_t codes_bytes = w.group / kSub * sub_bytes(bits);
    const int8_t* x_codes = x.codes_of(row);
    const float* x_sums = x.sums_of(row);
    const uint8_t* const block_end = p + block_bytes(w);
    Floats total[tokens];
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t) total[t] = splat(0.0f);
    while (p != block_end) {
        const Floats scale = load_terms(p + codes_bytes, wide);
        const Floats zero_term = load_terms(p + codes_bytes + term_bytes(w), wide);
        for (const uint8_t* end = p + codes_bytes; p != end; p += sub_bytes(bits)) {
            if (fresh) read_ahead<bits>(p);
            Ints high[tokens], low[tokens];
#pragma GCC unroll 8
            for (int t = 0; t < tokens; ++t) high[t] = low[t] = no_ints();
#pragma GCC unroll 8
            for (int c = 0; c < 8; ++c) {
                const Bytes codes = codes_at<bits>(p, c);
#pragma GCC unroll 8
                for (int t = 0; t < tokens; ++t) {
                    const int8_t* four = x_codes + t * kSub * 2 + 4 * c;
                    high[t] = dot<bits>(high[t], codes, four);
                    low[t] = dot<bits>(low[t], codes, four + kSub);
                }
            }
#pragma GCC unroll 8
            for (int t = 0; t < tokens; ++t) {
                total[t] = fma(to_floats(times_256(high[t]) + low[t]), scale, total[t]);
                total[t] = fma(zero_term, splat(x_sums[t]), total[t]);
            }
            x_codes += kTile * kSub * 2;
            x_sums += kTile;
        }
        p += 2 * term_bytes(w);
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t) sums[t] = total[t] * splat(x.scales[row + t]);
}

template <int bits>
inline void multiply_some(const FrLinear& w, const uint8_t* p, const Quantised& x, int row,
                          int tokens, bool fresh, Floats* sums) {
    static_assert(kTile % kTokenTile == 0 && kTile <= 8, "more cases");
    switch (tokens) {
        case 1: return multiply<bits, 1>(w, p, x, row, fresh, sums);
        case 2: return multiply<bits, 2>(w, p, x, row, fresh, sums);
        case 3: return multiply<bits, 3>(w, p, x, row, fresh, sums);
        case 4: return multiply<bits, 4>(w, p, x, row, fresh, sums);
        case 5: return multiply<bits, 5>(w, p, x, row, fresh, sums);
        case 6: return multiply<bits, 6>(w, p, x, row, fresh, sums);
        case 7: return multiply<bits, 7>(w, p, x, row, fresh, sums);
        default: return multiply<bits, 8>(w, p, x, row, fresh, sums);
    }
}

inline void store_some(float* to, Floats x, int count) {
    if (count >= kLanes) return store(to, x);
    float lanes[kLanes];
    store(lanes, x);
    std::memcpy(to, lanes, count * sizeof(float));
}

inline Floats load_some(const float* from, int count) {
    if (count >= kLanes) return load(from);
    float lanes[kLanes] = {};
    std::memcpy(lanes, from, count * sizeof(float));
    return load(lanes);
}

// The outputs of one block of rows, bias included, for `tokens` rows of x.
inline void block_outputs(const FrLinear& w, int block, const Quantised& x, int row, int tokens,
                          Floats* sums) {
    const uint8_t* p = w.packed + block * block_bytes(w);
    const bool fresh = row == 0;
    if (w.bits == 4)
        multiply_some<4>(w, p, x, row, tokens, fresh, sums);
    else
        multiply_some<8>(w, p, x, row, tokens, fresh, sums);
    if (!w.bias) return;
    const Floats bias = load_some(w.bias + block * kLanes, w.rows - block * kLanes);
    for (int t = 0; t < tokens; ++t) sums[t] = sums[t] + bias;
}

struct Share {
    int first, end;
};

inline Share share(int64_t items, int member, int members) {
    return {int(items * member / members), int(items * (member + 1) / members)};
}

// Starts to read what a member needs next, while it waits for the others.
inline void prefetch(const FrLinear& w, int member, int members) {
    const int64_t first = share(blocks_of(w), member, members).first * block_bytes(w);
    const int64_t left = blocks_of(w) * block_bytes(w) - first;
    for (int64_t at = 0; at < left && at < 16384; at += 64) __builtin_prefetch(w.packed + first + at, 0, 2);
}

// Calls use(block, row, tokens, sums) for each tile of outputs in a member's share of the blocks.
template <class Use>
inline void each_tile(const FrLinear& w, Share blocks, const Quantised& x, int width, Use use) {
    Floats sums[kTokenTile];
    for (int block = blocks.first; block < blocks.end; ++block) {
        for (int row = 0; row < width; row += kTokenTile) {
            const int tokens = least(width - row, kTokenTile);
            block_outputs(w, block, x, row, tokens, sums);
            use(block, row, tokens, sums);
        }
    }
}

// A member's share of y [width, stride] = x times the parts, or of what is added to y.
template <bool add>
inline void linear(const FrLinear* parts, int count, const Quantised& x, int width, float* y,
                   int64_t stride, int member, int members) {
    int blocks = 0;
    for (int part = 0; part < count; ++part) blocks += blocks_of(parts[part]);
    Share mine = share(blocks, member, members);
    for (int part = 0; part < count; ++part) {
        const FrLinear& w = parts[part];
        const Share here = {most_of(mine.first, 0), least(mine.end, blocks_of(w))};
        each_tile(w, here, x, width, [&](int block, int row, int tokens, const Floats* sums) {
            const int left = w.rows - block * kLanes;
            for (int t = 0; t < tokens; ++t) {
                float* to = y + (row + t) * stride + block * kLanes;
                store_some(to, add ? load_some(to, left) + sums[t] : sums[t], left);
            }
        });
        mine = {mine.first - blocks_of(w), mine.end - blocks_of(w)};
        y += w.rows;
    }
}

}  // namespace
