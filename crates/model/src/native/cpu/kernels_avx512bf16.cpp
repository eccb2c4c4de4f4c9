// AVX-512 with products of bf16; compiled as kernels_avx512.cpp, with -mavx512bf16.
#if defined(__x86_64__)
#define R1_NAME "avx512bf16"
#define R1_TABLE kernels_avx512bf16
#define R1_WIDTH 16
#define R1_VECTORS 4
#define R1_BF16
#include "kernels.inc"
#endif
