// One decoder layer: phases that every member runs side by side, with barriers between them.
#pragma once
#include "attention.h"
#include "delta.h"
#include "experts.h"
#include "mlp.h"
#include "team.h"

namespace {

class LayerPass {
public:
    LayerPass(forerun::Team& team, int member, const FrLayer& layer, const FrStep& step,
              void* scratch)
        : team_(team),
          member_(member),
          members_(team.active()),
          layer_(layer),
          step_(step),
          pass_(*step.rows),
          columns_(mixed_columns(layer)),
          qkv_columns_((layer.heads + 2 * layer.kv_heads) * layer.head_dim) {
        Memory memory(scratch);
        at_ = divide(memory, layer, pass_.width, member, members_);
    }

    void run() {
        for (first_ = 0; first_ < pass_.width; first_ += kChunk) {
            rows_ = least(pass_.width - first_, kChunk);
            stream_ = pass_.stream + int64_t(first_) * layer_.hidden;
            if (layer_.delta)
                delta();
            else
                attention();
            if (layer_.experts)
                experts_pass(team_, member_, layer_, stream_, rows_, at_.experts);
            else
                mlp();
        }
    }

private:
    Share mine(int64_t items) const { return share(items, member_, members_); }

    // Runs make(row, to) for every row of the chunk: each member for itself where that costs less
    // than to wait for each other.
    template <class Make>
    Quantised prepare(const Quantised& own, const Quantised& shared, Make make) {
        const bool alone = rows_ <= kFewRows;
        const Quantised& to = alone ? own : shared;
        const Share rows = alone ? Share{0, rows_} : mine(rows_);
        for (int row = rows.first; row < rows.end; ++row) make(row, to);
        if (!alone) team_.barrier(member_);
        return to;
    }

    Quantised normed_stream(const float* weight) {
        return normed_stream(weight, [](int) {});
    }

    // Calls look(row) for each row that stands normed in `own.row`.
    template <class Look>
    Quantised normed_stream(const float* weight, Look look) {
        const int hidden = layer_.hidden;
        const Quantised own = narrowed(at_.own.stream, hidden), all = narrowed(at_.stream, hidden);
        return prepare(own, all, [&](int row, const Quantised& to) {
            norm(stream_ + int64_t(row) * hidden, weight, hidden, layer_.epsilon, at_.own.row);
            quantise(at_.own.row, to, row);
            look(row);
        });
    }

    Quantised attention_input() {
        if (!layer_.token_norm) return normed_stream(layer_.input_norm);
        const int hidden = layer_.hidden;
        const float* tokens = pass_.tokens + int64_t(first_) * hidden;
        return prepare(at_.own.stream, at_.stream, [&](int row, const Quantised& to) {
            const int64_t at = int64_t(row) * hidden;
            norm(tokens + at, layer_.token_norm, hidden, layer_.epsilon, at_.own.row);
            norm(stream_ + at, layer_.input_norm, hidden, layer_.epsilon, at_.own.row + hidden);
            quantise(at_.own.row, to, row);
        });
    }

    // Nobody reads the stream here: attention has its input, and its output is yet to come.
    void norm_residual() {
        if (!layer_.normed_residual) return;
        const Share rows = mine(rows_);
        for (int row = rows.first; row < rows.end; ++row) {
            float* x = stream_ + int64_t(row) * layer_.hidden;
            norm(x, layer_.input_norm, layer_.hidden, layer_.epsilon, x);
        }
    }

    // Adds a product to the stream, through a norm of its own where the family has one.
    void add_branch(const FrLinear& w, const Quantised& x, const float* weight) {
        if (!weight) {
            linear<true>(&w, 1, x, rows_, stream_, layer_.hidden, member_, members_);
            team_.barrier(member_);
            return;
        }
        linear<false>(&w, 1, x, rows_, at_.branch, layer_.hidden, member_, members_);
        team_.barrier(member_);
        const Share rows = mine(rows_);
        for (int row = rows.first; row < rows.end; ++row) {
            const float* from = at_.branch + int64_t(row) * layer_.hidden;
            float* to = stream_ + int64_t(row) * layer_.hidden;
            norm(from, weight, layer_.hidden, layer_.epsilon, at_.own.row);
            for (int i = 0; i < layer_.hidden; i += kLanes)
                store(to + i, load(to + i) + load(at_.own.row + i));
        }
        team_.barrier(member_);
    }

    void attention() {
        const Quantised x = attention_input();
        linear<false>(layer_.qkv, 3, x, rows_, at_.attention.qkv, qkv_columns_, member_, members_);
        linear<false>(&layer_.output_gate, 1, x, rows_, at_.attention.gates, columns_, member_, members_);
        team_.barrier(member_);
        place();
        norm_residual();
        prefetch(layer_.output, member_, members_);
        team_.barrier(member_);
        attend();
        team_.barrier(member_);
        const Quantised attended =
            prepare(at_.own.mixed, at_.mixed, [&](int row, const Quantised& to) {
                quantise(gated(row), to, row);
            });
        add_branch(layer_.output, attended, layer_.attended_norm);
    }

    // What attention made of a row, times the sigmoid of its gates where the family has them.
    const float* gated(int row) {
        const float* attended = at_.mixed_rows + int64_t(row) * columns_;
        if (!layer_.output_gate.rows) return attended;
        const float* gates = at_.attention.gates + int64_t(row) * columns_;
        for (int i = 0; i < columns_; i += kLanes)
            store(at_.own.row + i, load(attended + i) * sigmoid(load(gates + i)));
        return at_.own.row;
    }

    void delta() {
        const DeltaChunk chunk(layer_, *step_.delta, at_.delta, first_, rows_, pass_.width);
        const int count = 2 * layer_.delta->value_heads;
        const Share gates = rows_ <= kFewRows ? mine(count) : Share{0, count};
        const Quantised x = normed_stream(
            layer_.input_norm, [&](int row) { chunk.gates(at_.own.row, row, gates); });
        linear<false>(layer_.delta->inputs, 2, x, rows_, at_.delta.rows, chunk.stride(), member_,
                      members_);
        team_.barrier(member_);
        chunk.mix(mine(layer_.delta->value_heads), at_.mixed_rows);
        prefetch(layer_.output, member_, members_);
        team_.barrier(member_);
        if (!chunk.last()) chunk.keep_tail(mine(chunk.channels()));
        const Quantised mixed = prepare(at_.own.mixed, at_.mixed, [&](int row, const Quantised& to) {
            quantise(at_.mixed_rows + int64_t(row) * columns_, to, row);
        });
        add_branch(layer_.output, mixed, layer_.attended_norm);
    }

    void mlp() {
        const Quantised x = normed_stream(layer_.mlp_norm);
        gate_and_up({layer_.gate, layer_.up, layer_.activation}, mine(blocks_of(layer_.gate)), x,
                    rows_, [&](int block, int row) {
                        return at_.gated + int64_t(row) * layer_.inner + block * kLanes;
                    });
        prefetch(layer_.down, member_, members_);
        team_.barrier(member_);
        const Quantised inner =
            prepare(at_.own.inner, at_.inner, [&](int row, const Quantised& to) {
                quantise(at_.gated + int64_t(row) * layer_.inner, to, row);
            });
        add_branch(layer_.down, inner, layer_.output_norm);
    }

    // Norms and turns queries and keys, and writes keys and values where the cache wants them.
    void place() {
        const int heads = layer_.heads, turned = heads + layer_.kv_heads;
        const int all = turned + layer_.kv_heads, dim = layer_.head_dim;
        const Share items = mine(int64_t(rows_) * all);
        for (int item = items.first; item < items.end; ++item) {
            const int row = item / all, head = item % all;
            float* x = at_.attention.qkv + int64_t(row) * qkv_columns_ + head * dim;
            if (head < turned) {
                const float* weight = head < heads ? layer_.query_norm : layer_.key_norm;
                if (weight) norm(x, weight, dim, layer_.epsilon, x);
                rotate(x, row, head < heads ? layer_.attention_scale : 1.0f);
            }
            const int64_t at = int64_t(step_.first_row + first_ + row) * dim;
            if (head >= turned)
                write(step_.values, (head - turned) * step_.value_stride + at, x);
            else if (head >= heads)
                write(step_.keys, (head - heads) * step_.key_stride + at, x);
        }
    }

    void rotate(float* x, int row, float factor) const {
        const int turned = rotary_dim(layer_), half = turned / 2;
        const float* cosines = pass_.cosines + int64_t(first_ + row) * half;
        const float* sines = pass_.sines + int64_t(first_ + row) * half;
        const Floats scale = splat(factor);
        for (int i = 0; i < half; i += kLanes) {
            const int count = least(half - i, kLanes);
            const Floats a = load_some(x + i, count), b = load_some(x + half + i, count);
            const Floats c = load_some(cosines + i, count), s = load_some(sines + i, count);
            store_some(x + i, scale * fma(a, c, splat(0.0f) - b * s), count);
            store_some(x + half + i, scale * fma(b, c, a * s), count);
        }
        for (int i = turned; i < layer_.head_dim; ++i) x[i] *= factor;
    }

    void write(void* base, int64_t at, const float* x) const {
        const int dim = layer_.head_dim;
        if (!step_.bfloat16) {
            std::memcpy(static_cast<float*>(base) + at, x, dim * sizeof(float));
            return;
        }
        uint16_t* to = static_cast<uint16_t*>(base) + at;
        for (int d = 0; d < dim; ++d) to[d] = to_bfloat16(x[d]);
    }

    void attend() {
        const int end = step_.first_position + step_.live - pass_.width + first_ + rows_;
        const History history{layer_, step_, at_.attention.qkv, qkv_columns_, end - rows_};
        const int tile = item_rows(layer_), tiles = divided_up(rows_, tile);
        const int blocks = (end - 1) / kBlock + 1 - first_block(history, 0);
        const bool enough = layer_.kv_heads * tiles >= 4 * members_;
        if (rows_ <= kNarrow && blocks > 1 && !enough && members_ > 1)
            return attend_by_position(history, blocks);
        // later rows see more, so that neighbours go to different members
        for (int item = member_; item < layer_.kv_heads * tiles; item += members_) {
            const int row = item / layer_.kv_heads * tile;
            const Item part{item % layer_.kv_heads, row, least(rows_ - row, tile)};
            attend_item(history, part, at_.attention.own, at_.mixed_rows);
        }
    }

    // The same operations in the same order, but members share the blocks of one history.
    void attend_by_position(const History& history, int blocks) {
        const int group = history.group(), queries = rows_ * group, dim = layer_.head_dim;
        const int start = first_block(history, 0), kv_heads = layer_.kv_heads;
        const Share folded = mine(rows_ * layer_.heads);
        forget(at_.attention.running.from(folded.first), folded.end - folded.first);
        for (int round = 0; round < blocks; round += kRound) {
            const int here = least(blocks - round, kRound);
            const Share items = mine(here * kv_heads);
            for (int item = items.first; item < items.end; ++item) {
                const Item part{item % kv_heads, 0, rows_};
                const int position = (start + round + item / kv_heads) * kBlock;
                see_block(history, part, position, at_.attention.own,
                          at_.attention.partial.from(int64_t(item) * queries));
            }
            team_.barrier(member_);
            for (int q = folded.first; q < folded.end; ++q)
                for (int block = 0; block < here; ++block) {
                    const int64_t part = int64_t(block) * rows_ * layer_.heads + q;
                    fold(at_.attention.running.from(q), at_.attention.partial.from(part));
                }
            if (round + kRound < blocks) team_.barrier(member_);
        }
        for (int q = folded.first; q < folded.end; ++q) {
            const int kv_head = q / queries, row = q % queries / group;
            const int64_t head = kv_head * group + q % group;
            finish(at_.attention.running.from(q), at_.mixed_rows + (row * layer_.heads + head) * dim);
        }
    }

    forerun::Team& team_;
    const int member_, members_;
    const FrLayer& layer_;
    const FrStep& step_;
    const FrPass& pass_;
    const int columns_, qkv_columns_;
    LayerMemory at_;
    int first_ = 0, rows_ = 0;  // the chunk
    float* stream_ = nullptr;
};

}  // namespace
