// How the memory that callers lend is divided, and how rows are cut. The same on every instruction
// set, and in a namespace without a name, so that no copy is shared between their files.
#pragma once
#include "abi.h"

namespace {

constexpr int kSub = 32;     // columns whose codes stand together, and have one sum
constexpr int kTile = 8;     // rows that are multiplied together
constexpr int kChunk = 256;  // rows that pass through a layer together
constexpr int kFewRows = 3;  // so few rows are prepared by every member for itself
constexpr int kNarrow = 16;  // so many rows may divide attention by positions
constexpr int kBlock = 128;  // positions of a partial result, counted from position 0
constexpr float kInfinity = __builtin_inff();
constexpr int kRound = 32;        // blocks whose partial results are held at once
constexpr int kGathered = 64;     // rows of one expert that are multiplied together
constexpr int kItemQueries = 96;  // queries that share a block's unpacked keys
constexpr int kStateRows = 32;    // rows of a delta state that take their steps together
constexpr int kMostTaps = 8;      // of a conv
constexpr int kMostKeyDim = 256;  // of such a state

inline int least(int a, int b) { return a < b ? a : b; }
inline int most_of(int a, int b) { return a > b ? a : b; }
inline int divided_up(int a, int b) { return (a + b - 1) / b; }

// A number that a template is made for.
template <int count>
struct Size {
    static constexpr int size = count;
};

// Hands out parts of a buffer, each on a cache line of its own. From null it only measures.
struct Memory {
    uint8_t* start;
    int64_t used = 0;
    explicit Memory(void* memory) : start(static_cast<uint8_t*>(memory)) {
        if (start) used = -reinterpret_cast<intptr_t>(start) & 63;
    }
    template <class T>
    T* take(int64_t count) {
        T* part = start ? reinterpret_cast<T*>(start + used) : nullptr;
        used += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
        return part;
    }
    int64_t bytes() const { return used + 64; }
};

// Rows as 16-bit codes, with a scale each, and the sums of the codes of every `kSub` columns. A code
// is 256 times its high part and its low part, a byte each.
//
// Tiles of `kTile` rows; in a tile a sub-group's columns of all its rows stand together, and so do
// their sums. A product walks through a tile with two pointers.
struct Quantised {
    int8_t* codes;  // [tiles, subs, kTile, 2, kSub]: high parts, then low ones
    float* sums;    // [tiles, subs, kTile]
    float* scales;  // [tiles, kTile]
    int columns;
    int subs() const { return columns / kSub; }
    int8_t* codes_of(int row) const {
        return codes + int64_t(row / kTile) * columns * kTile * 2 + row % kTile * kSub * 2;
    }
    float* sums_of(int row) const {
        return sums + int64_t(row / kTile) * subs() * kTile + row % kTile;
    }
};

inline Quantised take_quantised(Memory& memory, int columns, int rows) {
    const int64_t padded = int64_t(divided_up(rows, kTile)) * kTile;
    Quantised x;
    x.columns = columns;
    x.codes = memory.take<int8_t>(padded * columns * 2);
    x.sums = memory.take<float>(padded * (columns / kSub));
    x.scales = memory.take<float>(padded);
    return x;
}

// The same memory for rows of fewer columns.
inline Quantised narrowed(Quantised x, int columns) {
    x.columns = columns;
    return x;
}

// What queries have seen: exponentials relative to the largest score, and values summed by them.
struct Seen {
    float *most, *total;  // [queries]
    float* values;        // [queries, dim]
    int dim;
    Seen from(int64_t query) const {
        return {most + query, total + query, values + query * dim, dim};
    }
};

inline Seen take_seen(Memory& memory, int64_t queries, int dim) {
    Seen seen;
    seen.most = memory.take<float>(queries);
    seen.total = memory.take<float>(queries);
    seen.values = memory.take<float>(queries * dim);
    seen.dim = dim;
    return seen;
}

inline int item_rows(const FrLayer& layer) {
    return most_of(1, kItemQueries * layer.kv_heads / layer.heads);
}

inline int rotary_dim(const FrLayer& layer) {
    return layer.rotary_dim ? layer.rotary_dim : layer.head_dim;
}

// Of what attention reads: the stream, or tokens and the stream side by side.
inline int input_columns(const FrLayer& layer) {
    return layer.token_norm ? 2 * layer.hidden : layer.hidden;
}

// Of what its way to mix tokens makes, before the output projection.
inline int mixed_columns(const FrLayer& layer) {
    if (layer.delta) return layer.delta->value_heads * layer.delta->value_dim;
    return layer.heads * layer.head_dim;
}

// What one member uses alone.
struct Own {
    Quantised stream, mixed, inner;  // of `kFewRows`
    float* row;                      // [mixed_columns] or [input_columns]
};

struct OwnAttention {
    float* keys;  // one block, dimension by dimension
    Seen block, running;
};

struct AttentionMemory {
    float *qkv, *gates;
    Seen partial, running;
    OwnAttention own;
};

inline AttentionMemory divide_attention(Memory& memory, const FrLayer& layer, int rows, int member,
                                        int members) {
    const int dim = layer.head_dim;
    const int64_t narrow = int64_t(least(rows, kNarrow)) * layer.heads;
    const int64_t item =
        int64_t(most_of(item_rows(layer), kNarrow)) * (layer.heads / layer.kv_heads);
    AttentionMemory all;
    all.qkv = memory.take<float>(int64_t(rows) * (layer.heads + 2 * layer.kv_heads) * dim);
    all.gates = memory.take<float>(int64_t(rows) * layer.output_gate.rows);
    all.partial = take_seen(memory, narrow * kRound, dim);
    all.running = take_seen(memory, narrow, dim);
    for (int each = 0; each < members; ++each) {
        OwnAttention own;
        own.keys = memory.take<float>(int64_t(kBlock) * dim);
        own.block = take_seen(memory, item, dim);
        own.running = take_seen(memory, item, dim);
        if (each == member) all.own = own;
    }
    return all;
}

// What the steps of one head read, and what they make.
struct OwnDelta {
    float *keys, *queries;        // [rows, key_dim]
    float* values;                // [rows, value_dim], replaced by what each step answers
    float *decay, *beta, *seen;   // [rows]; seen: key times query
    float* work;                  // [kStateRows, key_dim]
};

struct DeltaMemory {
    float* rows;   // [rows, channels and mixed_columns] of queries, keys, values, output gates
    float* gates;  // [rows, 2 * value_heads]
    float *tail, *state;  // between two chunks, where there is more than one
    OwnDelta own;
};

// Of queries, keys and values.
inline int channels_of(const FrDelta& delta) {
    return 2 * delta.key_heads * delta.key_dim + delta.value_heads * delta.value_dim;
}

inline DeltaMemory divide_delta(Memory& memory, const FrDelta& delta, int width, int member,
                                int members) {
    const int rows = least(width, kChunk), channels = channels_of(delta);
    const int made = delta.value_heads * delta.value_dim, between = width > kChunk ? 1 : 0;
    const int padded = divided_up(rows, 16) * 16;
    DeltaMemory all;
    all.rows = memory.take<float>(int64_t(rows) * (channels + made));
    all.gates = memory.take<float>(int64_t(rows) * 2 * delta.value_heads);
    all.tail = memory.take<float>(int64_t(between) * (delta.taps - 1) * channels);
    all.state = memory.take<float>(int64_t(between) * made * delta.key_dim);
    for (int each = 0; each < members; ++each) {
        OwnDelta own;
        own.keys = memory.take<float>(int64_t(rows) * delta.key_dim);
        own.queries = memory.take<float>(int64_t(rows) * delta.key_dim);
        own.values = memory.take<float>(int64_t(rows) * delta.value_dim);
        own.decay = memory.take<float>(padded);
        own.beta = memory.take<float>(padded);
        own.seen = memory.take<float>(rows);
        own.work = memory.take<float>(int64_t(kStateRows) * delta.key_dim);
        if (each == member) all.own = own;
    }
    return all;
}

// What a member works in that folds steps into a state.
inline float* divide_fold(Memory& memory, int key_dim, int member, int members) {
    float* all = memory.take<float>(int64_t(members) * kStateRows * key_dim);
    return all + int64_t(member) * kStateRows * key_dim;
}

// Rows of a mixture of experts, and what each of them takes.
struct RoutedRows {
    Quantised stream;  // normed
    float* normed;     // [rows, hidden]
    int32_t* experts;  // [rows, taken], of each row the best first, the shared one last
    float* weights;
};

// Slots [first, first + count), of rows that one expert is multiplied with together.
struct Run {
    int32_t expert, first, count;
};

// What one member uses alone. A slot is a place of a pair of a row and an expert.
struct OwnExperts {
    RoutedRows rows;  // `kFewRows`
    float* exponentials;
    int32_t* ends;  // [experts and one], of each one's slots
    int32_t* slot_rows;
    float* slot_weights;
    Run* runs;
    Quantised tiles;  // `kGathered`
};

struct ExpertMemory {
    RoutedRows rows;
    float* logits;                 // [rows, logit_columns]
    float *gated, *shared_gated;   // [slots, inner]
    Quantised inner, shared_inner;
    float* sums;  // [rows, hidden]
    OwnExperts own;
};

inline int taken(const FrExperts& experts) { return experts.top + (experts.shared ? 1 : 0); }

// The experts' logits, and that of the shared one's gate.
inline int logit_columns(const FrExperts& experts) { return experts.count + 1; }

inline RoutedRows take_routed(Memory& memory, const FrLayer& layer, int rows) {
    RoutedRows x;
    x.stream = take_quantised(memory, layer.hidden, rows);
    x.normed = memory.take<float>(int64_t(rows) * layer.hidden);
    x.experts = memory.take<int32_t>(rows * taken(*layer.experts));
    x.weights = memory.take<float>(rows * taken(*layer.experts));
    return x;
}

// Buffers for a mixture of experts over `rows` rows; `own` is that of `member`.
inline ExpertMemory divide_experts(Memory& memory, const FrLayer& layer, int rows, int member,
                                   int members) {
    const FrExperts& experts = *layer.experts;
    const int inner = experts.gate->rows, shared = experts.shared ? experts.shared->rows : 0;
    const int routed = rows * experts.top, pairs = rows * taken(experts);
    ExpertMemory all;
    all.rows = take_routed(memory, layer, rows);
    all.logits = memory.take<float>(int64_t(rows) * logit_columns(experts));
    all.gated = memory.take<float>(int64_t(routed) * inner);
    all.shared_gated = memory.take<float>(int64_t(rows) * shared);
    all.inner = take_quantised(memory, inner, routed);
    all.shared_inner = take_quantised(memory, shared, rows);
    all.sums = memory.take<float>(int64_t(rows) * layer.hidden);
    for (int each = 0; each < members; ++each) {
        OwnExperts own;
        own.rows = take_routed(memory, layer, kFewRows);
        own.exponentials = memory.take<float>(divided_up(experts.count, 16) * 16);
        own.ends = memory.take<int32_t>(experts.count + 1);
        own.slot_rows = memory.take<int32_t>(pairs);
        own.slot_weights = memory.take<float>(pairs);
        own.runs = memory.take<Run>(pairs);
        const int widest = most_of(layer.hidden, most_of(inner, shared));
        own.tiles = take_quantised(memory, widest, least(rows, kGathered));
        if (each == member) all.own = own;
    }
    return all;
}

struct LayerMemory {
    Quantised stream, mixed, inner;
    float *mixed_rows, *gated, *branch;
    Own own;
    AttentionMemory attention;
    DeltaMemory delta;
    ExpertMemory experts;
};

// Buffers for up to `kChunk` rows; `own` is that of `member`.
inline LayerMemory divide(Memory& memory, const FrLayer& layer, int width, int member,
                          int members) {
    const int rows = least(width, kChunk), columns = mixed_columns(layer);
    LayerMemory all;
    all.stream = take_quantised(memory, input_columns(layer), rows);
    all.mixed = take_quantised(memory, columns, rows);
    all.inner = take_quantised(memory, layer.inner, rows);
    all.mixed_rows = memory.take<float>(int64_t(rows) * columns);
    all.gated = memory.take<float>(int64_t(rows) * layer.inner);
    all.branch = memory.take<float>(int64_t(rows) * layer.hidden);
    for (int each = 0; each < members; ++each) {
        Own own;
        own.stream = take_quantised(memory, input_columns(layer), kFewRows);
        own.mixed = take_quantised(memory, columns, kFewRows);
        own.inner = take_quantised(memory, layer.inner, kFewRows);
        own.row = memory.take<float>(most_of(columns, input_columns(layer)));
        if (each == member) all.own = own;
    }
    if (layer.delta)
        all.delta = divide_delta(memory, *layer.delta, width, member, members);
    else
        all.attention = divide_attention(memory, layer, rows, member, members);
    if (layer.experts) all.experts = divide_experts(memory, layer, rows, member, members);
    return all;
}

// The `top` best so far, in order: by value, then by smaller id.
struct Best {
    int32_t* ids;
    float* values;
    int top;

    void clear() const {
        for (int i = 0; i < top; ++i) ids[i] = -1, values[i] = -kInfinity;
    }
    bool before(int i, float value, int32_t id) const {
        return ids[i] >= 0 && (values[i] > value || (values[i] == value && ids[i] < id));
    }
    void offer(float value, int32_t id) const {
        if (value != value || before(top - 1, value, id)) return;
        int i = top - 1;
        for (; i > 0 && !before(i - 1, value, id); --i) {
            ids[i] = ids[i - 1];
            values[i] = values[i - 1];
        }
        ids[i] = id;
        values[i] = value;
    }
};

struct HeadMemory {
    Quantised x;
    float* row;  // of this member
    Best best;   // [members, rows, top]
    int rows;
    Best of(int member, int row) const {
        const int64_t at = (int64_t(member) * rows + row) * best.top;
        return {best.ids + at, best.values + at, best.top};
    }
};

inline HeadMemory divide_head(Memory& memory, int columns, int width, int top, int member,
                              int members) {
    HeadMemory at;
    at.rows = least(width, kChunk);
    at.x = take_quantised(memory, columns, at.rows);
    const int64_t numbers = int64_t(members) * at.rows * top;
    at.best = {memory.take<int32_t>(numbers), memory.take<float>(numbers), top};
    for (int each = 0; each < members; ++each) {
        float* row = memory.take<float>(columns);
        if (each == member) at.row = row;
    }
    return at;
}

}  // namespace
