// What each instruction set provides.
#pragma once
#include "abi.h"
#include "team.h"

namespace forerun {

struct LinearCall {
    const FrLinear* parts;
    int32_t count;
    const float* x;
    int32_t width;
    float* y;
    void* scratch;
};

struct LayersCall {
    const FrLayer* layers;
    const FrStep* steps;
    int32_t count;
    void* scratch;
};

struct FoldCall {
    const FrDeltaFold* fold;
    void* scratch;
};

struct HeadCall {
    const FrHead* head;
    const float* x;
    int32_t width;
    float* logits;
    int32_t top;
    int32_t* ids;
    float* values;
    void* scratch;
};

// Run in every member of the team.
struct Kernels {
    const char* isa;
    void (*linear)(Team& team, int member, const LinearCall& call);
    void (*layers)(Team& team, int member, const LayersCall& call);
    void (*fold)(Team& team, int member, const FoldCall& call);
    void (*head)(Team& team, int member, const HeadCall& call);
};

extern const Kernels avx512_kernels, avx2_kernels, neon_kernels, scalar_kernels;

}  // namespace forerun
