/* The frame of a block's passes: threads with scratch memory of their own share the sequences, tile by tile. */
#ifndef TILES_H
#define TILES_H

#include <omp.h>

/* Every thread readies its scratch `m` (PREPARED tells whether it could, then BEGIN), all take tiles of `count` from `n`
   on (DO), and END. Expects `threads` and `failed`, which becomes 1 where memory ran out: then nothing is computed. */
#define OVER_TILES(SCRATCH, PREPARED, BEGIN, TOTAL, SIZE, DO, END)            \
    _Pragma("omp parallel num_threads(threads) if (!failed)") {               \
        SCRATCH m;                                                            \
        if (PREPARED) {                                                       \
            BEGIN;                                                            \
        } else {                                                              \
            _Pragma("omp atomic write") failed = 1;                           \
        }                                                                     \
        _Pragma("omp barrier") if (!failed) {                                 \
            _Pragma("omp for schedule(static)")                               \
            for (long n = 0; n < (TOTAL); n += (SIZE)) {                      \
                long count = (TOTAL) - n < (SIZE) ? (TOTAL) - n : (SIZE);     \
                DO;                                                           \
            }                                                                 \
            END;                                                              \
        }                                                                     \
    }

#define NOTHING ((void)0)

/* Start a thread's sums of gradients at zero. */
static void start_sums(float **sums, float *own, long size) {
    memset(own, 0, (size_t)size * 4);
    sums[omp_get_thread_num()] = own;
}

/* Add all threads' sums to the first one's, always in the threads' order: the same threads give the same bits. */
static void join_sums(float **sums, long size) {
#pragma omp for schedule(static)
    for (long i = 0; i < size; i++)
        for (int other = 1; other < omp_get_num_threads(); other++) sums[0][i] += sums[other][i];
}

#endif
