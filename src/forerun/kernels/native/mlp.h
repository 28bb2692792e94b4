// The first half of a gated MLP: activated gates times ups.
#pragma once
#include "linear.h"

namespace {

// Few rows wait for weights, and those of long blocks come faster one after the other than in turns:
// of int4 weights with 2048 columns one row takes 0.85 of the time, but 64 rows 1.05 of it, and one
// row 1.03 where there are 576 columns.
constexpr int64_t kLongBlock = 8192;  // bytes

struct GateAndUp {
    const FrLinear &gate, &up;
    int activation;
    Floats active(Floats x) const { return activation ? gelu_tanh(x) : silu(x); }
    bool in_turns(int rows) const { return rows > kNarrow || block_bytes(gate) < kLongBlock; }
};

// A member's share of the blocks; place(block, row) says where a row's sixteen outputs go.
template <class Place>
inline void gate_and_up(const GateAndUp& mlp, Share blocks, const Quantised& x, int rows,
                        Place place) {
    const bool in_turns = mlp.in_turns(rows);
    Floats up[kTokenTile];
    each_tile(mlp.gate, blocks, x, rows, [&](int block, int row, int tokens, Floats* gate) {
        if (in_turns) block_outputs(mlp.up, block, x, row, tokens, up);
        for (int t = 0; t < tokens; ++t) {
            const Floats active = mlp.active(gate[t]);
            store(place(block, row + t), in_turns ? active * up[t] : active);
        }
    });
    if (in_turns) return;
    each_tile(mlp.up, blocks, x, rows, [&](int block, int row, int tokens, Floats* made) {
        for (int t = 0; t < tokens; ++t) {
            float* to = place(block, row + t);
            store(to, load(to) * made[t]);
        }
    });
}

}  // namespace
