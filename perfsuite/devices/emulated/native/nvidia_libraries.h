/* The types of cuBLAS, cuBLASLt, cuDNN, CUPTI and NVML that we use; as in nvidia_runtime.h, a test compiles against
 * NVIDIA's. Included before emulator.h. */
#pragma once
#define EMULATED_LIBRARIES
#include "nvidia_runtime.h"

#ifdef EMULATED_CHECK
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>
#include <cupti.h>
#else

/* ---- cuBLAS ---- */
typedef enum { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_SUPPORTED = 15 } cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0 } cublasOperation_t;
typedef enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 } cublasPointerMode_t;
typedef enum { CUBLAS_DEFAULT_MATH = 0, CUBLAS_TF32_TENSOR_OP_MATH = 3 } cublasMath_t;
typedef enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_64F = 70, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 } cublasComputeType_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1 } cublasGemmAlgo_t;
typedef enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_C_64F = 5, CUDA_R_16BF = 14 } cudaDataType;
typedef enum cudaDataType_t cudaDataType_t;
typedef struct cublasContext *cublasHandle_t;
typedef struct { float x, y; } cuComplex;
typedef struct { double x, y; } cuDoubleComplex;

/* ---- cuBLASLt ---- */
typedef struct { uint64_t data[8]; } cublasLtMatmulDescOpaque_t, cublasLtMatrixLayoutOpaque_t, cublasLtMatmulPreferenceOpaque_t, cublasLtMatmulAlgo_t;
typedef cublasLtMatmulDescOpaque_t *cublasLtMatmulDesc_t;
typedef cublasLtMatrixLayoutOpaque_t *cublasLtMatrixLayout_t;
typedef cublasLtMatmulPreferenceOpaque_t *cublasLtMatmulPreference_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef enum { CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, CUBLASLT_MATMUL_DESC_TRANSA = 3 } cublasLtMatmulDescAttributes_t;
typedef enum { CUBLASLT_MATRIX_LAYOUT_TYPE, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5 } cublasLtMatrixLayoutAttribute_t;
typedef enum { CUBLASLT_MATMUL_PREF_SEARCH_MODE } cublasLtMatmulPreferenceAttributes_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

/* ---- cuDNN ---- */
typedef enum { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_BAD_PARAM = 2000, CUDNN_STATUS_NOT_SUPPORTED = 3000 } cudnnStatus_t;
typedef enum { CUDNN_DATA_FLOAT = 0, CUDNN_DATA_DOUBLE = 1, CUDNN_DATA_HALF = 2, CUDNN_DATA_BFLOAT16 = 9 } cudnnDataType_t;
typedef enum { CUDNN_DEFAULT_MATH } cudnnMathType_t;
typedef enum { CUDNN_TENSOR_NCHW } cudnnTensorFormat_t;
typedef enum { CUDNN_BATCHNORM_PER_ACTIVATION } cudnnBatchNormMode_t;
typedef enum { CUDNN_BATCHNORM_OPS_BN } cudnnBatchNormOps_t;
typedef enum { CUDNN_RNN_RELU, CUDNN_RNN_TANH, CUDNN_LSTM, CUDNN_GRU } cudnnRNNMode_t;
typedef enum { CUDNN_RNN_NO_BIAS } cudnnRNNBiasMode_t;
typedef enum { CUDNN_UNIDIRECTIONAL, CUDNN_BIDIRECTIONAL } cudnnDirectionMode_t;
typedef enum { CUDNN_LINEAR_INPUT } cudnnRNNInputMode_t;
typedef enum { CUDNN_RNN_ALGO_STANDARD } cudnnRNNAlgo_t;
typedef enum { CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED } cudnnRNNDataLayout_t;
typedef enum { CUDNN_FWD_MODE_INFERENCE, CUDNN_FWD_MODE_TRAINING } cudnnForwardMode_t;
typedef enum { CUDNN_WGRAD_MODE_ADD } cudnnWgradMode_t;
typedef enum libraryPropertyType_t { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;
typedef enum {
    CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR = 10, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR = 11,
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR = 12
} cudnnBackendDescriptorType_t;
typedef enum {
    CUDNN_ATTR_ENGINEHEUR_RESULTS = 202, CUDNN_ATTR_ENGINECFG_ENGINE = 300, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE = 303,
    CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG = 401, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE = 402,
    CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT = 802, CUDNN_ATTR_ENGINE_GLOBAL_INDEX = 1301
} cudnnBackendAttributeName_t;
typedef enum {
    CUDNN_TYPE_HANDLE = 0, CUDNN_TYPE_DATA_TYPE = 1, CUDNN_TYPE_BOOLEAN = 2, CUDNN_TYPE_INT64 = 3, CUDNN_TYPE_FLOAT = 4, CUDNN_TYPE_DOUBLE = 5,
    CUDNN_TYPE_VOID_PTR = 6, CUDNN_TYPE_BACKEND_DESCRIPTOR = 15, CUDNN_TYPE_CHAR = 24, CUDNN_TYPE_FRACTION = 26
} cudnnBackendAttributeType_t;
typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;
typedef struct cudnnActivationStruct *cudnnActivationDescriptor_t;
typedef struct cudnnDropoutStruct *cudnnDropoutDescriptor_t;
typedef struct cudnnRNNStruct *cudnnRNNDescriptor_t;
typedef struct cudnnRNNDataStruct *cudnnRNNDataDescriptor_t;
typedef void *cudnnBackendDescriptor_t;

/* ---- CUPTI ---- */
typedef enum {
    CUPTI_SUCCESS = 0, CUPTI_ERROR_INVALID_PARAMETER = 1, CUPTI_ERROR_MAX_LIMIT_REACHED = 12, CUPTI_ERROR_QUEUE_EMPTY = 18, CUPTI_ERROR_NOT_SUPPORTED = 27
} CUptiResult;
typedef enum {
    CUPTI_ACTIVITY_KIND_INVALID = 0, CUPTI_ACTIVITY_KIND_MEMCPY = 1, CUPTI_ACTIVITY_KIND_MEMSET = 2, CUPTI_ACTIVITY_KIND_KERNEL = 3,
    CUPTI_ACTIVITY_KIND_DRIVER = 4, CUPTI_ACTIVITY_KIND_RUNTIME = 5, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION = 39
} CUpti_ActivityKind;
typedef enum { CUPTI_EXTERNAL_CORRELATION_KIND_INVALID } CUpti_ExternalCorrelationKind;
typedef enum { CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE } CUpti_ActivityAttribute;
typedef enum { CUPTI_CB_DOMAIN_INVALID } CUpti_CallbackDomain;
typedef enum { CUPTI_CHANNEL_TYPE_INVALID } CUpti_ChannelType;
typedef uint32_t CUpti_CallbackId;
typedef struct CUpti_Subscriber_st *CUpti_SubscriberHandle;
typedef void (*CUpti_CallbackFunc)(void *, CUpti_CallbackDomain, CUpti_CallbackId, const void *);
typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t **, size_t *, size_t *);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(CUcontext, uint32_t, uint8_t *, size_t, size_t);
typedef uint64_t (*CUpti_TimestampCallbackFunc)(void);
enum { CUPTI_ACTIVITY_MEMCPY_KIND_HTOD = 1, CUPTI_ACTIVITY_MEMCPY_KIND_DTOH = 2, CUPTI_ACTIVITY_MEMCPY_KIND_DTOD = 8, CUPTI_ACTIVITY_MEMCPY_KIND_HTOH = 9 };
enum { CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE = 1, CUPTI_ACTIVITY_MEMORY_KIND_PINNED = 2, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE = 3 };
#define EMU_RECORD struct __attribute__((packed, aligned(8)))
typedef EMU_RECORD { CUpti_ActivityKind kind; } CUpti_Activity;
typedef EMU_RECORD {
    CUpti_ActivityKind kind;
    uint8_t cacheConfig, sharedMemoryConfig;
    uint16_t registersPerThread;
    uint32_t partitionedGlobalCacheRequested, partitionedGlobalCacheExecuted;
    uint64_t start, end, completed;
    uint32_t deviceId, contextId, streamId;
    int32_t gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory;
    uint32_t localMemoryPerThread, localMemoryTotal, correlationId;
    int64_t gridId;
    const char *name;
    void *reserved0;
    uint64_t queued, submitted;
    uint8_t launchType, isSharedMemoryCarveoutRequested, sharedMemoryCarveoutRequested, padding;
    uint32_t sharedMemoryExecuted;
    uint64_t graphNodeId;
    uint32_t shmemLimitConfig, graphId;
    void *pAccessPolicyWindow;
    uint32_t channelID;
    CUpti_ChannelType channelType;
    uint32_t clusterX, clusterY, clusterZ, clusterSchedulingPolicy;
    uint64_t localMemoryTotal_v2;
    uint32_t maxPotentialClusterSize, maxActiveClusters;
    uint8_t isDeviceLaunched, padding3[7];
} CUpti_ActivityKernel10;
typedef EMU_RECORD {
    CUpti_ActivityKind kind;
    uint8_t copyKind, srcKind, dstKind, flags;
    uint64_t bytes, start, end;
    uint32_t deviceId, contextId, streamId, correlationId, runtimeCorrelationId, pad;
    void *reserved0;
    uint64_t graphNodeId;
    uint32_t graphId, channelID;
    CUpti_ChannelType channelType;
    uint8_t isDeviceLaunched, pad2[3];
    uint64_t copyCount;
} CUpti_ActivityMemcpy6;
typedef EMU_RECORD {
    CUpti_ActivityKind kind;
    uint32_t value;
    uint64_t bytes, start, end;
    uint32_t deviceId, contextId, streamId, correlationId;
    uint16_t flags, memoryKind;
    uint32_t pad;
    void *reserved0;
    uint64_t graphNodeId;
    uint32_t graphId, channelID;
    CUpti_ChannelType channelType;
    uint8_t isDeviceLaunched, pad2[3];
} CUpti_ActivityMemset4;
typedef EMU_RECORD {
    CUpti_ActivityKind kind;
    CUpti_CallbackId cbid;
    uint64_t start, end;
    uint32_t processId, threadId, correlationId, returnValue;
} CUpti_ActivityAPI;
typedef EMU_RECORD {
    CUpti_ActivityKind kind;
    CUpti_ExternalCorrelationKind externalKind;
    uint64_t externalId;
    uint32_t correlationId, reserved;
} CUpti_ActivityExternalCorrelation;
#endif
