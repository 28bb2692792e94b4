#include "vec_scalar.h"
// after the lanes that it computes with
#include "kernels.h"

namespace forerun {

const Kernels scalar_kernels = {"scalar", run_linear, run_layers, run_fold, run_head};

}  // namespace forerun
