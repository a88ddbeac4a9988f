/* A file that all processes of a run map: which of them use which card, how much memory, and when kernels ran. It is
 * what NVML answers from, so that a process sees the others as on a real machine. */
#include "emulator.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROCESSES = 128 };
struct sample { uint64_t period, busy_ns; };
struct process { int pid; uint32_t joined[EMU_DEVICES]; uint64_t used[EMU_DEVICES]; };
struct board { struct sample samples[EMU_DEVICES][EMU_SAMPLES]; struct process processes[PROCESSES]; };

static struct board *board;
static struct process *mine;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static bool is_alive(int pid) { return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM); }

static void forget_parent(void) { mine = NULL; } /* a forked child is another process, with a place of its own */

static struct board *opened(void)
{
    if (board)
        return board;
    pthread_mutex_lock(&opening);
    if (!board) {
        char path[4200];
        void *mapped = MAP_FAILED;
        if (emu_run_folder()) {
            snprintf(path, sizeof path, "%s/board", emu_run_folder());
            int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
            if (file >= 0 && ftruncate(file, sizeof(struct board)) == 0)
                mapped = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (file >= 0)
                close(file);
        }
        /* Where the folder cannot be written to, or has gone, the process sees itself alone. */
        board = mapped == MAP_FAILED ? calloc(1, sizeof *board) : mapped;
        pthread_atfork(NULL, NULL, forget_parent);
    }
    pthread_mutex_unlock(&opening);
    return board;
}

static struct process *own(void)
{
    if (mine)
        return mine;
    struct board *all = opened();
    for (int i = 0; i < PROCESSES && !mine; i++) {
        struct process *one = &all->processes[i];
        int holder = __atomic_load_n(&one->pid, __ATOMIC_RELAXED);
        if (is_alive(holder))
            continue;
        if (__atomic_compare_exchange_n(&one->pid, &holder, (int)getpid(), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            memset(one->joined, 0, sizeof one->joined);
            memset(one->used, 0, sizeof one->used);
            mine = one;
        }
    }
    if (!mine)
        mine = calloc(1, sizeof *mine); /* more processes than places: this one is not seen by the others */
    return mine;
}

void emu_board_join(int physical) { own()->joined[physical] = 1; }

void emu_board_memory(int physical, int64_t change)
{
    struct process *one = own();
    one->joined[physical] = 1;
    __atomic_fetch_add(&one->used[physical], (uint64_t)change, __ATOMIC_RELAXED);
}

uint64_t emu_board_used(int physical)
{
    uint64_t used = 0;
    struct board *all = opened();
    for (int i = 0; i < PROCESSES; i++)
        if (all->processes[i].used[physical] && is_alive(all->processes[i].pid))
            used += all->processes[i].used[physical];
    return used;
}

int emu_board_processes(int physical, unsigned *pids, uint64_t *bytes, int room)
{
    int found = 0;
    struct board *all = opened();
    for (int i = 0; i < PROCESSES; i++) {
        struct process *one = &all->processes[i];
        if (!one->joined[physical] || !is_alive(one->pid))
            continue;
        if (found < room)
            pids[found] = (unsigned)one->pid, bytes[found] = one->used[physical];
        found++;
    }
    return found;
}

void emu_board_busy(int physical, uint64_t start, uint64_t end)
{
    struct board *all = opened();
    while (start < end) {
        uint64_t period = start / EMU_PERIOD_NS, until = (period + 1) * EMU_PERIOD_NS;
        struct sample *one = &all->samples[physical][period % EMU_SAMPLES];
        if (one->period != period)
            *one = (struct sample){period, 0};
        one->busy_ns += (end < until ? end : until) - start;
        start = end < until ? end : until;
    }
}

uint64_t emu_board_busy_ns(int physical, uint64_t period)
{
    struct sample *one = &opened()->samples[physical][period % EMU_SAMPLES];
    uint64_t busy = one->period == period ? one->busy_ns : 0;
    return busy < EMU_PERIOD_NS ? busy : EMU_PERIOD_NS; /* two processes may both have been busy */
}
