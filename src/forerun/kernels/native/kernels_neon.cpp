#include "vec_neon.h"
// after the lanes that it computes with
#include "kernels.h"

namespace forerun {

const Kernels neon_kernels = {"neon", run_linear, run_layers, run_fold, run_head};

}  // namespace forerun
