/* The nouns that all files share: the card, streams with a virtual clock each, functions that are launched, the work a
 * stream is given, and what was counted. Host memory stands for device memory; kernels are counted and compute nothing. */
#pragma once
#include "nvidia_runtime.h"
#include <stdbool.h>

enum { EMU_DEVICES = 16, EMU_QUEUE = 1024 /* launches a driver takes before the host must wait */ };

/* ---- the card (card.c): read once from card.txt in the run's folder ---- */
struct emu_card {
    char name[256];
    int devices, major, minor, sms, sm_clock_mhz, memory_clock_mhz, memory_bus_bits, threads_per_sm, blocks_per_sm;
    uint64_t memory_bytes, l2_bytes, shared_per_sm, shared_per_block;
    double flops_per_ns[4];    /* dense, by emu_precision */
    double bytes_per_ns;       /* of the card's memory, as simple kernels reach it */
    double pinned_bytes_per_ns, pageable_bytes_per_ns;
    uint64_t kernel_ns, copy_ns; /* the least a kernel and a copy take */
    unsigned char uuid[16];    /* of the first card; the others count on from it */
};
enum emu_precision { EMU_FLOAT32, EMU_FLOAT64, EMU_HALF, EMU_TF32 };
const struct emu_card *emu_card(void);
const char *emu_run_folder(void); /* NULL where nobody started the emulator: then there is no card */
int emu_visible_count(void);      /* what CUDA_VISIBLE_DEVICES leaves */
int emu_physical(int device);     /* the card behind a visible number */
void emu_uuid(int physical, unsigned char uuid[16]);
uint64_t emu_now(void);           /* nanoseconds of CLOCK_MONOTONIC: host and device share it */

/* ---- functions and their predicted durations (functions.c) ---- */
enum emu_kind {
    EMU_KERNEL, EMU_LIBRARY, EMU_MEMSET, EMU_H2D, EMU_D2H, EMU_D2D, EMU_H2H, /* what a device does */
    EMU_GRAPH, EMU_SYNC, EMU_ALLOC, EMU_FREE, EMU_HOST_ALLOC, EMU_REFUSED, EMU_KINDS /* what the host does */
};
struct emu_shape { uint32_t grid[3], block[3]; };
struct emu_function {
    const char *name;
    enum emu_kind kind;
    bool pageable, blocking; /* of copies */
    uint64_t count, bytes;
    struct emu_function *next;
};
struct emu_function *emu_function(enum emu_kind kind, const char *name); /* found by name, made at its first call */
struct emu_function *emu_registered(const void *host);                   /* of a kernel compiled into a library */
void emu_register(const void *host, const char *name);
uint64_t emu_learned_ns(const struct emu_function *function, const struct emu_shape *shape); /* 0: not known */
void emu_each_function(void (*visit)(struct emu_function *, void *), void *argument);

/* ---- streams and their clocks (timeline.c) ---- */
struct emu_work {
    struct emu_function *function;
    struct emu_shape shape;
    uint64_t bytes, least_ns; /* least_ns: what it takes where nothing was learned */
    void *to;                 /* of copies and memsets in a graph, which are done at each launch */
    const void *from;
    int value;
};
struct emu_capture;
struct emu_stretch { uint64_t start, end; };
struct CUstream_st {
    int device;
    uint32_t id;
    int priority;
    unsigned flags;
    bool is_default;
    uint64_t busy;             /* when all it was given is done */
    uint64_t ends[EMU_QUEUE];  /* of the last works, a ring */
    unsigned at;
    struct emu_stretch busy_stretches[EMU_QUEUE + 1]; /* with a kernel running, not yet on the board */
    unsigned first, count;
    bool is_waited_for;        /* the host has waited for the last work already, in the copy itself */
    struct emu_capture *capture;
    int lane;                  /* in that capture */
    struct CUstream_st *next;
};
struct CUevent_st { int device; unsigned flags; uint64_t when; bool is_recorded; struct emu_capture *capture; int slot; };

struct CUstream_st *emu_stream(cudaStream_t stream);
void emu_enqueue(struct CUstream_st *stream, const struct emu_work *work, uint32_t correlation);
uint64_t emu_play(struct CUstream_st *stream, const struct emu_work *work, uint64_t ready, uint32_t correlation, uint32_t graph);
void emu_take_slot(struct CUstream_st *stream); /* waits while the queue is full */
void emu_wait_until(uint64_t when);
void emu_wait_stream(struct CUstream_st *stream);
void emu_wait_device(int device);
uint64_t emu_device_busy(int device);
void emu_add_stream(struct CUstream_st *stream);
void emu_remove_stream(struct CUstream_st *stream);
uint64_t emu_launches(void); /* kernels so far, of all streams */
void emu_lock(void);
void emu_unlock(void);
void emu_settle(int device, uint64_t until); /* lock held: busy stretches that are over go to the board */

/* ---- graphs (runtime_graph.c) ---- */
bool emu_is_capturing(struct CUstream_st *stream);
bool emu_any_capture(void);
void emu_capture_work(struct CUstream_st *stream, const struct emu_work *work);
void emu_capture_record(struct CUstream_st *stream, struct CUevent_st *event);
void emu_capture_wait(struct CUstream_st *stream, struct CUevent_st *event);
void emu_break_capture(struct CUstream_st *stream);

/* ---- memory (runtime_memory.c) ---- */
enum emu_place { EMU_PAGEABLE, EMU_PINNED, EMU_DEVICE };
enum emu_place emu_place(const void *address, int *device);
void emu_do_copy(const struct emu_work *work);

uint64_t emu_begin_many(struct CUstream_st *stream); /* lock held, for a graph's many works at one call */
void emu_end_many(struct CUstream_st *stream, uint64_t end);

/* ---- what was counted (ledger.c) ---- */
typedef void (*emu_watcher)(int kind, const char *name, uint64_t bytes, const uint32_t *shape, int flags);
enum { EMU_FLAG_PAGEABLE = 1, EMU_FLAG_BLOCKING = 2, EMU_FLAG_IN_GRAPH = 4 };
void emu_count(struct emu_function *function, uint64_t bytes); /* lock held */
void emu_notify(const struct emu_function *function, uint64_t bytes, const struct emu_shape *shape, int flags); /* no lock held */
void emu_note(enum emu_kind kind, const char *name, uint64_t bytes); /* what only the host does */
int emu_refuse(const char *name, int code);

/* ---- the board all processes of a run share (board.c): what NVML answers from ---- */
enum { EMU_SAMPLES = 512 };
static const uint64_t EMU_PERIOD_NS = 1000000000ull / 6;
void emu_board_busy(int physical, uint64_t start, uint64_t end);
void emu_board_memory(int physical, int64_t change);
uint64_t emu_board_used(int physical);
uint64_t emu_board_busy_ns(int physical, uint64_t period);
int emu_board_processes(int physical, unsigned *pids, uint64_t *bytes, int room);
void emu_board_join(int physical);

/* ---- calls as a profiler sees them (cupti.c) ---- */
struct emu_call { uint64_t start; uint32_t correlation, callback; };
struct emu_call emu_enter(uint32_t callback);
void emu_leave(struct emu_call call);
extern int emu_profiling;
void emu_profile_work(const struct CUstream_st *stream, const struct emu_work *work, uint64_t start, uint64_t end, uint32_t correlation, uint32_t graph);

/* ---- library calls: cuBLAS, cuDNN (library.c) ---- */
void emu_library(cudaStream_t stream, const char *name, double flops, enum emu_precision precision, uint32_t m, uint32_t n, uint32_t k, uint32_t batch);
