// A mixture of experts: which of them a row takes, and what they make of it.
//
// Pairs of a row and an expert are sorted by expert, so that weights are read once for all rows
// that take them. What a pair makes depends on nothing but its row, and a row's pairs are added in
// the order of their experts, the shared one last: neither the rows beside it nor the order of work
// changes a bit (WID-2, LIN-9).
#pragma once
#include "mlp.h"
#include "team.h"

namespace {

constexpr int kScored = 4;  // experts whose products with a row are made together

inline float sigmoid(float x) {
    float lanes[kLanes];
    store(lanes, exponential(splat(-x)));
    return x != x ? x : 1.0f / (1.0f + lanes[0]);
}

// The `top` largest, largest first; of equals the first. A NaN is larger than nothing.
inline void largest_of(const float* numbers, int count, int top, int32_t* chosen) {
    int held = 0;
    for (int i = 0; i < count; ++i) {
        if (held == top && !(numbers[i] > numbers[chosen[top - 1]])) continue;
        int at = held < top ? held++ : top - 1;
        for (; at > 0 && numbers[i] > numbers[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
        chosen[at] = i;
    }
}

inline void copy_row(const Quantised& from, int row, const Quantised& to, int to_row) {
    const int8_t* codes = from.codes_of(row);
    const float* sums = from.sums_of(row);
    int8_t* to_codes = to.codes_of(to_row);
    float* to_sums = to.sums_of(to_row);
    for (int64_t sub = 0; sub < from.subs(); ++sub) {
        std::memcpy(to_codes + sub * kTile * kSub * 2, codes + sub * kTile * kSub * 2, kSub * 2);
        to_sums[sub * kTile] = sums[sub * kTile];
    }
    to.scales[to_row] = from.scales[row];
}

inline void add(float* to, const float* x, int size) {
    for (int i = 0; i < size; i += kLanes) store(to + i, load(to + i) + load(x + i));
}

class ExpertPass {
public:
    ExpertPass(forerun::Team& team, int member, const FrLayer& layer, float* stream, int rows,
               const ExpertMemory& memory)
        : team_(team),
          member_(member),
          members_(team.active()),
          layer_(layer),
          experts_(*layer.experts),
          hidden_(layer.hidden),
          stream_(stream),
          rows_(rows),
          routed_(rows * experts_.top),
          pairs_(rows * taken(experts_)),
          at_(memory) {}

    void run() {
        // few rows are prepared by every member for itself
        const bool alone = rows_ <= kFewRows;
        const RoutedRows& x = alone ? at_.own.rows : at_.rows;
        const Share rows = alone ? Share{0, rows_} : mine(rows_);
        norm_rows(x, rows);
        if (!alone) team_.barrier(member_);
        score(x.normed);
        team_.barrier(member_);
        for (int row = rows.first; row < rows.end; ++row) choose(x, row);
        if (!alone) team_.barrier(member_);
        sort(x);
        each_gate_and_up(x.stream);
        prefetch(*mlp_of(at_.own.runs[0].expert).down, member_, members_);
        team_.barrier(member_);
        quantise_inner();
        team_.barrier(member_);
        add_down();
        team_.barrier(member_);
    }

private:
    struct Mlp {
        const FrLinear *gate, *up, *down;
    };

    Share mine(int64_t items) const { return share(items, member_, members_); }

    Mlp mlp_of(int expert) const {
        if (expert == experts_.count)
            return {experts_.shared, experts_.shared + 1, experts_.shared + 2};
        return {experts_.gate + expert, experts_.up + expert, experts_.down + expert};
    }

    void norm_rows(const RoutedRows& x, Share rows) const {
        for (int row = rows.first; row < rows.end; ++row) {
            float* normed = x.normed + int64_t(row) * hidden_;
            norm(stream_ + int64_t(row) * hidden_, layer_.mlp_norm, hidden_, layer_.epsilon,
                 normed);
            quantise(normed, x.stream, row);
        }
    }

    // The router's products, and behind them that of the shared expert's gate.
    void score(const float* normed) const {
        const int stride = logit_columns(experts_), count = experts_.count;
        const Share tiles = mine(divided_up(count, kScored));
        const int end = least(tiles.end * kScored, count);
        for (int first = tiles.first * kScored; first < end;) {
            const bool some = end - first >= kScored;
            const float* weights = experts_.router + int64_t(first) * hidden_;
            for (int row = 0; row < rows_; ++row) {
                const float* x = normed + int64_t(row) * hidden_;
                float* to = at_.logits + int64_t(row) * stride + first;
                some ? dots<kScored>(x, weights, hidden_, to) : dots<1>(x, weights, hidden_, to);
            }
            first += some ? kScored : 1;
        }
        if (!experts_.shared_gate) return;
        const Share rows = mine(rows_);
        for (int row = rows.first; row < rows.end; ++row)
            dots<1>(normed + int64_t(row) * hidden_, experts_.shared_gate, hidden_,
                    at_.logits + int64_t(row) * stride + count);
    }

    void choose(const RoutedRows& x, int row) const {
        const int count = experts_.count, top = experts_.top;
        const float* logits = at_.logits + int64_t(row) * logit_columns(experts_);
        int32_t* chosen = x.experts + int64_t(row) * taken(experts_);
        float* weights = x.weights + int64_t(row) * taken(experts_);
        largest_of(logits, count, top, chosen);
        const float total = soften(logits);
        float sum = 0.0f;
        for (int i = 0; i < top; ++i) {
            weights[i] = at_.own.exponentials[chosen[i]] / total;
            sum += weights[i];
        }
        if (experts_.renormalised)
            for (int i = 0; i < top; ++i) weights[i] /= sum;
        if (!experts_.shared) return;
        chosen[top] = count;
        weights[top] = experts_.shared_gate ? sigmoid(logits[count]) : 1.0f;
    }

    // Exponentials of a row's logits relative to the largest, and their sum: NaN where a logit is.
    float soften(const float* logits) const {
        const int count = experts_.count, padded = divided_up(count, kLanes) * kLanes;
        float* likely = at_.own.exponentials;
        bool numbers = true;  // the exponential of NaN is 0
        for (int i = 0; i < count; ++i) {
            likely[i] = logits[i];
            numbers &= logits[i] == logits[i];
        }
        for (int i = count; i < padded; ++i) likely[i] = -kInfinity;
        Floats most = splat(-kInfinity), total = splat(0.0f);
        for (int i = 0; i < padded; i += kLanes) most = larger(load(likely + i), most);
        const Floats largest = splat(lane_max(most));
        for (int i = 0; i < padded; i += kLanes) {
            const Floats x = exponential(load(likely + i) - largest);
            store(likely + i, x);
            total = total + x;
        }
        return numbers ? lane_sum(total) : __builtin_nanf("");
    }

    // Every member for itself: slots of pairs, those of one expert side by side.
    void sort(const RoutedRows& x) {
        const OwnExperts& own = at_.own;
        const int kinds = experts_.count + 1, each = taken(experts_);
        std::memset(own.ends, 0, kinds * sizeof(int32_t));
        for (int pair = 0; pair < pairs_; ++pair) ++own.ends[x.experts[pair]];
        for (int kind = 0, next = 0; kind < kinds; ++kind) {
            const int here = own.ends[kind];
            own.ends[kind] = next;
            next += here;
        }
        for (int pair = 0; pair < pairs_; ++pair) {
            const int slot = own.ends[x.experts[pair]]++;
            own.slot_rows[slot] = pair / each;
            own.slot_weights[slot] = x.weights[pair];
        }
        run_count_ = 0;
        for (int kind = 0, slot = 0; kind < kinds; ++kind)
            while (slot < own.ends[kind]) {
                const int count = least(own.ends[kind] - slot, kGathered);
                own.runs[run_count_++] = {kind, slot, count};
                slot += count;
            }
    }

    // Rows side by side, as a product reads them.
    template <class RowOf>
    Quantised gathered(const Quantised& from, int count, RowOf row_of) const {
        const Quantised tiles = narrowed(at_.own.tiles, from.columns);
        for (int i = 0; i < count; ++i) copy_row(from, row_of(i), tiles, i);
        return tiles;
    }

    float* gated(int slot) const {
        const int routed = experts_.gate->rows;
        if (slot < routed_) return at_.gated + int64_t(slot) * routed;
        return at_.shared_gated + int64_t(slot - routed_) * experts_.shared->rows;
    }

    void each_gate_and_up(const Quantised& stream) const {
        for (int i = 0; i < run_count_; ++i) {
            const Run run = at_.own.runs[i];
            const Mlp mlp = mlp_of(run.expert);
            // what cannot be divided evenly falls to one member after the other
            const Share blocks = share(blocks_of(*mlp.gate), (member_ + i) % members_, members_);
            if (blocks.first == blocks.end) continue;
            const Quantised x = gathered(
                stream, run.count, [&](int at) { return at_.own.slot_rows[run.first + at]; });
            gate_and_up({*mlp.gate, *mlp.up, layer_.activation}, blocks, x, run.count,
                        [&](int block, int at) {
                            return gated(run.first + at) + block * kLanes;
                        });
        }
    }

    void quantise_inner() const {
        const Share slots = mine(pairs_);
        for (int slot = slots.first; slot < slots.end; ++slot) {
            const bool shared = slot >= routed_;
            quantise(gated(slot), shared ? at_.shared_inner : at_.inner,
                     shared ? slot - routed_ : slot);
        }
    }

    // Each member sums its columns of all rows.
    void add_down() const {
        const Share blocks = mine(blocks_of(*experts_.down));
        const int first = blocks.first * kLanes, size = blocks.end * kLanes - first;
        for (int64_t row = 0; row < rows_; ++row)
            std::memset(at_.sums + row * hidden_ + first, 0, size * sizeof(float));
        for (int i = 0; i < run_count_; ++i) {
            const Run run = at_.own.runs[i];
            const bool shared = run.expert == experts_.count;
            const int base = run.first - (shared ? routed_ : 0);
            const Quantised x = gathered(shared ? at_.shared_inner : at_.inner, run.count,
                                         [&](int at) { return base + at; });
            add_down(*mlp_of(run.expert).down, run, blocks, x);
        }
        if (!layer_.output_norm) {
            for (int64_t row = 0; row < rows_; ++row)
                add(stream_ + row * hidden_ + first, at_.sums + row * hidden_ + first, size);
            return;
        }
        team_.barrier(member_);
        const Share rows = mine(rows_);
        for (int64_t row = rows.first; row < rows.end; ++row) {
            float* sums = at_.sums + row * hidden_;
            norm(sums, layer_.output_norm, hidden_, layer_.epsilon, sums);
            add(stream_ + row * hidden_, sums, hidden_);
        }
    }

    void add_down(const FrLinear& w, const Run& run, Share blocks, const Quantised& x) const {
        const OwnExperts& own = at_.own;
        each_tile(w, blocks, x, run.count, [&](int block, int at, int count, Floats* made) {
            for (int t = 0; t < count; ++t) {
                const int slot = run.first + at + t;
                float* to = at_.sums + int64_t(own.slot_rows[slot]) * hidden_ + block * kLanes;
                store(to, fma(made[t], splat(own.slot_weights[slot]), load(to)));
            }
        });
    }

    forerun::Team& team_;
    const int member_, members_;
    const FrLayer& layer_;
    const FrExperts& experts_;
    const int hidden_;
    float* const stream_;
    const int rows_, routed_, pairs_;  // pairs with the router's choice stand before the others
    const ExpertMemory& at_;
    int run_count_ = 0;
};

// Adds to the stream [rows, hidden] what the experts of each row make of it, normed before and,
// where the family has a norm for it, after.
inline void experts_pass(forerun::Team& team, int member, const FrLayer& layer, float* stream,
                         int rows, const ExpertMemory& memory) {
    ExpertPass(team, member, layer, stream, rows, memory).run();
}

}  // namespace
