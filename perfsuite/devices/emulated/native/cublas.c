/* cuBLAS: handles that remember their stream, and every product one library kernel. */
#include "nvidia_libraries.h"
#include "emulator.h"
#include <stdlib.h>
#include <string.h>

struct handle { cudaStream_t stream; cublasPointerMode_t pointers; cublasMath_t math; };
static struct handle *of(cublasHandle_t given) { return (struct handle *)given; }

cublasStatus_t cublasCreate_v2(cublasHandle_t *made) { *made = calloc(1, sizeof(struct handle)); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasDestroy_v2(cublasHandle_t h) { free(h); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream) { of(h)->stream = stream; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetStream_v2(cublasHandle_t h, cudaStream_t *stream) { *stream = of(h)->stream; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void *memory, size_t size) { (void)h, (void)memory, (void)size; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t math) { of(h)->math = math; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t *math) { *math = of(h)->math; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t mode) { of(h)->pointers = mode; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t *mode) { *mode = of(h)->pointers; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetVersion_v2(cublasHandle_t h, int *version) { (void)h; *version = EMULATED_CUDA * 10; return CUBLAS_STATUS_SUCCESS; }

static cublasStatus_t product(cublasHandle_t h, const char *name, enum emu_precision precision, int m, int n, int k, int batch)
{
    if (precision == EMU_FLOAT32 && of(h)->math == CUBLAS_TF32_TENSOR_OP_MATH)
        precision = EMU_TF32;
    emu_library(of(h)->stream, name, 2.0 * m * n * k * batch, precision, (uint32_t)m, (uint32_t)n, (uint32_t)k, (uint32_t)batch);
    return CUBLAS_STATUS_SUCCESS;
}

static enum emu_precision precision_of(cudaDataType type, cublasComputeType_t compute)
{
    if (type == CUDA_R_16F || type == CUDA_R_16BF)
        return EMU_HALF;
    if (type == CUDA_R_64F || type == CUDA_C_64F)
        return EMU_FLOAT64;
    return compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? EMU_TF32 : EMU_FLOAT32;
}

#define UNUSED(...) do { const void *unused[] = {__VA_ARGS__}; (void)unused; } while (0)
#define PRODUCTS(T, X, PRECISION) \
    cublasStatus_t cublas##X##gemm_v2(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T *alpha, \
                                      const T *a, int lda, const T *b, int ldb, const T *beta, T *c, int ldc) \
    { \
        UNUSED(alpha, a, b, beta, c); \
        (void)ta, (void)tb, (void)lda, (void)ldb, (void)ldc; \
        return product(h, "cublas" #X "gemm", PRECISION, m, n, k, 1); \
    } \
    cublasStatus_t cublas##X##gemmStridedBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, \
                                                 const T *alpha, const T *a, int lda, long long sa, const T *b, int ldb, long long sb, \
                                                 const T *beta, T *c, int ldc, long long sc, int batch) \
    { \
        UNUSED(alpha, a, b, beta, c); \
        (void)ta, (void)tb, (void)lda, (void)ldb, (void)ldc, (void)sa, (void)sb, (void)sc; \
        return product(h, "cublas" #X "gemmStridedBatched", PRECISION, m, n, k, batch); \
    } \
    cublasStatus_t cublas##X##gemmBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T *alpha, \
                                          const T *const a[], int lda, const T *const b[], int ldb, const T *beta, T *const c[], int ldc, int batch) \
    { \
        UNUSED(alpha, a, b, beta, c); \
        (void)ta, (void)tb, (void)lda, (void)ldb, (void)ldc; \
        return product(h, "cublas" #X "gemmBatched", PRECISION, m, n, k, batch); \
    } \
    cublasStatus_t cublas##X##gemv_v2(cublasHandle_t h, cublasOperation_t ta, int m, int n, const T *alpha, const T *a, int lda, const T *x, \
                                      int incx, const T *beta, T *y, int incy) \
    { \
        UNUSED(alpha, a, x, beta, y); \
        (void)ta, (void)lda, (void)incx, (void)incy; \
        return product(h, "cublas" #X "gemv", PRECISION, m, n, 1, 1); \
    }
PRODUCTS(float, S, EMU_FLOAT32)
PRODUCTS(double, D, EMU_FLOAT64)
PRODUCTS(cuComplex, C, EMU_FLOAT32)
PRODUCTS(cuDoubleComplex, Z, EMU_FLOAT64)

cublasStatus_t cublasSgemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float *alpha, const void *a,
                             cudaDataType a_type, int lda, const void *b, cudaDataType b_type, int ldb, const float *beta, void *c,
                             cudaDataType c_type, int ldc)
{
    UNUSED(alpha, a, b, beta, c);
    (void)ta, (void)tb, (void)lda, (void)b_type, (void)ldb, (void)c_type, (void)ldc;
    return product(h, "cublasSgemmEx", precision_of(a_type, CUBLAS_COMPUTE_32F), m, n, k, 1);
}
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType a_type, int lda, const void *b, cudaDataType b_type, int ldb, const void *beta, void *c,
                            cudaDataType c_type, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    UNUSED(alpha, a, b, beta, c);
    (void)ta, (void)tb, (void)lda, (void)b_type, (void)ldb, (void)c_type, (void)ldc, (void)algorithm;
    return product(h, "cublasGemmEx", precision_of(a_type, compute), m, n, k, 1);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void *alpha,
                                          const void *a, cudaDataType a_type, int lda, long long sa, const void *b, cudaDataType b_type, int ldb,
                                          long long sb, const void *beta, void *c, cudaDataType c_type, int ldc, long long sc, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    UNUSED(alpha, a, b, beta, c);
    (void)ta, (void)tb, (void)lda, (void)sa, (void)b_type, (void)ldb, (void)sb, (void)c_type, (void)ldc, (void)sc, (void)algorithm;
    return product(h, "cublasGemmStridedBatchedEx", precision_of(a_type, compute), m, n, k, batch);
}

/* A dot product is two kernels in every version of cuBLAS that was looked at: partial sums, and their sum. */
#define DOT(T, N, PRECISION) \
    cublasStatus_t cublas##N##_v2(cublasHandle_t h, int n, const T *x, int incx, const T *y, int incy, T *result) \
    { \
        UNUSED(x, y); \
        (void)incx, (void)incy; \
        if (of(h)->pointers == CUBLAS_POINTER_MODE_HOST) \
            memset(result, 0, sizeof *result); \
        product(h, "cublas" #N, PRECISION, n, 1, 1, 1); \
        return product(h, "cublas" #N " (sum)", PRECISION, n, 1, 1, 1); \
    }
DOT(float, Sdot, EMU_FLOAT32)
DOT(double, Ddot, EMU_FLOAT64)
DOT(cuComplex, Cdotu, EMU_FLOAT32)
DOT(cuComplex, Cdotc, EMU_FLOAT32)
DOT(cuDoubleComplex, Zdotu, EMU_FLOAT64)
DOT(cuDoubleComplex, Zdotc, EMU_FLOAT64)
cublasStatus_t cublasDotEx(cublasHandle_t h, int n, const void *x, cudaDataType x_type, int incx, const void *y, cudaDataType y_type, int incy,
                           void *result, cudaDataType result_type, cudaDataType compute)
{
    UNUSED(x, y, result);
    (void)incx, (void)y_type, (void)incy, (void)result_type, (void)compute;
    product(h, "cublasDotEx", precision_of(x_type, CUBLAS_COMPUTE_32F), n, 1, 1, 1);
    return product(h, "cublasDotEx (sum)", precision_of(x_type, CUBLAS_COMPUTE_32F), n, 1, 1, 1);
}
