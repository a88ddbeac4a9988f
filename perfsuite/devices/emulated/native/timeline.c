/* Time on the card: each stream has a virtual clock that says when its work is done. Work begins when it was enqueued,
 * when its stream is free and when the engine it needs is; the host's time is real, and only waiting makes it wait. */
#include "emulator.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const uint64_t SPIN_NS = 60000, SLICE_NS = 50000000; /* sleeping ends a little late: the rest is spun */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st defaults[EMU_DEVICES], *streams;
struct device {
    uint64_t compute;          /* when the last kernel that fills the card ends */
    uint64_t to_device, to_host; /* the two copy engines */
    uint64_t blocking;         /* when the last work of streams that wait for the default one ends */
    uint64_t settled;          /* up to here busy time is on the board */
};
static struct device devices[EMU_DEVICES];
static uint32_t next_stream = 8;
static uint64_t launches;

/* A fork while another thread holds the lock would leave it locked for ever in the child. */
static void release_in_child(void) { pthread_mutex_init(&mutex, NULL); }
__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, release_in_child); }

uint64_t emu_launches(void) { return __atomic_load_n(&launches, __ATOMIC_RELAXED); }
void emu_lock(void) { pthread_mutex_lock(&mutex); }
void emu_unlock(void) { pthread_mutex_unlock(&mutex); }

struct CUstream_st *emu_stream(cudaStream_t stream)
{
    extern int emu_current_device(void);
    if (stream != NULL && stream != cudaStreamLegacy && stream != cudaStreamPerThread)
        return stream;
    int device = emu_current_device();
    struct CUstream_st *found = &defaults[device];
    found->device = device;
    found->id = 7; /* CUPTI's number for it */
    found->is_default = true;
    return found;
}

void emu_add_stream(struct CUstream_st *stream)
{
    emu_lock();
    stream->id = next_stream++;
    stream->next = streams;
    streams = stream;
    emu_unlock();
}

void emu_remove_stream(struct CUstream_st *stream)
{
    emu_lock();
    emu_settle(stream->device, UINT64_MAX);
    for (struct CUstream_st **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            free(stream);
            break;
        }
    emu_unlock();
}

static uint64_t latest(uint64_t one, uint64_t other) { return one > other ? one : other; }

/* ---- waiting ---- */
void emu_wait_until(uint64_t when)
{
    for (uint64_t now = emu_now(); now < when; now = emu_now()) {
        if (when - now <= SPIN_NS)
            continue;
        uint64_t until = when - now > SLICE_NS ? now + SLICE_NS : when - SPIN_NS / 2;
        struct timespec at = {(time_t)(until / 1000000000ull), (long)(until % 1000000000ull)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        emu_lock(); /* a sampler may read how busy the card is while we wait for it */
        for (int i = 0; i < emu_visible_count(); i++)
            emu_settle(i, emu_now());
        emu_unlock();
    }
}

void emu_wait_stream(struct CUstream_st *stream)
{
    emu_lock();
    uint64_t when = stream->busy;
    emu_unlock();
    emu_wait_until(when);
}

uint64_t emu_device_busy(int device)
{
    emu_lock();
    uint64_t when = defaults[device].busy;
    for (struct CUstream_st *one = streams; one; one = one->next)
        if (one->device == device)
            when = latest(when, one->busy);
    emu_unlock();
    return when;
}

void emu_wait_device(int device) { emu_wait_until(emu_device_busy(device)); }

void emu_take_slot(struct CUstream_st *stream)
{
    uint64_t oldest = stream->ends[stream->at % EMU_QUEUE];
    if (oldest > emu_now())
        emu_wait_until(oldest);
}

/* ---- the share of time with a kernel running ---- */
static struct CUstream_st *earliest(int device)
{
    struct CUstream_st *found = defaults[device].count ? &defaults[device] : NULL;
    for (struct CUstream_st *one = streams; one; one = one->next)
        if (one->device == device && one->count
            && (!found || one->busy_stretches[one->first].start < found->busy_stretches[found->first].start))
            found = one;
    return found;
}

/* What lies before `until` is final where that is now: new work never begins in the past. */
void emu_settle(int device, uint64_t until)
{
    struct device *on = &devices[device];
    for (struct CUstream_st *one; (one = earliest(device));) {
        struct emu_stretch *stretch = &one->busy_stretches[one->first];
        if (stretch->start >= until)
            return;
        uint64_t end = stretch->end < until ? stretch->end : until;
        if (end > latest(on->settled, stretch->start)) {
            emu_board_busy(emu_physical(device), latest(on->settled, stretch->start), end);
            on->settled = end;
        }
        stretch->start = end;
        if (end == stretch->end) {
            one->first = (one->first + 1) % (EMU_QUEUE + 1);
            one->count--;
        }
    }
}

static void note_busy(struct CUstream_st *stream, uint64_t start, uint64_t end)
{
    if (stream->count) {
        struct emu_stretch *last = &stream->busy_stretches[(stream->first + stream->count - 1) % (EMU_QUEUE + 1)];
        if (start <= last->end) {
            last->end = latest(last->end, end);
            return;
        }
    }
    if (stream->count == EMU_QUEUE + 1)
        emu_settle(stream->device, emu_now());
    if (stream->count == EMU_QUEUE + 1) { /* more in flight than a queue holds, of a graph: one long stretch */
        stream->busy_stretches[(stream->first + stream->count - 1) % (EMU_QUEUE + 1)].end = end;
        return;
    }
    stream->busy_stretches[(stream->first + stream->count++) % (EMU_QUEUE + 1)] = (struct emu_stretch){start, end};
}

/* ---- work ---- */
static uint64_t duration(const struct emu_work *work)
{
    const struct emu_card *card = emu_card();
    const struct emu_function *function = work->function;
    double bytes = (double)work->bytes;
    switch (function->kind) {
    case EMU_KERNEL:
    case EMU_LIBRARY: {
        uint64_t known = emu_learned_ns(function, &work->shape);
        return known ? known : latest(work->least_ns, card->kernel_ns);
    }
    case EMU_MEMSET: return card->kernel_ns + (uint64_t)(bytes / card->bytes_per_ns);
    case EMU_D2D: return card->kernel_ns + (uint64_t)(2 * bytes / card->bytes_per_ns); /* read and written */
    case EMU_H2D:
    case EMU_D2H:
        return card->copy_ns + (uint64_t)(bytes / (function->pageable ? card->pageable_bytes_per_ns : card->pinned_bytes_per_ns));
    default: return 0;
    }
}

/* Lock held. Put work on a stream not before it is ready, and return when it ends. */
uint64_t emu_play(struct CUstream_st *stream, const struct emu_work *work, uint64_t ready, uint32_t correlation, uint32_t graph)
{
    struct device *on = &devices[stream->device];
    enum emu_kind kind = work->function->kind;
    uint64_t start = ready, took = duration(work);
    launches += kind == EMU_KERNEL || kind == EMU_LIBRARY;
    bool is_compute = kind == EMU_KERNEL || kind == EMU_LIBRARY || kind == EMU_MEMSET || kind == EMU_D2D;
    /* Kernels of two streams run side by side only where one alone leaves multiprocessors free. */
    bool fills = is_compute && (uint64_t)work->shape.grid[0] * work->shape.grid[1] * work->shape.grid[2] >= (uint64_t)emu_card()->sms;
    uint64_t *engine = fills ? &on->compute : kind == EMU_H2D ? &on->to_device : kind == EMU_D2H ? &on->to_host : NULL;
    if (engine)
        start = latest(start, *engine);
    uint64_t end = start + took;
    if (engine)
        *engine = end;
    if (is_compute && took)
        note_busy(stream, start, end);
    emu_count(work->function, work->bytes);
    if (emu_profiling)
        emu_profile_work(stream, work, start, end, correlation, graph);
    return end;
}

/* When a stream may begin something new: the default stream and those that do not opt out wait for each other. */
static uint64_t free_at(struct CUstream_st *stream)
{
    uint64_t when = latest(stream->busy, emu_now());
    if (stream->is_default)
        return latest(when, devices[stream->device].blocking);
    return stream->flags & cudaStreamNonBlocking ? when : latest(when, defaults[stream->device].busy);
}

void emu_enqueue(struct CUstream_st *stream, const struct emu_work *work, uint32_t correlation)
{
    if (emu_is_capturing(stream)) {
        emu_capture_work(stream, work);
        return;
    }
    emu_take_slot(stream);
    emu_lock();
    stream->busy = emu_play(stream, work, free_at(stream), correlation, 0);
    stream->ends[stream->at++ % EMU_QUEUE] = stream->busy;
    stream->is_waited_for = false;
    if (!stream->is_default && !(stream->flags & cudaStreamNonBlocking))
        devices[stream->device].blocking = latest(devices[stream->device].blocking, stream->busy);
    if (stream->at % EMU_QUEUE == 0)
        emu_settle(stream->device, emu_now());
    emu_unlock();
    int flags = (work->function->pageable ? EMU_FLAG_PAGEABLE : 0) | (work->function->blocking ? EMU_FLAG_BLOCKING : 0);
    emu_notify(work->function, work->bytes, &work->shape, flags);
}

/* For graphs, which play many works at one call. */
uint64_t emu_begin_many(struct CUstream_st *stream) { return free_at(stream); }
void emu_end_many(struct CUstream_st *stream, uint64_t end)
{
    stream->busy = latest(stream->busy, end);
    stream->ends[stream->at++ % EMU_QUEUE] = stream->busy;
    stream->is_waited_for = false;
}
