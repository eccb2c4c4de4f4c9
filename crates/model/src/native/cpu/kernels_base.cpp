// The baseline instructions of the target: SSE2 on x86-64, NEON on aarch64.
#define R1_NAME "base"
#define R1_TABLE kernels_base
#define R1_WIDTH 4
#if defined(__aarch64__)
#define R1_VECTORS 4
#else
#define R1_VECTORS 2
#endif
#include "kernels.inc"
