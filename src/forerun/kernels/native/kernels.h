// The kernels over whatever lanes were included before this file: once for each instruction set.
//
// Everything is in a namespace without a name, and uses no function templates of the standard
// library: a copy made for one instruction set must not serve a machine that lacks it.
#pragma once
#include "head.h"
#include "layer.h"
#include "table.h"

namespace {

void run_linear(forerun::Team& team, int member, const forerun::LinearCall& call) {
    const int columns = call.parts->columns, members = team.active();
    int64_t stride = 0;
    for (int part = 0; part < call.count; ++part) stride += call.parts[part].rows;
    Memory memory(call.scratch);
    const Quantised x = take_quantised(memory, columns, least(call.width, kChunk));
    for (int first = 0; first < call.width; first += kChunk) {
        const int rows = least(call.width - first, kChunk);
        const Share mine = share(rows, member, members);
        for (int row = mine.first; row < mine.end; ++row)
            quantise(call.x + int64_t(first + row) * columns, x, row);
        team.barrier(member);
        linear<false>(call.parts, call.count, x, rows, call.y + first * stride, stride, member,
                      members);
        team.barrier(member);
    }
}

// Each layer ends with a barrier, as each of its phases does.
void run_layers(forerun::Team& team, int member, const forerun::LayersCall& call) {
    for (int at = 0; at < call.count; ++at)
        LayerPass(team, member, call.layers[at], call.steps[at], call.scratch).run();
}

void run_fold(forerun::Team& team, int member, const forerun::FoldCall& call) {
    fold_pass(*call.fold, member, team.active(), call.scratch);
}

void run_head(forerun::Team& team, int member, const forerun::HeadCall& call) {
    const HeadJob job{*call.head, call.x, call.width, call.logits, call.ids, call.values, call.top};
    head_pass(team, member, job, call.scratch);
}

}  // namespace
