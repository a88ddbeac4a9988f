/* Every channel convolved with its own past, both ways, over rows that lie `step` apart per time step. */
#ifndef CONVOLUTION_H
#define CONVOLUTION_H

#include "arithmetic.h"

/* Taps as [kernel,n], the present step's last. */
static void turn_taps(const float *weight, long n, long kernel, float *taps) {
    for (long k = 0; k < kernel; k++)
        for (long c = 0; c < n; c++) taps[k * n + c] = weight[c * kernel + k];
}

/* before = convolution, slope_of = σ(before), after = silu(before); one row of step t. */
INLINE void convolve_row(long t, long step, long n, long kernel, const float *x, const float *taps, const float *bias,
                         float *before, float *squashed, float *after) {
    const float *present = taps + (kernel - 1) * n;
    SIMD
    for (long c = 0; c < n; c++) before[c] = bias[c] + x[c] * present[c];
    for (long lag = 1; lag < kernel && lag <= t; lag++) {
        const float *past = x - lag * step, *tap = present - lag * n;
        SIMD
        for (long c = 0; c < n; c++) before[c] += past[c] * tap[c];
    }
    SIMD
    for (long c = 0; c < n; c++) {
        squashed[c] = sigmoid_(before[c]);
        after[c] = before[c] * squashed[c];
    }
}

/* From the gradient behind silu to that before it, in place; one row. */
INLINE void unsquash_row(long n, const float *before, const float *squashed, float *d) {
    SIMD
    for (long c = 0; c < n; c++) d[c] *= squashed[c] * (1.0f + before[c] * (1.0f - squashed[c]));
}

/* Add the gradients of one row of step t: to dx and its past, to the taps and the bias. */
INLINE void convolve_row_back(long t, long step, long n, long kernel, const float *x, const float *d,
                              const float *taps, float *dx, long dstep, float *dtaps, float *dbias) {
    SIMD
    for (long c = 0; c < n; c++) dbias[c] += d[c];
    for (long lag = 0; lag < kernel && lag <= t; lag++) {
        const float *tap = taps + (kernel - 1 - lag) * n, *from = x - lag * step;
        float *dtap = dtaps + (kernel - 1 - lag) * n, *to = dx - lag * dstep;
        SIMD
        for (long c = 0; c < n; c++) {
            dtap[c] += d[c] * from[c];
            to[c] += d[c] * tap[c];
        }
    }
}

#endif
