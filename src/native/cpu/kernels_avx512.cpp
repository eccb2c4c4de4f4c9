// AVX-512; compiled with -mavx512f -mavx512vl -mavx512bw -mavx512dq -mfma. MKL keeps to AVX2 on processors not made by
// Intel, where these loops are twice as fast as its products.
#if defined(__x86_64__)
#define R1_NAME "avx512"
#define R1_TABLE kernels_avx512
#define R1_WIDTH 16
#define R1_VECTORS 4
#include "kernels.inc"
#endif
