"""C++ kernels behind a C ABI: `sources` builds them, `library` calls them, `abi.h` is the ABI."""
