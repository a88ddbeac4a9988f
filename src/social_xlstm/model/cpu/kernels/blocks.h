/* Small matrices on a diagonal, b×b each, applied to all channels at once. */
#ifndef BLOCKS_H
#define BLOCKS_H

#include "arithmetic.h"

/* «Spread» coefficients [b,n]: y[c] = Σ_j x[first channel of c's block + j]·coefficients[j,c]. Where blocks fill
   vectors, a channel's neighbours come by a shuffle. */

#if defined(__GNUC__) && !defined(__clang__)
#define SHUFFLES(b) ((b) <= LANES && LANES % (b) == 0)
INLINE vec neighbour(vec x, long b, long j) {
    ivec from;
    for (int l = 0; l < LANES; l++) from[l] = (int)(l / b * b + j);
    return __builtin_shuffle(x, from);
}
#else
#define SHUFFLES(b) 0
INLINE vec neighbour(vec x, long b, long j) { return x; }
#endif

/* The four of a block of four, in registers. */
INLINE void times_fours(long rows, long n, const float *x, long xi, const float *coefficients, float *y, long yi,
                        int add) {
    for (long c = 0; c < n; c += LANES) {
        vec w[4];
        for (int j = 0; j < 4; j++) w[j] = load(coefficients + j * n + c);
        for (long t = 0; t < rows; t++) {
            vec here = load(x + t * xi + c), sum = add ? load(y + t * yi + c) : (vec){0};
            for (int j = 0; j < 4; j++) sum += neighbour(here, 4, j) * w[j];
            store(y + t * yi + c, sum);
        }
    }
}

/* y [rows,n] = (y +) blocks·x. */
static void times_blocks(long rows, long n, long b, const float *x, long xi, const float *coefficients, float *y,
                         long yi, int add) {
    if (b == 4 && SHUFFLES(4)) {
        times_fours(rows, n, x, xi, coefficients, y, yi, add);
        return;
    }
    for (long t = 0; t < rows; t++)
        for (long c = 0; c < n; c++) {
            const float *block = x + t * xi + c / b * b;
            float sum = add ? y[t * yi + c] : 0.0f;
            for (long j = 0; j < b; j++) sum += block[j] * coefficients[j * n + c];
            y[t * yi + c] = sum;
        }
}

/* The coefficients' gradients, added to [b,n]. */
static void add_block_gradients(long rows, long n, long b, const float *x, long xi, const float *dy, long dyi,
                                float *gradients) {
    if (b == 4 && SHUFFLES(4)) {
        for (long c = 0; c < n; c += LANES) {
            vec w[4];
            for (int j = 0; j < 4; j++) w[j] = load(gradients + j * n + c);
            for (long t = 0; t < rows; t++) {
                vec here = load(x + t * xi + c), d = load(dy + t * dyi + c);
                for (int j = 0; j < 4; j++) w[j] += neighbour(here, 4, j) * d;
            }
            for (int j = 0; j < 4; j++) store(gradients + j * n + c, w[j]);
        }
        return;
    }
    for (long t = 0; t < rows; t++)
        for (long c = 0; c < n; c++)
            for (long j = 0; j < b; j++) gradients[j * n + c] += x[t * xi + c / b * b + j] * dy[t * dyi + c];
}

#endif
