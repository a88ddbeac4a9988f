/* CUPTI: what the card and the host did, as records for torch's profiler. They are kept here while a profiler listens and
 * handed over when it flushes. Kineto has its own clock, and expects times on it. */
#include "nvidia_libraries.h"
#include "runtime.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if EMULATED_CUDA >= 13000
enum { VERSION = 130001 };
#else
enum { VERSION = 28 };
#endif
#if defined(EMULATED_CHECK) && EMULATED_CUDA < 13000
typedef CUpti_ActivityKernel9 kernel_record; /* the tenth only adds to its end */
#else
typedef CUpti_ActivityKernel10 kernel_record;
#endif

enum record_type { RECORD_CALL, RECORD_LINK, RECORD_WORK };
struct record {
    enum record_type type;
    enum emu_kind kind;
    uint32_t correlation, callback, stream, device, thread, graph, link_kind;
    uint64_t start, end, bytes, link;
    const char *name;
    bool pageable;
    struct emu_shape shape;
};
enum { LINK_KINDS = 8, DEPTH = 256, KINDS = 128 };

int emu_profiling;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct record *records;
static size_t record_count, record_room;
static uint32_t next_correlation = 1;
static __thread uint64_t links[LINK_KINDS][DEPTH];
static __thread unsigned link_depth[LINK_KINDS];

static void keep(const struct record *record)
{
    pthread_mutex_lock(&mutex);
    if (record_count == record_room) {
        size_t room = record_room ? 2 * record_room : 8192;
        struct record *grown = realloc(records, room * sizeof *grown);
        if (grown)
            records = grown, record_room = room;
    }
    if (record_count < record_room)
        records[record_count++] = *record;
    pthread_mutex_unlock(&mutex);
}

struct emu_call emu_enter(uint32_t callback)
{
    struct emu_call call = {0, __atomic_fetch_add(&next_correlation, 1, __ATOMIC_RELAXED), callback};
    if (!emu_profiling)
        return call;
    for (uint32_t kind = 0; kind < LINK_KINDS; kind++)
        if (link_depth[kind])
            keep(&(struct record){.type = RECORD_LINK, .link_kind = kind, .correlation = call.correlation,
                                  .link = links[kind][(link_depth[kind] - 1) % DEPTH]});
    call.start = emu_now();
    return call;
}
void emu_leave(struct emu_call call)
{
    if (emu_profiling && call.start)
        keep(&(struct record){.type = RECORD_CALL, .correlation = call.correlation, .callback = call.callback, .start = call.start,
                              .end = emu_now(), .thread = (uint32_t)syscall(SYS_gettid)});
}
void emu_profile_work(const struct CUstream_st *stream, const struct emu_work *work, uint64_t start, uint64_t end, uint32_t correlation, uint32_t graph)
{
    keep(&(struct record){.type = RECORD_WORK, .kind = work->function->kind, .correlation = correlation, .stream = stream->id,
                          .device = (uint32_t)stream->device, .start = start, .end = end, .bytes = work->bytes, .name = work->function->name,
                          .pageable = work->function->pageable, .shape = work->shape, .graph = graph});
}

/* ---- the profiler's clock: mapped by tightly bracketed pairs, a loose pair would lose events at the ends ---- */
static CUpti_TimestampCallbackFunc their_clock;
static uint64_t their_start, our_start;
static double rate = 1;
static const uint64_t RATED_NS = 1000000; /* the clocks' ratio needs so long; a guess would put all events out of the profile */

static uint64_t their_now(void)
{
    struct timespec now;
    if (their_clock)
        return their_clock();
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}
static void pair_clocks(uint64_t *theirs, uint64_t *ours)
{
    uint64_t tightest = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        uint64_t before = emu_now(), now = their_now(), after = emu_now();
        if (after - before < tightest)
            tightest = after - before, *theirs = now, *ours = before + (after - before) / 2;
    }
}
static uint64_t their_time(uint64_t ours) { return their_start + (uint64_t)(int64_t)(rate * (double)(int64_t)(ours - our_start)); }

/* ---- who listens, and to what ---- */
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static bool is_enabled[KINDS], was_enabled[KINDS]; /* Kineto disables kinds before it flushes what they gathered */
static uint8_t *buffer;
static size_t buffer_size;

/* Kineto does not fetch records as long as no buffer was ever requested: one is, at once. */
static void renew(void)
{
    bool any = is_enabled[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] || is_enabled[CUPTI_ACTIVITY_KIND_KERNEL]
        || is_enabled[CUPTI_ACTIVITY_KIND_RUNTIME] || is_enabled[CUPTI_ACTIVITY_KIND_MEMCPY];
    size_t most = 0;
    if (any && !emu_profiling)
        pair_clocks(&their_start, &our_start);
    emu_profiling = any;
    if (any && !buffer && request)
        request(&buffer, &buffer_size, &most);
}
CUptiResult cuptiGetVersion(uint32_t *version) { *version = VERSION; return CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult result, const char **words)
{
    *words = result == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : result == CUPTI_ERROR_NOT_SUPPORTED ? "CUPTI_ERROR_NOT_SUPPORTED" : "an error of the emulated CUPTI";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *made, CUpti_CallbackFunc callback, void *argument)
{
    (void)callback, (void)argument; /* callbacks are for metrics of the hardware, of which there is none */
    *made = (CUpti_SubscriberHandle)calloc(1, 8);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle given) { free(given); return CUPTI_SUCCESS; }
CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle given, CUpti_CallbackDomain domain, CUpti_CallbackId id)
{
    (void)enable, (void)given, (void)domain, (void)id;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle given, CUpti_CallbackDomain domain) { (void)enable, (void)given, (void)domain; return CUPTI_SUCCESS; }
CUptiResult cuptiFinalize(void) { emu_profiling = 0; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested, CUpti_BuffersCallbackCompleteFunc completed)
{
    request = requested;
    complete = completed;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock)
{
    their_clock = clock;
    pair_clocks(&their_start, &our_start);
    return CUPTI_SUCCESS;
}
static CUptiResult enable(CUpti_ActivityKind kind, bool on)
{
    if ((unsigned)kind < KINDS) {
        is_enabled[kind] = on;
        was_enabled[kind] |= on;
    }
    renew();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { return enable(kind, true); }
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return enable(kind, false); }
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId id, uint8_t on) { (void)id, (void)on; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId id, uint8_t on) { (void)id, (void)on; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t on) { (void)on; return CUPTI_SUCCESS; }
CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t *size, void *value) { (void)attribute, (void)size, (void)value; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *count) { (void)context, (void)stream; *count = 0; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id)
{
    if ((unsigned)kind >= LINK_KINDS)
        return CUPTI_ERROR_INVALID_PARAMETER;
    links[kind][link_depth[kind]++ % DEPTH] = id;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *id)
{
    if ((unsigned)kind >= LINK_KINDS || !link_depth[kind])
        return CUPTI_ERROR_QUEUE_EMPTY;
    link_depth[kind]--;
    if (id)
        *id = links[kind][link_depth[kind] % DEPTH];
    return CUPTI_SUCCESS;
}

/* ---- records in NVIDIA's layout ---- */
typedef union { CUpti_Activity any; kernel_record kernel; CUpti_ActivityMemcpy6 copy; CUpti_ActivityMemset4 set; CUpti_ActivityAPI call; CUpti_ActivityExternalCorrelation link; } activity;

static size_t size_of(CUpti_ActivityKind kind)
{
    switch ((int)kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(kernel_record);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_RUNTIME: case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    default: return sizeof(CUpti_ActivityExternalCorrelation);
    }
}

static void fill_copy(const struct record *from, CUpti_ActivityMemcpy6 *copy)
{
    uint8_t host = from->pageable ? CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE : CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
    bool is_from_host = from->kind == EMU_H2D || from->kind == EMU_H2H, is_to_host = from->kind == EMU_D2H || from->kind == EMU_H2H;
    *copy = (CUpti_ActivityMemcpy6){.kind = CUPTI_ACTIVITY_KIND_MEMCPY, .bytes = from->bytes, .start = their_time(from->start),
        .end = their_time(from->end), .deviceId = from->device, .contextId = 1, .streamId = from->stream, .correlationId = from->correlation,
        .srcKind = is_from_host ? host : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, .dstKind = is_to_host ? host : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE,
        .graphId = from->graph, .copyCount = 1};
    copy->copyKind = from->kind == EMU_H2D ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD : from->kind == EMU_D2H ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
        : from->kind == EMU_D2D ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOD : CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
}

static void fill_work(const struct record *from, activity *to)
{
    if (from->kind == EMU_KERNEL || from->kind == EMU_LIBRARY) {
        const struct emu_shape *s = &from->shape;
        to->kernel = (kernel_record){.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, .start = their_time(from->start), .end = their_time(from->end),
            .completed = their_time(from->end), .deviceId = from->device, .contextId = 1, .streamId = from->stream, .registersPerThread = 32,
            .gridX = (int32_t)s->grid[0], .gridY = (int32_t)s->grid[1], .gridZ = (int32_t)s->grid[2], .blockX = (int32_t)s->block[0],
            .blockY = (int32_t)s->block[1], .blockZ = (int32_t)s->block[2], .correlationId = from->correlation, .name = from->name, .graphId = from->graph};
    } else if (from->kind == EMU_MEMSET) {
        to->set = (CUpti_ActivityMemset4){.kind = CUPTI_ACTIVITY_KIND_MEMSET, .bytes = from->bytes, .start = their_time(from->start),
            .end = their_time(from->end), .deviceId = from->device, .contextId = 1, .streamId = from->stream, .correlationId = from->correlation,
            .memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, .graphId = from->graph};
    } else {
        fill_copy(from, &to->copy);
    }
}

static void fill(const struct record *from, activity *to)
{
    memset(to, 0, sizeof *to);
    if (from->type == RECORD_WORK)
        fill_work(from, to);
    else if (from->type == RECORD_LINK)
        to->link = (CUpti_ActivityExternalCorrelation){.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, .externalId = from->link,
            .externalKind = (CUpti_ExternalCorrelationKind)from->link_kind, .correlationId = from->correlation};
    else
        to->call = (CUpti_ActivityAPI){.kind = from->callback & EMU_CB_DRIVER ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME,
            .cbid = from->callback & (EMU_CB_DRIVER - 1), .start = their_time(from->start), .end = their_time(from->end),
            .processId = (uint32_t)getpid(), .threadId = from->thread, .correlationId = from->correlation};
}

static bool is_wanted(CUpti_ActivityKind kind)
{
    return was_enabled[kind] || (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && was_enabled[CUPTI_ACTIVITY_KIND_KERNEL]);
}

static size_t padded(size_t size) { return (size + 7) & ~(size_t)7; }

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    uint64_t theirs, ours;
    size_t at = 0, size = buffer_size, most = 0;
    uint8_t *into = buffer;
    (void)flag;
    if (!request || !complete)
        return CUPTI_SUCCESS;
    for (pair_clocks(&theirs, &ours); ours - our_start < RATED_NS; pair_clocks(&theirs, &ours))
        nanosleep(&(struct timespec){.tv_nsec = (long)RATED_NS / 4}, NULL);
    rate = (double)(theirs - their_start) / (double)(ours - our_start);
    pthread_mutex_lock(&mutex);
    struct record *taken = records;
    size_t count = record_count;
    records = NULL;
    record_count = record_room = 0;
    pthread_mutex_unlock(&mutex);
    buffer = NULL;
    for (size_t i = 0; i < count; i++) {
        activity one;
        fill(&taken[i], &one);
        if (!is_wanted(one.any.kind))
            continue;
        size_t length = padded(size_of(one.any.kind));
        if (into && at + length > size) {
            complete(NULL, 0, into, size, at);
            into = NULL;
        }
        if (!into) {
            at = 0;
            request(&into, &size, &most);
            if (!into)
                break;
        }
        memcpy(into + at, &one, size_of(one.any.kind));
        at += length;
    }
    if (into)
        complete(NULL, 0, into, size, at);
    free(taken);
    memcpy(was_enabled, is_enabled, sizeof is_enabled);
    renew();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *from, size_t valid, CUpti_Activity **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + padded(size_of((*record)->kind)) : from;
    if (!valid || next >= from + valid)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
