// The C ABI: picks an instruction set, and has a team run its kernels.
#include <cstring>
#include <exception>
#include <new>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "scratch.h"
#include "table.h"

using forerun::Kernels;
using forerun::Team;

struct FrTeam {
    Team team;
    const Kernels& kernels;
    FrTeam(int threads, bool steady, const Kernels& chosen)
        : team(threads, steady), kernels(chosen) {}
};

namespace {

// The best first.
struct Candidate {
    const Kernels* kernels;
    bool usable;
};

#if defined(__aarch64__)
bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & 1ul << 20;  // HWCAP_ASIMDDP
#else
    return true;  // every Apple processor of this architecture
#endif
}
#endif

const Kernels* choose(const char* isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const Candidate candidates[] = {
        {&forerun::avx512_kernels,
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni")},
        {&forerun::avx2_kernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                     __builtin_cpu_supports("f16c")},
        {&forerun::scalar_kernels, true},
    };
#elif defined(__aarch64__)
    const Candidate candidates[] = {
        {&forerun::neon_kernels, has_dot_products()},
        {&forerun::scalar_kernels, true},
    };
#else
    const Candidate candidates[] = {{&forerun::scalar_kernels, true}};
#endif
    for (const Candidate& candidate : candidates) {
        const bool wanted = !isa || std::strcmp(isa, candidate.kernels->isa) == 0;
        if (wanted && candidate.usable) return candidate.kernels;
    }
    return nullptr;
}

// Runs work(team, member) in every member.
template <class Work>
void in_every_member(FrTeam* team, const Work& work) {
    struct Context {
        FrTeam* team;
        const Work& work;
    } context{team, work};
    team->team.run(
        [](void* erased, int member) {
            const Context& here = *static_cast<Context*>(erased);
            here.work(here.team->team, member);
        },
        &context);
}

bool supported(const FrLinear& w) { return fr_linear_supported(w.columns, w.group, w.bits); }

bool supported(const FrExperts& experts) {
    for (const FrLinear* part : {experts.gate, experts.up, experts.down})
        for (int expert = 0; expert < experts.count; ++expert)
            if (!supported(part[expert])) return false;
    for (int part = 0; part < 3 && experts.shared; ++part)
        if (!supported(experts.shared[part])) return false;
    return experts.top > 0 && experts.top <= experts.count;
}

bool is_state(int key_heads, int value_heads, int key_dim, int value_dim) {
    return key_heads > 0 && value_heads > 0 && value_heads % key_heads == 0 && key_dim > 0 &&
           key_dim % 16 == 0 && key_dim <= kMostKeyDim && value_dim > 0 && value_dim % 16 == 0;
}

bool mixes(const FrLayer& layer) {
    const FrDelta& delta = *layer.delta;
    int rows = 0;
    for (const FrLinear& part : delta.inputs) {
        if (part.rows && !supported(part)) return false;
        rows += part.rows;
    }
    return is_state(delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim) &&
           delta.taps >= 2 && delta.taps <= kMostTaps &&
           rows == channels_of(delta) + mixed_columns(layer) &&
           layer.output.columns == mixed_columns(layer) && !layer.token_norm &&
           !layer.normed_residual;
}

bool attends(const FrLayer& layer) {
    const int turned = rotary_dim(layer), gates = layer.output_gate.rows;
    return layer.head_dim % 32 == 0 && layer.heads % layer.kv_heads == 0 && turned > 0 &&
           turned % 2 == 0 && turned <= layer.head_dim &&
           (!gates || gates == layer.heads * layer.head_dim);
}

}  // namespace

#if !defined(FR_SOURCES)
#define FR_SOURCES "unknown"
#endif

extern "C" {

const char* fr_sources() { return FR_SOURCES; }

FrTeam* fr_team_new(int32_t threads, const char* isa, int32_t steady) {
    const Kernels* kernels = choose(isa);
    if (!kernels) return nullptr;
    try {
        return new FrTeam(threads, steady, *kernels);
    } catch (const std::exception&) {  // no more threads or memory
        return nullptr;
    }
}

void fr_team_free(FrTeam* team) { delete team; }

const char* fr_team_isa(const FrTeam* team) { return team->kernels.isa; }

int32_t fr_team_threads(const FrTeam* team) { return team->team.size(); }

int32_t fr_linear_supported(int32_t columns, int32_t group, int32_t bits) {
    return (bits == 4 || bits == 8) && group > 0 && group % kSub == 0 && columns > 0 &&
           columns % group == 0;
}

int64_t fr_linear_scratch(int32_t columns, int32_t width) {
    Memory memory(nullptr);
    take_quantised(memory, columns, least(width, kChunk));
    return memory.bytes();
}

void fr_linear(FrTeam* team, const FrLinear* parts, int32_t count, const float* x, int32_t width,
               float* y, void* scratch) {
    const forerun::LinearCall call{parts, count, x, width, y, scratch};
    in_every_member(team, [&](Team& all, int member) { team->kernels.linear(all, member, call); });
}

int32_t fr_layer_supported(const FrLayer* layer) {
    const FrLinear* weights[] = {&layer->qkv[0],      &layer->qkv[1], &layer->qkv[2],
                                 &layer->output_gate, &layer->output, &layer->gate,
                                 &layer->up,          &layer->down};
    for (const FrLinear* w : weights)
        if (w->rows && !fr_linear_supported(w->columns, w->group, w->bits)) return 0;
    if (layer->experts && !supported(*layer->experts)) return 0;
    return layer->delta ? mixes(*layer) : attends(*layer);
}

int64_t fr_layer_scratch(const FrLayer* layer, int32_t width, int32_t threads) {
    Memory memory(nullptr);
    divide(memory, *layer, width, 0, threads);
    return memory.bytes();
}

void fr_layers(FrTeam* team, const FrLayer* layers, const FrStep* steps, int32_t count,
               void* scratch) {
    // One job for all spares a start and an end for each. Layers of many rows take long enough to
    // have a job each, between which a team that has lost its cores is noticed.
    const int together = count && steps->rows->width > kNarrow ? 1 : count;
    for (int first = 0; first < count; first += together) {
        const forerun::LayersCall call{layers + first, steps + first, together, scratch};
        in_every_member(
            team, [&](Team& all, int member) { team->kernels.layers(all, member, call); });
    }
}

int32_t fr_delta_fold_supported(const FrDeltaFold* fold) {
    return is_state(fold->key_heads, fold->value_heads, fold->key_dim, fold->value_dim) &&
           fold->count > 0;
}

int64_t fr_delta_fold_scratch(const FrDeltaFold* fold, int32_t threads) {
    Memory memory(nullptr);
    divide_fold(memory, fold->key_dim, 0, threads);
    return memory.bytes();
}

void fr_delta_fold(FrTeam* team, const FrDeltaFold* fold, void* scratch) {
    const forerun::FoldCall call{fold, scratch};
    in_every_member(team, [&](Team& all, int member) { team->kernels.fold(all, member, call); });
}

int64_t fr_head_scratch(int32_t columns, int32_t width, int32_t top, int32_t threads) {
    Memory memory(nullptr);
    divide_head(memory, columns, width, top, 0, threads);
    return memory.bytes();
}

void fr_head(FrTeam* team, const FrHead* head, const float* x, int32_t width, float* logits,
             int32_t top, int32_t* ids, float* values, void* scratch) {
    const forerun::HeadCall call{head, x, width, logits, top, ids, values, scratch};
    in_every_member(team, [&](Team& all, int member) { team->kernels.head(all, member, call); });
}
}
