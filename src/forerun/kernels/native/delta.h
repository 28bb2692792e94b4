// A gated-delta layer's way to mix tokens, between its products: conv, unit queries and keys, scan,
// gated norm. Everything of a value head is one member's, from its channels to its outputs.
#pragma once
#include "delta_scan.h"

namespace {

constexpr float kUnitEpsilon = 1e-6f;  // added to the sum of squares, not to their mean

// Makes a row `factor` long.
inline void make_unit(float* x, int size, float factor) {
    Floats squares = splat(0.0f);
    for (int i = 0; i < size; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
    const Floats scale = splat(factor / __builtin_sqrtf(lane_sum(squares) + kUnitEpsilon));
    for (int i = 0; i < size; i += kLanes) store(x + i, load(x + i) * scale);
}

inline float dot_product(const float* x, const float* y, int size) {
    float sum;
    dots<1>(x, y, size, &sum);
    return sum;
}

inline DeltaShape shape_of(const FrDelta& delta) {
    return {delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim};
}

// The rows [first, first + rows) of the `width` of a forward.
class DeltaChunk {
public:
    DeltaChunk(const FrLayer& layer, const FrDeltaStep& step, const DeltaMemory& memory, int first,
               int rows, int width)
        : layer_(layer),
          delta_(*layer.delta),
          step_(step),
          at_(memory),
          shape_(shape_of(delta_)),
          channels_(channels_of(delta_)),
          first_(first),
          rows_(rows),
          last_(first + rows == width) {}

    int stride() const { return channels_ + mixed_columns(layer_); }

    // Some of the products of a normed row that say how much it forgets and corrects.
    void gates(const float* normed, int row, Share some) const {
        float* to = at_.gates + int64_t(row) * 2 * delta_.value_heads;
        for (int i = some.first; i < some.end;) {
            const float* weights = delta_.gates + int64_t(i) * layer_.hidden;
            const bool four = some.end - i >= 4;
            four ? dots<4>(normed, weights, layer_.hidden, to + i)
                 : dots<1>(normed, weights, layer_.hidden, to + i);
            i += four ? 4 : 1;
        }
    }

    void mix(Share heads, float* mixed) const {
        int ready = -1;
        for (int head = heads.first; head < heads.end; ++head) {
            const int key_head = shape_.key_head(head);
            const bool first_of_key = head == 0 || shape_.key_head(head - 1) != key_head;
            if (key_head != ready) queries_and_keys(key_head);
            ready = key_head;
            values(head);
            if (first_of_key) leave_key_head(key_head);
            leave_value_head(head);
            scan(head);
            finish(head, mixed);
        }
    }

    // What the next chunk sees of this one, once all heads are mixed.
    void keep_tail(Share channels) const {
        copy_tail(at_.tail, rows_, channels.first, channels.end - channels.first);
    }

    bool last() const { return last_; }
    int channels() const { return channels_; }

private:
    // Inputs of the conv; those before the chunk's first row have numbers below 0.
    const float* raw(int row) const {
        if (row >= 0) return at_.rows + int64_t(row) * stride();
        const float* tail = first_ ? at_.tail : step_.tail;
        return tail + int64_t(delta_.taps - 1 + row) * channels_;
    }

    int keys_at(int key_head) const { return (delta_.key_heads + key_head) * delta_.key_dim; }
    int values_at(int head) const {
        return 2 * delta_.key_heads * delta_.key_dim + head * delta_.value_dim;
    }

    // SiLU of the conv of `count` channels, to [rows, count].
    void convolve(int channel, int count, float* to) const {
        const float* weights = delta_.conv + channel;
        for (int row = 0; row < rows_; ++row, to += count) {
            const float* inputs[kMostTaps];
            for (int tap = 0; tap < delta_.taps; ++tap)
                inputs[tap] = raw(row - (delta_.taps - 1) + tap) + channel;
            for (int c = 0; c < count; c += kLanes) {
                Floats sum = load(inputs[0] + c) * load(weights + c);
                for (int tap = 1; tap < delta_.taps; ++tap)
                    sum = fma(load(inputs[tap] + c), load(weights + int64_t(tap) * channels_ + c),
                              sum);
                if (delta_.conv_bias) sum = sum + load(delta_.conv_bias + channel + c);
                store(to + c, silu(sum));
            }
        }
    }

    void queries_and_keys(int key_head) const {
        const int dim = delta_.key_dim;
        const OwnDelta& own = at_.own;
        convolve(key_head * dim, dim, own.queries);
        convolve(keys_at(key_head), dim, own.keys);
        const float shorter = 1.0f / __builtin_sqrtf(float(dim));
        for (int row = 0; row < rows_; ++row) {
            float *query = own.queries + int64_t(row) * dim, *key = own.keys + int64_t(row) * dim;
            make_unit(query, dim, shorter);
            make_unit(key, dim, 1.0f);
            own.seen[row] = dot_product(key, query, dim);
        }
    }

    void values(int head) const {
        convolve(values_at(head), delta_.value_dim, at_.own.values);
        const Floats rate = exponential(splat(delta_.log_decay[head]));
        const Floats bias = splat(delta_.step_bias[head]);
        for (int row = 0; row < rows_; row += kLanes) {
            float betas[kLanes] = {}, alphas[kLanes] = {};
            for (int i = 0; i < least(rows_ - row, kLanes); ++i) {
                const float* gates = at_.gates + int64_t(row + i) * 2 * delta_.value_heads;
                betas[i] = gates[head];
                alphas[i] = gates[delta_.value_heads + head];
            }
            const Floats step = softplus(load(alphas) + bias);
            store(at_.own.decay + row, exponential(splat(0.0f) - step * rate));
            store(at_.own.beta + row, sigmoid(load(betas)));
        }
    }

    void leave_key_head(int key_head) const {
        const int dim = delta_.key_dim;
        leave_raw(key_head * dim, dim);
        leave_raw(keys_at(key_head), dim);
        if (!step_.kept.keys) return;
        for (int64_t row = 0; row < rows_; ++row)
            std::memcpy(step_.kept.keys + ((first_ + row) * delta_.key_heads + key_head) * dim,
                        at_.own.keys + row * dim, dim * sizeof(float));
    }

    void leave_value_head(int head) const {
        const int dim = delta_.value_dim;
        const FrDeltaRows& kept = step_.kept;
        leave_raw(values_at(head), dim);
        for (int64_t row = 0; row < rows_ && kept.keys; ++row) {
            const int64_t to = (first_ + row) * delta_.value_heads + head;
            std::memcpy(kept.values + to * dim, at_.own.values + row * dim, dim * sizeof(float));
            kept.decay[to] = at_.own.decay[row];
            kept.beta[to] = at_.own.beta[row];
        }
    }

    // Inputs of the conv, where they or the last of them are wanted.
    void leave_raw(int channel, int count) const {
        for (int64_t row = 0; row < rows_ && step_.kept.raw; ++row)
            std::memcpy(step_.kept.raw + (first_ + row) * channels_ + channel, raw(row) + channel,
                        count * sizeof(float));
        for (int i = 0; i < step_.split_count; ++i)
            if (within(step_.splits[i]))
                copy_tail(step_.split_tails[i], step_.splits[i] - first_, channel, count);
        if (last_ && step_.end_tail) copy_tail(step_.end_tail, rows_, channel, count);
    }

    bool within(int split) const { return split > first_ && split <= first_ + rows_; }

    void copy_tail(float* to, int end, int channel, int count) const {
        const int size = delta_.taps - 1;
        for (int i = 0; i < size; ++i)
            std::memcpy(to + int64_t(i) * channels_ + channel, raw(end - size + i) + channel,
                        count * sizeof(float));
    }

    // The state between two chunks.
    float* between() const { return step_.end_state ? step_.end_state : at_.state; }

    void scan(int head) const {
        for (int first = 0; first < delta_.value_dim; first += kStateRows)
            scan(head, first, least(delta_.value_dim - first, kStateRows));
    }

    void scan(int head, int first, int count) const {
        const int64_t at = shape_.at(head, first), size = int64_t(count) * delta_.key_dim;
        const OwnDelta& own = at_.own;
        const float* from = (first_ ? between() : step_.state) + at;
        if (!first_ && step_.pending_count) {
            float* to = step_.folded ? step_.folded + at : own.work;
            fold_rows(step_.pending, step_.pending_count, shape_, head, first, count, from, to,
                      own.work);
            from = to;
        }
        float* end = last_ && !step_.end_state ? nullptr : between() + at;
        int split = 0;
        for (int row = 0; row < rows_; ++row) {
            float* to = row == rows_ - 1 ? end : own.work;
            float* values = own.values + int64_t(row) * delta_.value_dim + first;
            const int64_t key = int64_t(row) * delta_.key_dim;
            const DeltaInput in{own.keys + key, own.queries + key, values,
                                own.decay[row], own.beta[row],     own.seen[row]};
            step_rows(in, from, to, count, delta_.key_dim, values);
            from = to;
            const int done = first_ + row + 1;
            while (split < step_.split_count && step_.splits[split] < done) ++split;
            if (split < step_.split_count && step_.splits[split] == done)
                std::memcpy(step_.split_states[split] + at, to, size * sizeof(float));
        }
    }

    // Norms what a head's steps answer, and multiplies it by SiLU of its output gates.
    void finish(int head, float* mixed) const {
        const int dim = delta_.value_dim;
        for (int64_t row = 0; row < rows_; ++row) {
            const float* gates = at_.rows + row * stride() + channels_ + head * dim;
            float* to = mixed + row * mixed_columns(layer_) + head * dim;
            norm(at_.own.values + row * dim, delta_.norm, dim, layer_.epsilon, to);
            for (int i = 0; i < dim; i += kLanes) store(to + i, load(to + i) * silu(load(gates + i)));
        }
    }

    const FrLayer& layer_;
    const FrDelta& delta_;
    const FrDeltaStep& step_;
    const DeltaMemory& at_;
    const DeltaShape shape_;
    const int channels_, first_, rows_;
    const bool last_;
};

}  // namespace
