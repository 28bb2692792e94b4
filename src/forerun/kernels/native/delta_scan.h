// The gated delta rule, step by step: what `kernels/gated_delta/reference.py` states.
//
//     S = decay * S;  u = beta * (v - S k);  S = S + u k^T;  y = S q
//
// Rows of a state (one a value dimension) know nothing of each other, so that some of them go
// through all steps before the next ones: they stay in the first-level cache. A row's bits depend
// on its steps alone, wherever a call, a chunk or a split cuts them (WID-4).
#pragma once
#include "linear.h"

namespace {

// What a step reads: a query where anyone wants to know what the state then answers.
struct DeltaInput {
    const float *key, *query, *values;  // values: of the rows at hand
    float decay, beta;
    float seen;  // key times query
};

// One step of an even number of rows of a state, `key_dim` wide; `outputs` may be its values.
// Before the step S k and S q are known, and after it y = decay (S q) + u (k q): a row is read once.
template <int chunks, bool reads, bool keeps>
inline void step_rows(const DeltaInput& in, const float* from, float* to, int rows, int key_dim,
                      float* outputs) {
    constexpr int most = chunks ? chunks : kMostKeyDim / kLanes;
    const int count = chunks ? chunks : key_dim / kLanes;
    Floats key[most], query[most];
    for (int c = 0; c < count; ++c) {
        key[c] = load(in.key + c * kLanes);
        if (reads) query[c] = load(in.query + c * kLanes);
    }
    const Floats decay = splat(in.decay);
    for (int row = 0; row < rows; row += 2, from += 2 * key_dim) {
        Floats products[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
#pragma GCC unroll 8
        for (int c = 0; c < count; ++c) {
            const Floats a = load(from + c * kLanes), b = load(from + key_dim + c * kLanes);
            products[0] = fma(a, key[c], products[0]);
            products[1] = fma(b, key[c], products[1]);
            if (!reads) continue;
            products[2] = fma(a, query[c], products[2]);
            products[3] = fma(b, query[c], products[3]);
        }
        float sums[4], updates[2];
        lane_sums(products, sums);
        for (int i = 0; i < 2; ++i) {
            updates[i] = in.beta * (in.values[row + i] - in.decay * sums[i]);
            if (reads) outputs[row + i] = in.decay * sums[2 + i] + updates[i] * in.seen;
        }
        if (!keeps) continue;
        for (int i = 0; i < 2; ++i, to += key_dim) {
            const Floats update = splat(updates[i]);
            const float* state = from + i * key_dim;
#pragma GCC unroll 8
            for (int c = 0; c < count; ++c)
                store(to + c * kLanes, fma(update, key[c], decay * load(state + c * kLanes)));
        }
    }
}

// `to` null: nobody wants the state after this step. `outputs` null: nobody reads it.
inline void step_rows(const DeltaInput& in, const float* from, float* to, int rows, int key_dim,
                      float* outputs) {
    const auto step = [&](auto chunks) {
        constexpr int size = decltype(chunks)::size;
        if (!outputs)
            step_rows<size, false, true>(in, from, to, rows, key_dim, nullptr);
        else if (to)
            step_rows<size, true, true>(in, from, to, rows, key_dim, outputs);
        else
            step_rows<size, true, false>(in, from, nullptr, rows, key_dim, outputs);
    };
    if (key_dim == 8 * kLanes)
        step(Size<8>{});
    else
        step(Size<0>{});
}

// The heads of a state.
struct DeltaShape {
    int key_heads, value_heads, key_dim, value_dim;
    int key_head(int head) const { return head / (value_heads / key_heads); }
    int64_t at(int head, int row) const {
        return (int64_t(head) * value_dim + row) * key_dim;
    }
};

inline DeltaInput input_of(const FrDeltaRows& rows, const DeltaShape& shape, int step, int head,
                           int first) {
    const int64_t at = int64_t(step) * shape.value_heads + head;
    const int64_t key = int64_t(step) * shape.key_heads + shape.key_head(head);
    return {rows.keys + key * shape.key_dim, nullptr, rows.values + at * shape.value_dim + first,
            rows.decay[at], rows.beta[at], 0.0f};
}

// Takes rows [first, first + count) of a head through `steps` steps, from one state to another.
// Those between stand in `work` [kStateRows, key_dim].
inline void fold_rows(const FrDeltaRows& rows, int steps, const DeltaShape& shape, int head,
                      int first, int count, const float* from, float* to, float* work) {
    for (int step = 0; step < steps; ++step) {
        float* next = step == steps - 1 ? to : work;
        step_rows(input_of(rows, shape, step, head, first), from, next, count, shape.key_dim,
                  nullptr);
        from = next;
    }
}

inline DeltaShape shape_of(const FrDeltaFold& fold) {
    return {fold.key_heads, fold.value_heads, fold.key_dim, fold.value_dim};
}

inline void fold_pass(const FrDeltaFold& fold, int member, int members, void* scratch) {
    const DeltaShape shape = shape_of(fold);
    Memory memory(scratch);
    float* work = divide_fold(memory, shape.key_dim, member, members);
    const Share heads = share(shape.value_heads, member, members);
    for (int head = heads.first; head < heads.end; ++head)
        for (int first = 0; first < shape.value_dim; first += kStateRows) {
            const int count = least(shape.value_dim - first, kStateRows);
            const int64_t at = shape.at(head, first);
            fold_rows(fold.rows, fold.count, shape, head, first, count, fold.state + at,
                      fold.folded + at, work);
        }
}

}  // namespace
