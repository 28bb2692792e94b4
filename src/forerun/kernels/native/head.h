// The output head: final norm, product with the vocabulary, and its largest numbers.
#pragma once
#include "linear.h"
#include "team.h"

namespace {

struct HeadJob {
    const FrHead& head;
    const float* x;
    int width;
    float* logits;
    int32_t* ids;
    float* values;
    int top;
};

inline void quantise_rows(const HeadJob& job, const HeadMemory& at, int first, Share rows) {
    const int columns = job.head.weight.columns;
    for (int row = rows.first; row < rows.end; ++row) {
        const float* x = job.x + int64_t(first + row) * columns;
        if (job.head.norm)
            norm(x, job.head.norm, columns, job.head.epsilon, at.row);
        else
            std::memcpy(at.row, x, columns * sizeof(float));
        quantise(at.row, at.x, row);
    }
}

inline void offer_block(const Best& best, Floats sums, int first_id, int count) {
    if (best.ids[best.top - 1] >= 0 && lane_max(sums) < best.values[best.top - 1]) return;
    float lanes[kLanes];
    store(lanes, sums);
    for (int i = 0; i < count; ++i) best.offer(lanes[i], first_id + i);
}

// The candidates of all members, of which each had a share of the vocabulary.
inline void merge(const HeadJob& job, const HeadMemory& at, int first, int row, int members) {
    const int64_t to = int64_t(first + row) * job.top;
    const Best all{job.ids + to, job.values + to, job.top};
    all.clear();
    for (int member = 0; member < members; ++member) {
        const Best part = at.of(member, row);
        for (int i = 0; i < job.top && part.ids[i] >= 0; ++i)
            all.offer(part.values[i], part.ids[i]);
    }
}

inline void head_pass(forerun::Team& team, int member, const HeadJob& job, void* scratch) {
    Memory memory(scratch);
    const FrLinear& w = job.head.weight;
    const int members = team.active();
    const HeadMemory at = divide_head(memory, w.columns, job.width, job.top, member, members);
    for (int first = 0; first < job.width; first += kChunk) {
        const int rows = least(job.width - first, kChunk);
        quantise_rows(job, at, first, share(rows, member, members));
        if (job.top)
            for (int row = 0; row < rows; ++row) at.of(member, row).clear();
        team.barrier(member);
        const Share blocks = share(blocks_of(w), member, members);
        each_tile(w, blocks, at.x, rows, [&](int block, int row, int tokens, Floats* sums) {
            const int id = block * kLanes, left = least(w.rows - id, kLanes);
            for (int t = 0; t < tokens; ++t) {
                if (job.logits)
                    store_some(job.logits + int64_t(first + row + t) * w.rows + id, sums[t], left);
                if (job.top) offer_block(at.of(member, row + t), sums[t], id, left);
            }
        });
        team.barrier(member);
        if (!job.top) continue;
        const Share merged = share(rows, member, members);
        for (int row = merged.first; row < merged.end; ++row) merge(job, at, first, row, members);
        team.barrier(member);
    }
}

}  // namespace
