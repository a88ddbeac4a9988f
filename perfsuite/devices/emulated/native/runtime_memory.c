/* Memory of the card is memory of the host, reserved but not touched before it is written to. Copies between the two
 * really copy; what is copied or set within the card beyond a megabyte is left alone: nobody reads its values. */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t PAGE = 4096, GRAIN = 2 << 20; /* a driver hands out device memory in grains of 2 MiB */
static const size_t RESERVED = (size_t)1 << 40;   /* addresses, not memory */
static const size_t MOST_MOVED = 1 << 20;
enum { SCALAR = 16 }; /* bytes of a single number, a complex one at most */
static const size_t STAGED = 65536; /* a pageable copy to the card up to here is staged, and the host goes on */

struct block { char *at; size_t size; enum emu_place place; int device; bool is_ours; };
static struct block *blocks; /* by address */
static size_t block_count, block_room;

static size_t above(const void *address) /* the first block that begins behind an address; lock held */
{
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].at <= (const char *)address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct block *block_at(const void *address)
{
    size_t next = above(address);
    struct block *found = next ? &blocks[next - 1] : NULL;
    return found && (const char *)address < found->at + found->size ? found : NULL;
}

static bool keep(struct block block)
{
    emu_lock();
    if (block_count == block_room) {
        size_t room = block_room ? 2 * block_room : 256;
        struct block *grown = realloc(blocks, room * sizeof *grown);
        if (!grown) {
            emu_unlock();
            return false;
        }
        blocks = grown, block_room = room;
    }
    size_t at = above(block.at);
    memmove(&blocks[at + 1], &blocks[at], (block_count++ - at) * sizeof *blocks);
    blocks[at] = block;
    emu_unlock();
    return true;
}

static bool drop(void *address, enum emu_place place)
{
    emu_lock();
    struct block *found = block_at(address);
    bool is_found = found && found->at == (char *)address && found->place == place;
    struct block block = is_found ? *found : (struct block){0};
    if (is_found)
        memmove(found, found + 1, (size_t)(&blocks[--block_count] - found) * sizeof *found);
    emu_unlock();
    if (!is_found)
        return false;
    if (place == EMU_DEVICE)
        emu_board_memory(emu_physical(block.device), -(int64_t)block.size);
    if (block.is_ours)
        munmap(block.at, block.size);
    return true;
}

static void *pages(size_t size)
{
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* A card's memory lies at growing addresses, as on a card: of free pieces of one size torch's allocator takes the one at
 * the lowest address, so that a peak would depend on where the host happens to have room. */
static void *device_pages(size_t size)
{
    static char *next, *end;
    emu_lock();
    if (!end) {
        char *found = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        next = found == MAP_FAILED ? NULL : found;
        end = found == MAP_FAILED ? (char *)1 : found + RESERVED;
    }
    char *at = next && size <= (size_t)(end - next) ? next : NULL;
    next = at ? at + size : next;
    emu_unlock();
    if (!at)
        return pages(size); /* addresses are limited, or all were used once */
    at = mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

enum emu_place emu_place(const void *address, int *device)
{
    emu_lock();
    struct block *found = block_at(address);
    enum emu_place place = found ? found->place : EMU_PAGEABLE;
    if (device)
        *device = found ? found->device : -1;
    emu_unlock();
    return place;
}

/* ---- allocating ---- */
static cudaError_t allocate(void **address, size_t wanted)
{
    int device = emu_current_device(), card = emu_physical(device);
    size_t size = (wanted + GRAIN - 1) & ~(GRAIN - 1);
    if (!wanted) {
        *address = NULL;
        return cudaSuccess;
    }
    if (emu_board_used(card) + size > emu_card()->memory_bytes || !(*address = device_pages(size)))
        return emu_fail(cudaErrorMemoryAllocation);
    emu_board_memory(card, (int64_t)size);
    keep((struct block){*address, size, EMU_DEVICE, device, true});
    emu_note(EMU_ALLOC, "cudaMalloc", wanted);
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **address, size_t size)
{
    struct emu_call call = emu_enter(EMU_CB_MALLOC);
    cudaError_t error = allocate(address, size);
    emu_leave(call);
    return error;
}
cudaError_t cudaMallocAsync(void **address, size_t size, cudaStream_t stream) { (void)stream; return allocate(address, size); }
cudaError_t cudaMallocManaged(void **address, size_t size, unsigned flags) { (void)flags; return allocate(address, size); }
cudaError_t cudaFree(void *address)
{
    if (!address)
        return cudaSuccess;
    struct emu_call call = emu_enter(EMU_CB_FREE);
    emu_wait_device(emu_current_device()); /* freeing waits for all that may still use it */
    bool is_freed = drop(address, EMU_DEVICE);
    emu_leave(call);
    emu_note(EMU_FREE, "cudaFree", 0);
    return is_freed ? cudaSuccess : emu_fail(cudaErrorInvalidValue);
}
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream)
{
    (void)stream;
    emu_note(EMU_FREE, "cudaFreeAsync", 0);
    return drop(address, EMU_DEVICE) ? cudaSuccess : emu_fail(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void **address, size_t wanted, unsigned flags)
{
    struct emu_call call = emu_enter(EMU_CB_HOST_ALLOC);
    size_t size = (wanted + PAGE - 1) & ~(PAGE - 1);
    (void)flags;
    *address = pages(size ? size : PAGE);
    emu_leave(call);
    if (!*address)
        return emu_fail(cudaErrorMemoryAllocation);
    keep((struct block){*address, size ? size : PAGE, EMU_PINNED, emu_current_device(), true});
    emu_note(EMU_HOST_ALLOC, "cudaHostAlloc", wanted);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **address, size_t size) { return cudaHostAlloc(address, size, 0); }
cudaError_t cudaFreeHost(void *address) { return !address || drop(address, EMU_PINNED) ? cudaSuccess : emu_fail(cudaErrorInvalidValue); }
cudaError_t cudaHostRegister(void *address, size_t size, unsigned flags)
{
    (void)flags;
    keep((struct block){address, size, EMU_PINNED, emu_current_device(), false});
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *address) { return drop(address, EMU_PINNED) ? cudaSuccess : emu_fail(cudaErrorInvalidValue); }
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) { (void)flags; *device = host; return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    uint64_t used = emu_board_used(emu_physical(emu_current_device()));
    *total = emu_card()->memory_bytes;
    *free_bytes = used < *total ? *total - used : 0;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address)
{
    int device;
    enum emu_place place = emu_place(address, &device);
    memset(found, 0, sizeof *found);
    found->device = place == EMU_PAGEABLE ? -2 : device; /* cudaInvalidDeviceId */
    found->type = place == EMU_DEVICE ? cudaMemoryTypeDevice : place == EMU_PINNED ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    found->devicePointer = place == EMU_PAGEABLE ? NULL : (void *)address;
    found->hostPointer = place == EMU_PINNED ? (void *)address : NULL;
    return cudaSuccess;
}

/* ---- copying ---- */
/* A single number decides shapes and branches on the host. What a kernel would have put there is not known, and what lies
 * there is left over from something else: it reads as zero, unless it was just written and nothing was launched since. */
struct scalar { const void *at; uint64_t launches; };
static struct scalar *scalar_at(const void *address)
{
    static struct scalar written[256];
    return &written[((uintptr_t)address >> 3) % 256];
}
static void settle_scalar(const struct emu_work *work)
{
    if (work->bytes > SCALAR)
        return;
    if (work->function->kind == EMU_H2D) {
        *scalar_at(work->to) = (struct scalar){work->to, emu_launches()};
    } else if (work->function->kind == EMU_D2H) {
        const struct scalar *known = scalar_at(work->from);
        if (known->at != work->from || known->launches != emu_launches())
            memset(work->to, 0, work->bytes);
    }
}

void emu_do_copy(const struct emu_work *work)
{
    enum emu_kind kind = work->function->kind;
    if (!work->to || (work->bytes > MOST_MOVED && (kind == EMU_D2D || kind == EMU_MEMSET)))
        return;
    if (kind == EMU_MEMSET)
        memset(work->to, work->value, work->bytes);
    else
        memmove(work->to, work->from, work->bytes);
    settle_scalar(work);
}

/* A copy's record by what it is: direction, and whether the host must wait for it. Named as CUPTI names them. */
static struct emu_function *copy_function(enum emu_kind kind, bool pageable, bool blocking)
{
    static const char *const names[4][2] = {{"Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)"},
                                            {"Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pageable)"},
                                            {"Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"},
                                            {"Memcpy HtoH (Host -> Host)", "Memcpy HtoH (Host -> Host)"}};
    static struct emu_function *known[4][2][2];
    struct emu_function **one = &known[kind - EMU_H2D][pageable][blocking];
    if (!*one) {
        char name[96] = "";
        strcat(strcat(name, names[kind - EMU_H2D][pageable]), blocking ? ", blocking" : "");
        struct emu_function *made = emu_function(kind, name);
        made->pageable = pageable;
        made->blocking = blocking;
        *one = made;
    }
    return *one;
}

static cudaError_t copy(void *to, const void *from, size_t size, cudaStream_t on, bool is_sync, uint32_t callback)
{
    if (!size)
        return cudaSuccess;
    struct CUstream_st *stream = emu_stream(on);
    enum emu_place source = emu_place(from, NULL), target = emu_place(to, NULL);
    enum emu_kind kind = source == EMU_DEVICE ? (target == EMU_DEVICE ? EMU_D2D : EMU_D2H) : target == EMU_DEVICE ? EMU_H2D : EMU_H2H;
    bool pageable = (kind == EMU_H2D && source == EMU_PAGEABLE) || (kind == EMU_D2H && target == EMU_PAGEABLE);
    bool waits = is_sync || (pageable && (kind == EMU_D2H || size > STAGED));
    bool is_capturing = emu_is_capturing(stream);
    struct emu_call call = emu_enter(callback);
    struct emu_work work = {.function = copy_function(kind, pageable, is_sync || pageable), .bytes = size, .to = to, .from = from,
                            .shape = {{1, 1, 1}, {1, 1, 1}}};
    if (!is_capturing)
        emu_do_copy(&work);
    emu_enqueue(stream, &work, call.correlation);
    if (waits && !is_capturing)
        emu_wait_stream(stream);
    emu_leave(call);
    if (is_sync || (pageable && kind == EMU_D2H && !is_capturing)) {
        stream->is_waited_for = true;
        emu_note(EMU_SYNC, is_sync ? "cudaMemcpy" : "cudaMemcpyAsync to pageable memory", 0);
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    (void)kind; /* where memory lies is known */
    return copy(to, from, size, NULL, true, EMU_CB_MEMCPY);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    return copy(to, from, size, stream, false, EMU_CB_MEMCPY_ASYNC);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, cudaStream_t stream)
{
    (void)to_device, (void)from_device;
    return copy(to, from, size, stream, false, EMU_CB_MEMCPY_PEER_ASYNC);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    if (!height || !width)
        return cudaSuccess;
    for (size_t row = 0; row + 1 < height; row++)
        memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return copy((char *)to + (height - 1) * to_pitch, (const char *)from + (height - 1) * from_pitch, width, stream, false, EMU_CB_MEMCPY_2D_ASYNC);
}
cudaError_t cudaMemsetAsync(void *address, int value, size_t size, cudaStream_t on)
{
    static struct emu_function *function;
    if (!function)
        function = emu_function(EMU_MEMSET, "Memset (Device)");
    struct CUstream_st *stream = emu_stream(on);
    struct emu_call call = emu_enter(EMU_CB_MEMSET_ASYNC);
    struct emu_work work = {.function = function, .bytes = size, .to = address, .value = value, .shape = {{1, 1, 1}, {1, 1, 1}}};
    if (!emu_is_capturing(stream))
        emu_do_copy(&work);
    emu_enqueue(stream, &work, call.correlation);
    emu_leave(call);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *address, int value, size_t size) { return cudaMemsetAsync(address, value, size, NULL); }

/* ---- variables of modules: all share one piece of memory, nobody computes with them ---- */
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol)
{
    static void *shared;
    (void)symbol;
    if (!shared) {
        shared = pages(GRAIN);
        keep((struct block){shared, GRAIN, EMU_DEVICE, emu_current_device(), true});
    }
    *address = shared;
    return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind)
{
    void *address;
    (void)kind;
    cudaGetSymbolAddress(&address, symbol);
    return offset + size <= GRAIN ? copy((char *)address + offset, from, size, NULL, true, EMU_CB_MEMCPY) : emu_fail(cudaErrorInvalidValue);
}

/* ---- pools: torch's cudaMallocAsync backend uses the device's own ---- */
static int default_pool;
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) { (void)device; *pool = (cudaMemPool_t)&default_pool; return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    (void)pool, (void)attribute;
    *(uint64_t *)value = 0;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) { (void)pool, (void)attribute, (void)value; return cudaSuccess; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t count) { (void)pool, (void)list, (void)count; return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t least) { (void)pool, (void)least; return cudaSuccess; }
