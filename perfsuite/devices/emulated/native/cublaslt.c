/* cuBLASLt: layouts remember their sizes, one algorithm is always found, and a product is one library kernel. */
#include "nvidia_libraries.h"
#include "emulator.h"
#include <stdlib.h>
#include <string.h>

struct layout { uint64_t rows, columns; int64_t batch; cudaDataType type; };
struct description { cublasComputeType_t compute; int32_t is_transposed; };
static void *space(void) { return calloc(1, sizeof(cublasLtMatmulDescOpaque_t)); }
_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits into what a caller may keep on its stack");

size_t cublasLtGetVersion(void) { return EMULATED_CUDA * 10; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute, cudaDataType_t scale)
{
    (void)scale;
    *made = space();
    ((struct description *)*made)->compute = compute;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t given) { free(given); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t given, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t size)
{
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA && size == sizeof(int32_t))
        memcpy(&((struct description *)given)->is_transposed, value, size);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld)
{
    (void)ld;
    *made = space();
    *(struct layout *)*made = (struct layout){rows, columns, 1, type};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t given) { free(given); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t given, cublasLtMatrixLayoutAttribute_t attribute, const void *value, size_t size)
{
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && size == sizeof(int32_t))
        ((struct layout *)given)->batch = *(const int32_t *)value;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made) { *made = space(); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t given) { free(given); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t given, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    (void)given, (void)attribute, (void)value, (void)size; /* there is one algorithm, and it needs no workspace */
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t given, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    (void)h, (void)given, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *found = wanted > 0;
    if (wanted > 0) {
        memset(results, 0, sizeof *results);
        results->state = CUBLAS_STATUS_SUCCESS;
        results->wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t given, const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, const void *c, cublasLtMatrixLayout_t c_layout,
                              void *d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t size,
                              cudaStream_t stream)
{
    const struct layout *left = (const struct layout *)a_layout, *result = (const struct layout *)d_layout;
    const struct description *product = (const struct description *)given;
    uint64_t k = product->is_transposed ? left->rows : left->columns;
    enum emu_precision precision = left->type == CUDA_R_64F ? EMU_FLOAT64 : left->type != CUDA_R_32F ? EMU_HALF
        : product->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? EMU_TF32 : EMU_FLOAT32;
    (void)h, (void)alpha, (void)a, (void)b, (void)b_layout, (void)beta, (void)c, (void)c_layout, (void)d, (void)algorithm, (void)workspace, (void)size;
    emu_library(stream, "cublasLtMatmul", 2.0 * (double)result->rows * (double)result->columns * (double)k * (double)result->batch, precision,
                (uint32_t)result->rows, (uint32_t)result->columns, (uint32_t)k, (uint32_t)result->batch);
    return CUBLAS_STATUS_SUCCESS;
}
