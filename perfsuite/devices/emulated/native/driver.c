/* The driver's API: what torch calls beside the runtime, and all that Triton launches through. */
#include "runtime.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern cudaError_t cudaDeviceGetAttribute(int *, enum cudaDeviceAttr, int), cudaSetDevice(int), cudaDeviceSynchronize(void), cudaMemGetInfo(size_t *, size_t *);
extern cudaError_t cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, enum cudaMemcpyKind);
extern cudaError_t cudaMemcpyAsync(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t), cudaStreamSynchronize(cudaStream_t);
extern cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t), cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus *);
extern cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *, const void *, int, size_t, unsigned);

static int contexts[EMU_DEVICES]; /* a device's context is the address of its place here */
static CUcontext context_of(int device) { return (CUcontext)&contexts[device]; }
static CUresult as_driver(cudaError_t error) { return (CUresult)error; } /* both number errors alike */

CUresult cuInit(unsigned flags) { (void)flags; return emu_visible_count() ? CUDA_SUCCESS : (CUresult)cudaErrorNoDevice; }
CUresult cuDriverGetVersion(int *version) { *version = EMULATED_CUDA; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = emu_visible_count(); return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int number)
{
    *device = number;
    return number >= 0 && number < emu_visible_count() ? CUDA_SUCCESS : (CUresult)cudaErrorInvalidDevice;
}
CUresult cuDeviceGetName(char *into, int length, CUdevice device) { (void)device; snprintf(into, (size_t)length, "%s", emu_card()->name); return CUDA_SUCCESS; }
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { emu_uuid(emu_physical(device), (unsigned char *)uuid->bytes); return CUDA_SUCCESS; }
CUresult cuDeviceTotalMem_v2(size_t *size, CUdevice device) { (void)device; *size = emu_card()->memory_bytes; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    return as_driver(cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device));
}

/* ---- contexts ---- */
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active)
{
    (void)device;
    if (flags)
        *flags = 0;
    *is_active = 1;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = context_of(device); return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { (void)device; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = context_of(emu_current_device()); return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return context ? as_driver(cudaSetDevice((int)((int *)context - contexts))) : CUDA_SUCCESS; }
CUresult cuCtxPushCurrent_v2(CUcontext context) { return cuCtxSetCurrent(context); }
CUresult cuCtxPopCurrent_v2(CUcontext *context) { return cuCtxGetCurrent(context); }
CUresult cuCtxGetDevice(CUdevice *device) { *device = emu_current_device(); return CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) { return as_driver(cudaDeviceSynchronize()); }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { (void)limit; *value = 1024; return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { (void)limit, (void)value; return CUDA_SUCCESS; } /* nothing runs that could reach it */

extern const char *cudaGetErrorString(cudaError_t), *cudaGetErrorName(cudaError_t);
CUresult cuGetErrorString(CUresult error, const char **words) { *words = cudaGetErrorString((cudaError_t)error); return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char **name) { *name = cudaGetErrorName((cudaError_t)error); return CUDA_SUCCESS; }

/* ---- memory ---- */
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    int device;
    enum emu_place place = emu_place((const void *)address, &device);
    if (place == EMU_PAGEABLE)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = address; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = place == EMU_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = context_of(device); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = device; return CUDA_SUCCESS;
    default: return (CUresult)emu_refuse("cuPointerGetAttribute of another kind", CUDA_ERROR_NOT_SUPPORTED);
    }
}
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) { return as_driver(cudaMalloc((void **)address, size)); }
CUresult cuMemFree_v2(CUdeviceptr address) { return as_driver(cudaFree((void *)address)); }
CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) { return as_driver(cudaMemGetInfo(unused, total)); }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) { return as_driver(cudaMemcpy((void *)to, from, size, cudaMemcpyHostToDevice)); }
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) { return as_driver(cudaMemcpy(to, (const void *)from, size, cudaMemcpyDeviceToHost)); }
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return as_driver(cudaMemcpyAsync(to, (const void *)from, size, cudaMemcpyDeviceToHost, stream));
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream) { return as_driver(cudaMemsetAsync((void *)address, value, count, stream)); }
CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream stream) { return as_driver(cudaMemsetAsync((void *)address, (int)value, 4 * count, stream)); }
CUresult cuStreamSynchronize(CUstream stream) { return as_driver(cudaStreamSynchronize(stream)); }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { return as_driver(cudaStreamIsCapturing(stream, (enum cudaStreamCaptureStatus *)status)); }

/* ---- modules: a function is its name; the code in them is not looked at ---- */
CUresult cuModuleLoadData(CUmodule *module, const void *image) { (void)image; *module = (CUmodule)calloc(1, 8); return CUDA_SUCCESS; }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}
CUresult cuModuleLoad(CUmodule *module, const char *path) { return cuModuleLoadData(module, path); }
CUresult cuModuleUnload(CUmodule module) { free(module); return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    (void)module;
    *function = (CUfunction)emu_function(EMU_KERNEL, name);
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    (void)function;
    *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { (void)function, (void)attribute, (void)value; return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { (void)function, (void)config; return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int size, size_t shared)
{
    return as_driver(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, size, shared, 0));
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
    (void)function, (void)config;
    *clusters = 1;
    return CUDA_SUCCESS;
}

/* ---- launching ---- */
static CUresult launch(CUfunction function, struct emu_shape shape, CUstream stream, uint32_t callback)
{
    for (int i = 0; i < 3; i++)
        if (!shape.grid[i] || !shape.block[i])
            return CUDA_ERROR_INVALID_VALUE;
    struct emu_call call = emu_enter(callback);
    struct emu_work work = {.function = (struct emu_function *)function, .shape = shape};
    emu_enqueue(emu_stream(stream), &work, call.correlation);
    emu_leave(call);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void **arguments, void **extra)
{
    (void)shared, (void)arguments, (void)extra;
    return launch(function, (struct emu_shape){{gx, gy, gz}, {bx, by, bz}}, stream, EMU_CB_DRIVER_LAUNCH);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
    const CUlaunchConfig *c = config;
    (void)arguments, (void)extra;
    return launch(function, (struct emu_shape){{c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ}}, c->hStream, EMU_CB_DRIVER_LAUNCH_EX);
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                   CUstream stream, void **arguments)
{
    (void)shared, (void)arguments;
    return launch(function, (struct emu_shape){{gx, gy, gz}, {bx, by, bz}}, stream, EMU_CB_DRIVER_LAUNCH);
}

/* ---- finding functions by name: the newest version that is there, or one that refuses ---- */
/* Which name was looked up is not known when the function is called: each name gets one of these for itself. */
static const char *absent_names[64];
#define ABSENT(a, b) \
    static int absent_##a##b(void) { return emu_refuse(absent_names[8 * a + b], CUDA_ERROR_NOT_SUPPORTED); }
#define ADDRESS(a, b) absent_##a##b,
#define EIGHT(do, a) do(a, 0) do(a, 1) do(a, 2) do(a, 3) do(a, 4) do(a, 5) do(a, 6) do(a, 7)
#define ALL(do) EIGHT(do, 0) EIGHT(do, 1) EIGHT(do, 2) EIGHT(do, 3) EIGHT(do, 4) EIGHT(do, 5) EIGHT(do, 6) EIGHT(do, 7)
ALL(ABSENT)
static int (*const absent[])(void) = {ALL(ADDRESS)};
static int absent_too(void) { return emu_refuse("one more function of the driver", CUDA_ERROR_NOT_SUPPORTED); }

static void *absent_function(const char *name)
{
    size_t at = 0, room = sizeof absent / sizeof *absent;
    emu_lock();
    while (at < room && absent_names[at] && strcmp(absent_names[at], name))
        at++;
    if (at < room && !absent_names[at])
        absent_names[at] = strdup(name);
    emu_unlock();
    return at < room ? (void *)absent[at] : (void *)absent_too;
}

void *emu_driver_function(const char *name)
{
    char versioned[160];
    for (int version = 3; version >= 2; version--) {
        snprintf(versioned, sizeof versioned, "%s_v%d", name, version);
        void *found = dlsym(RTLD_DEFAULT, versioned);
        if (found)
            return found;
    }
    void *found = dlsym(RTLD_DEFAULT, name);
    return found ? found : absent_function(name);
}
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *result)
{
    (void)version, (void)flags;
    *function = emu_driver_function(name);
    if (result)
        *result = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}
