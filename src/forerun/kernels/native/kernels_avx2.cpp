#include "vec_avx2.h"
// after the lanes that it computes with
#include "kernels.h"

namespace forerun {

const Kernels avx2_kernels = {"avx2", run_linear, run_layers, run_fold, run_head};

}  // namespace forerun
