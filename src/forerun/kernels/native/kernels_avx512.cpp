#include "vec_avx512.h"
// after the lanes that it computes with
#include "kernels.h"

namespace forerun {

const Kernels avx512_kernels = {"avx512", run_linear, run_layers, run_fold, run_head};

}  // namespace forerun
