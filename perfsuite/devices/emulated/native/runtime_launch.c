/* Kernels: libraries register theirs when they are loaded, and launch them by the address of a function of the host. */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

/* ---- what nvcc's code calls when a library is loaded ---- */
void **__cudaRegisterFatBinary(void *binary)
{
    void **handle = malloc(sizeof *handle);
    *handle = binary;
    return handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { free(handle); }
char __cudaInitModule(void **handle) { (void)handle; return 1; }
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *thread, uint3 *block,
                            dim3 *block_size, dim3 *grid_size, int *warp_size)
{
    (void)handle, (void)device, (void)limit, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp_size;
    emu_register(host, name);
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

/* The configuration of kernel<<<grid, block>>>() travels from the call to the launch through these two. */
enum { NESTED = 16 };
static __thread struct { dim3 grid, block; size_t shared; void *stream; } configurations[NESTED];
static __thread unsigned depth;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    configurations[depth % NESTED].grid = grid;
    configurations[depth % NESTED].block = block;
    configurations[depth % NESTED].shared = shared;
    configurations[depth++ % NESTED].stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    depth--;
    *grid = configurations[depth % NESTED].grid;
    *block = configurations[depth % NESTED].block;
    *shared = configurations[depth % NESTED].shared;
    *(void **)stream = configurations[depth % NESTED].stream;
    return cudaSuccess;
}

/* ---- launching ---- */
static cudaError_t launch(const void *host, dim3 grid, dim3 block, cudaStream_t stream, uint32_t callback)
{
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z || (uint64_t)block.x * block.y * block.z > 1024
        || grid.y > 65535 || grid.z > 65535)
        return emu_fail(cudaErrorInvalidConfiguration);
    struct emu_function *function = emu_registered(host);
    if (!function)
        return emu_fail(cudaErrorInvalidDeviceFunction);
    struct emu_call call = emu_enter(callback);
    struct emu_work work = {.function = function, .shape = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}}};
    emu_enqueue(emu_stream(stream), &work, call.correlation);
    emu_leave(call);
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)arguments, (void)shared;
    return launch(function, grid, block, stream, EMU_CB_LAUNCH);
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)arguments, (void)shared;
    return launch(function, grid, block, stream, EMU_CB_LAUNCH_COOPERATIVE);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    (void)arguments;
    return launch(function, config->gridDim, config->blockDim, config->stream, EMU_CB_LAUNCH_EX);
}
/* CUDA 13's own way from the triple brackets: a kernel is its function's address here as well. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) { *kernel = (cudaKernel_t)function; return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)arguments, (void)shared;
    return launch((const void *)kernel, grid, block, stream, EMU_CB_LAUNCH_KERNEL_HANDLE);
}

/* ---- libraries loaded at run time ---- */
cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jit, void **jit_values, unsigned jit_count,
                                enum cudaLibraryOption *options, void **values, unsigned count)
{
    (void)code, (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    *library = calloc(1, 8);
    return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    void *host = malloc(16); /* an address of its own */
    (void)library;
    emu_register(host, emu_function(EMU_KERNEL, name)->name);
    *kernel = host;
    return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) { free(library); return cudaSuccess; }

/* ---- what a kernel needs: not known without compiling it, so what a modest one needs ---- */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function)
{
    (void)function;
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    found->numRegs = 32;
    found->ptxVersion = found->binaryVersion = 10 * emu_card()->major + emu_card()->minor;
    found->maxDynamicSharedSizeBytes = 49152;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)function;
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && (uint64_t)value > emu_card()->shared_per_block)
        return emu_fail(cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int device)
{
    (void)device;
    return cudaFuncSetAttribute(kernel, attribute, value);
}
cudaError_t cudaFuncGetName(const char **name, const void *function)
{
    struct emu_function *found = emu_registered(function);
    if (!found)
        return emu_fail(cudaErrorInvalidDeviceFunction);
    *name = found->name;
    return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void *function, enum cudaFuncCache config) { (void)function, (void)config; return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size, size_t shared, unsigned flags)
{
    const struct emu_card *card = emu_card();
    int fit = size > 0 ? card->threads_per_sm / size : card->blocks_per_sm;
    (void)function, (void)flags;
    if (shared && (int)(card->shared_per_sm / shared) < fit)
        fit = (int)(card->shared_per_sm / shared);
    *blocks = fit > card->blocks_per_sm ? card->blocks_per_sm : fit;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int size, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, size, shared, 0);
}
