/* What was counted: each function its launches and bytes, what the host did beside, and every call that was refused. */
#include "emulator.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const kinds[EMU_KINDS] = {"kernel", "library", "memset", "h2d", "d2h", "d2d", "h2h",
                                             "graph", "sync", "alloc", "free", "host_alloc", "refused"};
static emu_watcher watcher;
static __thread int is_notifying; /* what a watcher itself does is not passed on */
static uint64_t totals[EMU_KINDS], total_bytes[EMU_KINDS];
static int owner; /* the process that loaded the library: a fork that ends must not write in its name */

__attribute__((constructor)) static void begin(void) { owner = (int)getpid(); }

void emu_count(struct emu_function *function, uint64_t bytes)
{
    function->count++;
    function->bytes += bytes;
    totals[function->kind]++;
    total_bytes[function->kind] += bytes;
}

void emu_notify(const struct emu_function *function, uint64_t bytes, const struct emu_shape *shape, int flags)
{
    static const struct emu_shape none;
    uint32_t numbers[6];
    emu_watcher notify = __atomic_load_n(&watcher, __ATOMIC_ACQUIRE);
    if (!notify || is_notifying)
        return;
    memcpy(numbers, shape ? shape : &none, sizeof numbers);
    is_notifying = 1;
    notify(function->kind, function->name, bytes, numbers, flags);
    is_notifying = 0;
}

void emu_note(enum emu_kind kind, const char *name, uint64_t bytes)
{
    struct emu_function *function = emu_function(kind, name);
    emu_lock();
    emu_count(function, bytes);
    emu_unlock();
    emu_notify(function, bytes, NULL, 0);
}

int emu_refuse(const char *name, int code)
{
    emu_note(EMU_REFUSED, name, 0);
    if (getenv("PERFSUITE_EMULATED_LOUD"))
        fprintf(stderr, "perfsuite: the emulated GPU does not have %s\n", name);
    return code;
}

/* ---- for perfsuite ---- */
void perfsuite_emulated_watch(emu_watcher wanted) { __atomic_store_n(&watcher, wanted, __ATOMIC_RELEASE); }

int perfsuite_emulated_totals(uint64_t *counts, uint64_t *bytes)
{
    emu_lock();
    memcpy(counts, totals, sizeof totals);
    memcpy(bytes, total_bytes, sizeof total_bytes);
    emu_unlock();
    return EMU_KINDS;
}

static void write_one(struct emu_function *function, void *file)
{
    if (function->count)
        fprintf(file, "%s\t%llu\t%llu\t%d\t%d\t%s\n", kinds[function->kind], (unsigned long long)function->count,
                (unsigned long long)function->bytes, function->pageable, function->blocking, function->name);
}

/* Lines of kind, count, bytes, pageable, blocking, name. */
int perfsuite_emulated_write(const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return -1;
    emu_lock();
    emu_each_function(write_one, file);
    emu_unlock();
    return fclose(file);
}

__attribute__((destructor)) static void end(void)
{
    char path[4200];
    bool is_used = false;
    for (int i = 0; i < EMU_KINDS; i++)
        is_used |= totals[i] > 0;
    if (!is_used || owner != (int)getpid() || !emu_run_folder())
        return;
    snprintf(path, sizeof path, "%s/counts-%d", emu_run_folder(), (int)getpid());
    perfsuite_emulated_write(path);
}
