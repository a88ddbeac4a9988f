/* cuDNN: handles, descriptors of tensors, dropout, batch normalization. One library kernel a call. */
#include "cudnn_shared.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef EMULATED_CUDNN
#define EMULATED_CUDNN 90000 /* what torch was built with: major * 10000 + minor * 100 + patch */
#endif

struct handle { cudaStream_t stream; };
void emu_cudnn(cudnnHandle_t handle, const char *name, const uint32_t shape[4])
{
    emu_library(((struct handle *)handle)->stream, name, 0, EMU_FLOAT32, shape[0], shape[1], shape[2], shape[3]);
}

size_t cudnnGetVersion(void) { return EMULATED_CUDNN; }
size_t cudnnGetCudartVersion(void) { return EMULATED_CUDA; }
const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char *into, size_t length)
{
    if (length)
        snprintf(into, length, "perfsuite's emulated GPU does not have it");
}
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value)
{
    *value = type == MAJOR_VERSION ? EMULATED_CUDNN / 10000 : type == MINOR_VERSION ? EMULATED_CUDNN / 100 % 100 : EMULATED_CUDNN % 100;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t *made) { *made = calloc(1, sizeof(struct handle)); return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnDestroy(cudnnHandle_t h) { free(h); return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t stream) { ((struct handle *)h)->stream = stream; return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnGetStream(cudnnHandle_t h, cudaStream_t *stream) { *stream = ((struct handle *)h)->stream; return CUDNN_STATUS_SUCCESS; }

/* ---- descriptors ---- */
enum { RANK = 8 };
struct tensor { cudnnDataType_t type; cudnnTensorFormat_t format; int rank, sizes[RANK], strides[RANK]; };
#define DESCRIPTOR(NAME, TYPE, SIZE) \
    cudnnStatus_t cudnnCreate##NAME##Descriptor(TYPE *made) { *made = calloc(1, SIZE); return CUDNN_STATUS_SUCCESS; } \
    cudnnStatus_t cudnnDestroy##NAME##Descriptor(TYPE given) { free(given); return CUDNN_STATUS_SUCCESS; }
DESCRIPTOR(Tensor, cudnnTensorDescriptor_t, sizeof(struct tensor))
DESCRIPTOR(Filter, cudnnFilterDescriptor_t, sizeof(struct tensor))
DESCRIPTOR(Activation, cudnnActivationDescriptor_t, 64)
DESCRIPTOR(Dropout, cudnnDropoutDescriptor_t, 64)

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t given, cudnnDataType_t type, int rank, const int sizes[], const int strides[])
{
    struct tensor *one = (struct tensor *)given;
    if (rank > RANK)
        return CUDNN_STATUS_BAD_PARAM;
    one->type = type, one->rank = rank;
    memcpy(one->sizes, sizes, (size_t)rank * sizeof *sizes);
    memcpy(one->strides, strides, (size_t)rank * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t given, int wanted, cudnnDataType_t *type, int *rank, int sizes[], int strides[])
{
    const struct tensor *one = (const struct tensor *)given;
    *type = one->type, *rank = one->rank;
    for (int i = 0; i < one->rank && i < wanted; i++)
        sizes[i] = one->sizes[i], strides[i] = one->strides[i];
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t given, cudnnDataType_t type, cudnnTensorFormat_t format, int rank, const int sizes[])
{
    struct tensor *one = (struct tensor *)given;
    if (rank > RANK)
        return CUDNN_STATUS_BAD_PARAM;
    one->type = type, one->rank = rank, one->format = format;
    memcpy(one->sizes, sizes, (size_t)rank * sizeof *sizes);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t given, int wanted, cudnnDataType_t *type, cudnnTensorFormat_t *format, int *rank, int sizes[])
{
    const struct tensor *one = (const struct tensor *)given;
    *type = one->type, *format = one->format, *rank = one->rank;
    for (int i = 0; i < one->rank && i < wanted; i++)
        sizes[i] = one->sizes[i];
    return CUDNN_STATUS_SUCCESS;
}

/* ---- dropout ---- */
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t h, size_t *size)
{
    (void)h;
    *size = (size_t)emu_card()->sms * 24576; /* a generator's state for each thread a multiprocessor holds */
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t given, cudnnHandle_t h, float share, void *states, size_t size, unsigned long long seed)
{
    (void)given, (void)share, (void)states, (void)size, (void)seed;
    emu_cudnn(h, "cudnnSetDropoutDescriptor", (uint32_t[4]){1, 1, 1, 1});
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t given, cudnnHandle_t h, float share, void *states, size_t size, unsigned long long seed)
{
    (void)given, (void)h, (void)share, (void)states, (void)size, (void)seed;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- batch normalization: by the sizes of its input ---- */
static void normalize(cudnnHandle_t h, const char *name, const cudnnTensorDescriptor_t input)
{
    const struct tensor *x = (const struct tensor *)input;
    uint32_t rest = 1;
    for (int i = 2; i < x->rank; i++)
        rest *= (uint32_t)x->sizes[i];
    emu_cudnn(h, name, (uint32_t[4]){(uint32_t)x->sizes[0], (uint32_t)x->sizes[1], rest, 1});
}
cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t h, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const void *alpha, const void *beta, const cudnnTensorDescriptor_t x_desc,
    const void *x, const cudnnTensorDescriptor_t z_desc, const void *z, const cudnnTensorDescriptor_t y_desc, void *y,
    const cudnnTensorDescriptor_t bn_desc, const void *scale, const void *bias, double factor, void *mean, void *variance, double epsilon,
    void *saved_mean, void *saved_variance, cudnnActivationDescriptor_t activation, void *workspace, size_t workspace_size, void *reserve, size_t reserve_size)
{
    (void)mode, (void)ops, (void)alpha, (void)beta, (void)x, (void)z_desc, (void)z, (void)y_desc, (void)y, (void)bn_desc, (void)scale, (void)bias;
    (void)factor, (void)mean, (void)variance, (void)epsilon, (void)saved_mean, (void)saved_variance, (void)activation, (void)workspace;
    (void)workspace_size, (void)reserve, (void)reserve_size;
    normalize(h, "cudnnBatchNormalizationForwardTrainingEx", x_desc);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t h, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const void *alpha_data, const void *beta_data, const void *alpha, const void *beta,
    const cudnnTensorDescriptor_t x_desc, const void *x, const cudnnTensorDescriptor_t y_desc, const void *y, const cudnnTensorDescriptor_t dy_desc,
    const void *dy, const cudnnTensorDescriptor_t dz_desc, void *dz, const cudnnTensorDescriptor_t dx_desc, void *dx, const cudnnTensorDescriptor_t bn_desc,
    const void *scale, const void *bias, void *d_scale, void *d_bias, double epsilon, const void *mean, const void *variance,
    cudnnActivationDescriptor_t activation, void *workspace, size_t workspace_size, void *reserve, size_t reserve_size)
{
    (void)mode, (void)ops, (void)alpha_data, (void)beta_data, (void)alpha, (void)beta, (void)x, (void)y_desc, (void)y, (void)dy_desc, (void)dy;
    (void)dz_desc, (void)dz, (void)dx_desc, (void)dx, (void)bn_desc, (void)scale, (void)bias, (void)d_scale, (void)d_bias, (void)epsilon, (void)mean;
    (void)variance, (void)activation, (void)workspace, (void)workspace_size, (void)reserve, (void)reserve_size;
    normalize(h, "cudnnBatchNormalizationBackwardEx", x_desc);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t h, cudnnBatchNormMode_t mode, const void *alpha, const void *beta, const cudnnTensorDescriptor_t x_desc, const void *x,
    const cudnnTensorDescriptor_t y_desc, void *y, const cudnnTensorDescriptor_t bn_desc, const void *scale, const void *bias, const void *mean,
    const void *variance, double epsilon)
{
    (void)mode, (void)alpha, (void)beta, (void)x, (void)y_desc, (void)y, (void)bn_desc, (void)scale, (void)bias, (void)mean, (void)variance, (void)epsilon;
    normalize(h, "cudnnBatchNormalizationForwardInference", x_desc);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t h, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t z,
    const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t bn, const cudnnActivationDescriptor_t activation, size_t *size)
{
    (void)h, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)bn, (void)activation;
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t h, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnTensorDescriptor_t dy, const cudnnTensorDescriptor_t dz, const cudnnTensorDescriptor_t dx, const cudnnTensorDescriptor_t bn,
    const cudnnActivationDescriptor_t activation, size_t *size)
{
    (void)h, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)bn, (void)activation;
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t h, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t x, size_t *size)
{
    (void)h, (void)mode, (void)ops, (void)activation, (void)x;
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}
