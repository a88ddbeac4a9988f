/* Devices, their properties, and errors. */
#include "runtime.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static __thread int current;
static __thread cudaError_t last_error = cudaSuccess;

int emu_current_device(void) { return current; }

cudaError_t emu_fail(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

/* ---- errors ---- */
cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }

static const struct { cudaError_t error; const char *name, *words; } errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported (perfsuite's emulated GPU does not have it)"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
};
const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return errors[i].name;
    return "cudaErrorUnknown";
}
const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return errors[i].words;
    return "unknown error";
}

/* ---- devices ---- */
cudaError_t cudaGetDeviceCount(int *count)
{
    *count = emu_visible_count();
    return *count ? cudaSuccess : emu_fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= emu_visible_count())
        return emu_fail(cudaErrorInvalidDevice);
    current = device;
    emu_board_join(emu_physical(device)); /* choosing a device makes a context on it */
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { *version = EMULATED_CUDA; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = EMULATED_CUDA; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { (void)device, (void)peer; *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { (void)peer, (void)flags; return emu_fail(cudaErrorNotSupported); }
cudaError_t cudaDeviceGetPCIBusId(char *into, int length, int device)
{
    snprintf(into, (size_t)length, "0000:%02x:00.0", emu_physical(device) + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return cudaSuccess;
}

static cudaError_t properties(struct cudaDeviceProp *p, int device)
{
    const struct emu_card *card = emu_card();
    if (device < 0 || device >= emu_visible_count())
        return emu_fail(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", card->name);
    emu_uuid(emu_physical(device), (unsigned char *)p->uuid.bytes);
    p->totalGlobalMem = card->memory_bytes;
    p->sharedMemPerBlock = 49152;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = 2147483647;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->major = card->major;
    p->minor = card->minor;
    p->textureAlignment = p->surfaceAlignment = 512;
    p->texturePitchAlignment = 32;
    p->multiProcessorCount = card->sms;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = p->ECCEnabled = 1;
    p->pciBusID = emu_physical(device) + 1;
    p->asyncEngineCount = 2;
    p->memoryBusWidth = card->memory_bus_bits;
    p->l2CacheSize = (int)card->l2_bytes;
    p->maxThreadsPerMultiProcessor = card->threads_per_sm;
    p->globalL1CacheSupported = p->localL1CacheSupported = 1;
    p->sharedMemPerMultiprocessor = card->shared_per_sm;
    p->managedMemory = p->computePreemptionSupported = p->canUseHostPointerForRegisteredMem = p->cooperativeLaunch = 1;
    p->sharedMemPerBlockOptin = card->shared_per_block;
    p->maxBlocksPerMultiProcessor = card->blocks_per_sm;
    p->reservedSharedMemPerBlock = card->major >= 8 ? 1024 : 0;
    p->hostRegisterSupported = p->memoryPoolsSupported = 1;
    p->clusterLaunch = card->major >= 9;
#if EMULATED_CUDA < 13000
    p->clockRate = card->sm_clock_mhz * 1000;
    p->memoryClockRate = card->memory_clock_mhz * 1000;
#endif
    return cudaSuccess;
}
#if EMULATED_CUDA >= 13000
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) { return properties(p, device); }
#else
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int device) { return properties(p, device); }
#endif

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    struct cudaDeviceProp p;
    cudaError_t error = properties(&p, device);
    if (error != cudaSuccess)
        return error;
    switch ((int)attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrTotalConstantMemory: *value = 65536; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxPitch: *value = 2147483647; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrClockRate: *value = emu_card()->sm_clock_mhz * 1000; break;
    case cudaDevAttrMemoryClockRate: *value = emu_card()->memory_clock_mhz * 1000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrTextureAlignment: *value = 512; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = (int)p.reservedSharedMemPerBlock; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrAsyncEngineCount: *value = 2; break;
    case cudaDevAttrPciBusId: *value = p.pciBusID; break;
    case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing: case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported: case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrEccEnabled: *value = 1; break;
    default: *value = 0; /* a feature this card is not said to have */
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (emu_any_capture())
        return emu_fail(cudaErrorStreamCaptureUnsupported);
    struct emu_call call = emu_enter(EMU_CB_DEVICE_SYNCHRONIZE);
    emu_wait_device(current);
    emu_leave(call);
    emu_note(EMU_SYNC, "cudaDeviceSynchronize", 0);
    return cudaSuccess;
}
cudaError_t cudaDeviceReset(void) { emu_wait_device(current); return cudaSuccess; }
cudaError_t cudaGetDeviceFlags(unsigned *flags) { *flags = 0; return cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned flags) { (void)flags; return cudaSuccess; } /* how a host waits is ours alone */
cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) { (void)limit; *value = 1024; return cudaSuccess; }
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

/* ---- the driver's functions, which torch finds through the runtime ---- */
static cudaError_t entry_point(const char *symbol, void **function, enum cudaDriverEntryPointQueryResult *found)
{
    extern void *emu_driver_function(const char *name);
    *function = emu_driver_function(symbol);
    if (found)
        *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
    (void)flags;
    return entry_point(symbol, function, found);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)version, (void)flags;
    return entry_point(symbol, function, found);
}
