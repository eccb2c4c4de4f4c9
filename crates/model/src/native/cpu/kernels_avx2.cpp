// AVX2 and FMA; compiled with -mavx2 -mfma.
#if defined(__x86_64__)
#define R1_NAME "avx2"
#define R1_TABLE kernels_avx2
#define R1_WIDTH 8
#define R1_VECTORS 2
#include "kernels.inc"
#endif
