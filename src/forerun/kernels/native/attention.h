// Attention over the live rows of a cache, in blocks of `kBlock` positions counted from position 0.
//
// What a query sees of one block is worked out from that block alone, and blocks are folded in
// order, so that a row's bits depend on nothing but its position and the history (WID-2).
#pragma once
#include "linear.h"

namespace {

constexpr int kKeysAhead = 4096;  // bytes

struct History {
    const FrLayer& layer;
    const FrStep& step;
    const float* queries;  // [rows, query_stride], scaled
    int64_t query_stride;
    int first_query;  // position of the chunk's first row

    int group() const { return layer.heads / layer.kv_heads; }
    int low(int position) const {
        const int reach = layer.window ? position - layer.window + 1 : 0;
        return most_of(reach, step.first_position);
    }
    int64_t index(int position) const {
        const int64_t end = int64_t(step.first_row) + step.rows->width;
        return end - step.live + position - step.first_position;
    }
};

// Queries of one key head that are worked on together: rows [first_row, first_row + rows).
struct Item {
    int kv_head, first_row, rows;
};

inline Floats load_element(const void* base, int64_t at, int bfloat16) {
    if (bfloat16) return load_bfloat16(static_cast<const uint16_t*>(base) + at);
    return load(static_cast<const float*>(base) + at);
}

// Sixteen keys' elements [d, d + 16), or with bfloat16 [d, d + 32), dimension by dimension.
inline void turn_keys(const Floats* rows, int bfloat16, float* to) {
    Floats turned[kLanes];
    for (int i = 0; i < kLanes; ++i) turned[i] = rows[i];
    transpose(turned);
    for (int i = 0; i < kLanes; ++i) {
        if (bfloat16) {
            store(to + 2 * i * kLanes, low_bfloat16(turned[i]));
            store(to + (2 * i + 1) * kLanes, high_bfloat16(turned[i]));
        } else {
            store(to + i * kLanes, turned[i]);
        }
    }
}

// Writes the keys at positions [low, high) of the block from `start` as [dim, 16] floats, sixteen
// positions after sixteen. Keys beside them read as 0, since their rows may hold anything.
inline void turn_block(const History& h, int kv_head, int start, int low, int high, float* to) {
    const int dim = h.layer.head_dim, bfloat16 = h.step.bfloat16, bytes = bfloat16 ? 2 : 4;
    const int step = kLanes * 4 / bytes;
    const uint8_t* keys = static_cast<const uint8_t*>(h.step.keys);
    const uint8_t* values = static_cast<const uint8_t*>(h.step.values);
    keys += (kv_head * h.step.key_stride + h.index(start) * dim) * bytes;
    values += (kv_head * h.step.value_stride + h.index(start) * dim) * bytes;
    for (int first = (low - start) / kLanes * kLanes; first < high - start; first += kLanes) {
        for (int d = 0; d < dim; d += step) {
            Floats rows[kLanes];
            for (int i = 0; i < kLanes; ++i) {
                const bool seen = start + first + i >= low && start + first + i < high;
                const int64_t at = (int64_t(first + i) * dim + d) * bytes;
                rows[i] = seen ? load(reinterpret_cast<const float*>(keys + at)) : splat(0.0f);
                read_soon(keys + at + kKeysAhead);
                read_soon(values + at);
            }
            turn_keys(rows, bfloat16, to + int64_t(first) * dim + d * kLanes);
        }
    }
}

// scores[q][key] for `groups` times sixteen keys from `first`.
template <int count, int groups>
inline void score(const float* const* queries, const float* keys, int dim, int first,
                  float (*scores)[kBlock]) {
    const float* at = keys + int64_t(first) * dim;
    Floats sums[count][groups];
    for (int q = 0; q < count; ++q)
        for (int g = 0; g < groups; ++g) sums[q][g] = splat(0.0f);
    for (int d = 0; d < dim; ++d, at += kLanes) {
        Floats key[groups];
#pragma GCC unroll 4
        for (int g = 0; g < groups; ++g) key[g] = load(at + int64_t(g) * dim * kLanes);
#pragma GCC unroll 8
        for (int q = 0; q < count; ++q) {
            const Floats element = splat(queries[q][d]);
#pragma GCC unroll 4
            for (int g = 0; g < groups; ++g) sums[q][g] = fma(element, key[g], sums[q][g]);
        }
    }
    for (int q = 0; q < count; ++q)
        for (int g = 0; g < groups; ++g) store(scores[q] + first + g * kLanes, sums[q][g]);
}

template <int count>
inline void score_all(const float* const* queries, const float* keys, int dim, int from, int until,
                      float (*scores)[kBlock]) {
    constexpr int groups = count > kQueryTile / 2 ? kKeyGroups / 2 : kKeyGroups;
    int first = from;
    for (; first + groups * kLanes <= until; first += groups * kLanes)
        score<count, groups>(queries, keys, dim, first, scores);
    for (; first < until; first += kLanes) score<count, 1>(queries, keys, dim, first, scores);
}

// Turns the scores of keys [low, high) into exponentials, all others into 0.
inline void soften(float* scores, int low, int high, int from, int until, float* most,
                   float* total) {
    for (int i = from; i < least(low, until); ++i) scores[i] = -kInfinity;
    for (int i = most_of(high, from); i < until; ++i) scores[i] = -kInfinity;
    Floats largest = splat(-kInfinity), sum = splat(0.0f);
    for (int i = from; i < until; i += kLanes) largest = larger(largest, load(scores + i));
    *most = lane_max(largest);
    const Floats base = splat(low < high ? *most : 0.0f);
    for (int i = from; i < until; i += kLanes) {
        const Floats e = exponential(load(scores + i) - base);
        store(scores + i, e);
        sum = sum + e;
    }
    *total = lane_sum(sum);
}

// Keys of a block that some query of a tile sees, whole sixteens around them, and where it stands.
template <int count>
struct Tile {
    const float* queries[count];
    float* values[count];
    int low[count], high[count];
    int first = kBlock, end = 0;               // what any of them sees
    int common_first = 0, common_end = kBlock;  // what all of them see

    Tile(const History& h, const Item& item, int query, int start, const Seen& to) {
        const int group = h.group(), dim = h.layer.head_dim;
        for (int q = 0; q < count; ++q) {
            const int row = item.first_row + (query + q) / group, position = h.first_query + row;
            const int head = item.kv_head * group + (query + q) % group;
            queries[q] = h.queries + row * h.query_stride + head * dim;
            values[q] = to.values + int64_t(query + q) * dim;
            low[q] = most_of(h.low(position) - start, 0);
            high[q] = least(position + 1 - start, kBlock);
            common_first = most_of(common_first, low[q]);
            common_end = least(common_end, high[q]);
            if (low[q] >= high[q]) continue;
            first = least(first, low[q]);
            end = most_of(end, high[q]);
        }
    }
    bool sees(int q, int key) const { return key >= low[q] && key < high[q]; }
};

// The values of a block: element `column` of key k stands at `at + k * dim + column`.
struct Values {
    const void* base;
    int64_t at;
    int dim;
};

// Sums the values that each query of a tile sees by weights, `chunk` registers of each row at a
// time. What a query does not see may be no number, which a weight of 0 would not keep out.
template <int bfloat16, int count, int chunk>
inline void blend(const Tile<count>& tile, const float (*weights)[kBlock], const Values& values,
                  int column) {
    Floats sums[count][chunk];
    for (int q = 0; q < count; ++q)
        for (int c = 0; c < chunk; ++c) sums[q][c] = splat(0.0f);
    const auto add = [&](int key, auto common) {
        constexpr bool all = decltype(common)::size;
        const int64_t at = values.at + int64_t(key) * values.dim + column;
        Floats value[chunk];
#pragma GCC unroll 8
        for (int c = 0; c < chunk; ++c)
            value[c] = load_element(values.base, at + c * kLanes, bfloat16);
#pragma GCC unroll 8
        for (int q = 0; q < count; ++q) {
            if (!all && !tile.sees(q, key)) continue;
            const Floats weight = splat(weights[q][key]);
#pragma GCC unroll 8
            for (int c = 0; c < chunk; ++c) sums[q][c] = fma(weight, value[c], sums[q][c]);
        }
    };
    int key = tile.first;
    for (; key < least(tile.common_first, tile.end); ++key) add(key, Size<0>{});
    for (; key < tile.common_end; ++key) add(key, Size<1>{});
    for (; key < tile.end; ++key) add(key, Size<0>{});
    for (int q = 0; q < count; ++q)
        for (int c = 0; c < chunk; ++c) store(tile.values[q] + column + c * kLanes, sums[q][c]);
}

template <int count>
inline void see_tile(const History& h, const Item& item, int query, int start,
                     const OwnAttention& own, const Seen& to) {
    alignas(64) float scores[count][kBlock];
    Tile<count> tile(h, item, query, start, to);
    const int dim = h.layer.head_dim, bfloat16 = h.step.bfloat16;
    const int from = tile.first / kLanes * kLanes, until = divided_up(tile.end, kLanes) * kLanes;
    score_all<count>(tile.queries, own.keys, dim, from, until, scores);
    for (int q = 0; q < count; ++q)
        soften(scores[q], tile.low[q], tile.high[q], from, until, to.most + query + q,
               to.total + query + q);
    const int64_t at = item.kv_head * h.step.value_stride + h.index(start) * dim;
    const Values values{h.step.values, at, dim};
    const auto sum = [&](auto chunk, int column) {
        constexpr int size = decltype(chunk)::size;
        if (bfloat16)
            blend<1, count, size>(tile, scores, values, column);
        else
            blend<0, count, size>(tile, scores, values, column);
    };
    int d = 0;
    for (; d + kValueChunk * kLanes <= dim; d += kValueChunk * kLanes) sum(Size<kValueChunk>{}, d);
    for (; d < dim; d += kLanes) sum(Size<1>{}, d);
}

// What the item's queries see of the block that starts at position `start`.
inline void see_block(const History& h, const Item& item, int start, const OwnAttention& own,
                      const Seen& to) {
    const int first = h.first_query + item.first_row, last = first + item.rows - 1;
    const int low = most_of(h.low(first), start), high = least(last + 1, start + kBlock);
    const int queries = item.rows * h.group();
    if (low >= high) {
        for (int q = 0; q < queries; ++q) to.most[q] = -kInfinity;
        return;
    }
    turn_block(h, item.kv_head, start, low, high, own.keys);
    static_assert(kQueryTile <= 6, "more cases");
    for (int query = 0; query < queries; query += kQueryTile) {
        switch (least(queries - query, kQueryTile)) {
            case 1: see_tile<1>(h, item, query, start, own, to); break;
            case 2: see_tile<2>(h, item, query, start, own, to); break;
            case 3: see_tile<3>(h, item, query, start, own, to); break;
            case 4: see_tile<4>(h, item, query, start, own, to); break;
            case 5: see_tile<5>(h, item, query, start, own, to); break;
            default: see_tile<6>(h, item, query, start, own, to); break;
        }
    }
}

// Whoever sees nothing, as all scores are minus infinity, has no number for an answer.
inline void forget(const Seen& seen, int queries) {
    for (int q = 0; q < queries; ++q) {
        seen.most[q] = -kInfinity;
        seen.total[q] = __builtin_nanf("");
    }
}

// Adds to what a query has seen the next block's part.
inline void fold(const Seen& into, const Seen& part) {
    if (*part.most == -kInfinity) return;
    const bool first = *into.most == -kInfinity;
    const float most = first || *part.most > *into.most ? *part.most : *into.most;
    const Floats keep = first ? splat(0.0f) : exponential(splat(*into.most - most));
    const Floats take = exponential(splat(*part.most - most));
    float keep_lanes[kLanes], take_lanes[kLanes];
    store(keep_lanes, keep);
    store(take_lanes, take);
    *into.total = (first ? 0.0f : *into.total * keep_lanes[0]) + *part.total * take_lanes[0];
    *into.most = most;
    for (int d = 0; d < into.dim; d += kLanes) {
        const Floats old = first ? splat(0.0f) : load(into.values + d) * keep;
        store(into.values + d, fma(load(part.values + d), take, old));
    }
}

// [heads * dim] outputs of one query row's head.
inline void finish(const Seen& seen, float* to) {
    const Floats inverse = splat(1.0f / *seen.total);
    for (int d = 0; d < seen.dim; d += kLanes) store(to + d, load(seen.values + d) * inverse);
}

inline int first_block(const History& h, int row) { return h.low(h.first_query + row) / kBlock; }

// Attention of one item, all blocks of its history in order.
inline void attend_item(const History& h, const Item& item, const OwnAttention& own, float* out) {
    const int group = h.group(), queries = item.rows * group, dim = h.layer.head_dim;
    const int last = h.first_query + item.first_row + item.rows - 1;
    forget(own.running, queries);
    for (int block = first_block(h, item.first_row); block <= last / kBlock; ++block) {
        see_block(h, item, block * kBlock, own, own.block);
        for (int q = 0; q < queries; ++q) fold(own.running.from(q), own.block.from(q));
    }
    for (int q = 0; q < queries; ++q) {
        const int64_t row = item.first_row + q / group, head = item.kv_head * group + q % group;
        finish(own.running.from(q), out + (row * h.layer.heads + head) * dim);
    }
}

}  // namespace
