// AVX-512; compiled with -mavx512f -mavx512vl -mavx512bw -mavx512dq -mfma. MKL uses AVX2 on
// non-Intel processors, where these loops are twice as fast.
#if defined(__x86_64__)
#define R1_NAME "avx512"
#define R1_TABLE kernels_avx512
#define R1_WIDTH 16
#define R1_VECTORS 4
#include "kernels.inc"
#endif
