/* One sequence's memory: gates, decays, scores, reads and their norm, both ways. */
#ifndef MLSTM_MEMORY_H
#define MLSTM_MEMORY_H

#include "mlstm_weights.h"

#define NORMALIZER_FLOOR 1e-6f /* the package's, added to the normalizer */

/* What is known of one sequence; [T,I], [T,2H padded], [H,T,T] or [H,T]. */
struct mlstm_sequence {
    float *before, *squashed, *convolved, *asked, *value, *read;
    float *gates, *dgates;
    float *decay, *unnormalized, *weights, *dscores;
    float *normalizer, *slope, *rstd;
    float *dconvolved, *dread, *dasked, *dvalue;
    float *steps; /* four numbers per step */
};

static void mlstm_place_sequence(struct arena *a, const struct mlstm_shape *s, struct mlstm_sequence *q) {
    long T = s->steps, I = s->inner, H = s->heads, P = padded(2 * H);
    float **wide[] = {&q->before, &q->squashed, &q->convolved, &q->asked, &q->value, &q->read,
                      &q->dconvolved, &q->dread, &q->dasked, &q->dvalue};
    for (int i = 0; i < 10; i++) *wide[i] = take(a, T * I);
    q->gates = take(a, T * P);
    q->dgates = take(a, T * P);
    float **square[] = {&q->decay, &q->unnormalized, &q->weights, &q->dscores};
    for (int i = 0; i < 4; i++) *square[i] = take(a, H * T * T);
    float **per_step[] = {&q->normalizer, &q->slope, &q->rstd};
    for (int i = 0; i < 3; i++) *per_step[i] = take(a, H * T);
    q->steps = take(a, 4 * T);
}

INLINE float dot(const float *a, const float *b, long n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long c = 0; c < n; c++) sum += a[c] * b[c];
    return sum;
}

INLINE void add_scaled(float *to, float factor, const float *from, long n) {
    SIMD
    for (long c = 0; c < n; c++) to[c] += factor * from[c];
}

/* How much step s still counts at step t, and the normalizer's floor at t in steps[]. */
static void mlstm_decays(long T, long P, const float *i, const float *f, float *decay, float *steps) {
    float *since_start = steps, *weight_of = steps + T, *floor = steps + 2 * T;
    float sum = 0.0f, most = -INFINITY, slope;
    for (long t = 0; t < T; t++) {
        sum -= softplus_(-f[t * P], &slope);
        since_start[t] = sum;
        weight_of[t] = i[t * P] - sum;
        /* The row's largest exponent: memory and normalizer are scaled by it alike. A NaN must not be passed over. */
        most = weight_of[t] < most ? most : weight_of[t];
        float largest = most + sum, ahead = sum - largest;
        floor[t] = exp_(-largest);
        SIMD
        for (long u = 0; u <= t; u++) decay[t * T + u] = exp_(ahead + weight_of[u]);
    }
}

/* One head: from convolved, asked and value to the normed read. */
static void mlstm_read(const struct mlstm_shape *s, struct mlstm_sequence *q, long h) {
    long T = s->steps, I = s->inner, D = I / s->heads, P = padded(2 * s->heads);
    float *decay = q->decay + h * T * T, *un = q->unnormalized + h * T * T, *weights = q->weights + h * T * T;
    mlstm_decays(T, P, q->gates + h, q->gates + s->heads + h, decay, q->steps);
    for (long t = 0; t < T; t++) {
        float total = 0.0f, floor = q->steps[2 * T + t], *read = q->read + t * I + h * D;
        for (long u = 0; u <= t; u++)
            un[t * T + u] = dot(q->asked + t * I + h * D, q->convolved + u * I + h * D, D) * decay[t * T + u];
        for (long u = 0; u <= t; u++) total += un[t * T + u];
        float size = total < 0.0f ? -total : total;
        float normalizer = (size < floor ? floor : size) + NORMALIZER_FLOOR;
        q->normalizer[h * T + t] = normalizer;
        q->slope[h * T + t] = size < floor || total == 0.0f ? 0.0f : total < 0.0f ? -1.0f : 1.0f;
        memset(read, 0, (size_t)D * 4);
        for (long u = 0; u <= t; u++) {
            weights[t * T + u] = un[t * T + u] / normalizer;
            add_scaled(read, weights[t * T + u], q->value + u * I + h * D, D);
        }
        float mean = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : mean)
        for (long c = 0; c < D; c++) mean += read[c];
        mean /= (float)D;
#pragma omp simd reduction(+ : squares)
        for (long c = 0; c < D; c++) squares += (read[c] - mean) * (read[c] - mean);
        float rstd = 1.0f / sqrtf(squares / (float)D + NORM_EPSILON);
        q->rstd[h * T + t] = rstd;
        SIMD
        for (long c = 0; c < D; c++) read[c] = (read[c] - mean) * rstd;
    }
}

/* Everything up to the normed read, from the inner half of the up-projection. */
static void mlstm_remember(const struct mlstm_shape *s, const struct mlstm_folded *f, const struct mlstm_weights *w,
                           const float *up, struct mlstm_sequence *q) {
    long T = s->steps, I = s->inner, H = s->heads, L = 2 * I, P = padded(2 * H);
    for (long t = 0; t < T; t++)
        convolve_row(t, L, I, s->kernel, up + t * L, f->taps, w->conv_bias, q->before + t * I, q->squashed + t * I,
                     q->convolved + t * I);
    times_blocks(T, I, s->block, q->convolved, I, f->score, q->asked, I, 0);
    times_blocks(T, I, s->block, up, L, f->value, q->value, I, 0);
    multiply(T, I, q->convolved, I, f->convolved_gates, q->gates, P, 2 * H, 0);
    multiply(T, I, up, L, f->input_gates, q->gates, P, 2 * H, 1);
    for (long t = 0; t < T; t++)
        for (long h = 0; h < H; h++) {
            q->gates[t * P + h] += w->igate_bias[h];
            q->gates[t * P + H + h] += w->fgate_bias[h];
        }
    for (long h = 0; h < H; h++) mlstm_read(s, q, h);
}

/* One head, backwards: from dread (of the normed read, in place) to dvalue, dasked, dconvolved (added) and dgates. */
static void mlstm_read_back(const struct mlstm_shape *s, struct mlstm_sequence *q, long h) {
    long T = s->steps, I = s->inner, D = I / s->heads, P = padded(2 * s->heads), H = s->heads;
    float *decay = q->decay + h * T * T, *un = q->unnormalized + h * T * T, *weights = q->weights + h * T * T;
    float *dscores = q->dscores + h * T * T, *di = q->steps, *dsince = q->steps + T;
    memset(q->steps, 0, (size_t)(2 * T) * 4);
    for (long t = 0; t < T; t++) {
        float *dread = q->dread + t * I + h * D, *read = q->read + t * I + h * D, *row = dscores + t * T;
        float sum = 0.0f, along = 0.0f, rstd = q->rstd[h * T + t], through = 0.0f, rising = 0.0f;
#pragma omp simd reduction(+ : sum, along)
        for (long c = 0; c < D; c++) {
            sum += dread[c];
            along += dread[c] * read[c];
        }
        sum /= (float)D;
        along /= (float)D;
        SIMD
        for (long c = 0; c < D; c++) dread[c] = rstd * (dread[c] - sum - read[c] * along);
        for (long u = 0; u <= t; u++) {
            row[u] = dot(dread, q->value + u * I + h * D, D);
            add_scaled(q->dvalue + u * I + h * D, weights[t * T + u], dread, D);
        }
        for (long u = 0; u <= t; u++) through += row[u] * weights[t * T + u];
        through *= q->slope[h * T + t];
        float inverse = 1.0f / q->normalizer[h * T + t];
        for (long u = 0; u <= t; u++) {
            float dun = (row[u] - through) * inverse, dexponent = dun * un[t * T + u];
            di[u] += dexponent;
            rising += dexponent;
            row[u] = dun * decay[t * T + u];
        }
        dsince[t] = rising;
        for (long u = 0; u <= t; u++) {
            add_scaled(q->dasked + t * I + h * D, row[u], q->convolved + u * I + h * D, D);
            add_scaled(q->dconvolved + u * I + h * D, row[u], q->asked + t * I + h * D, D);
        }
    }
    /* A forget gate counts for its own step and all later ones. */
    float later = 0.0f;
    for (long t = T - 1; t >= 0; t--) {
        later += dsince[t] - di[t];
        q->dgates[t * P + h] = di[t];
        q->dgates[t * P + H + h] = later * sigmoid_(-q->gates[t * P + H + h]);
    }
}

/* From dread and dconvolved (so far) to dinner, which lies in the first half of dup; the weights' to g. */
static void mlstm_remember_back(const struct mlstm_shape *s, const struct mlstm_folded *f, const float *up,
                                struct mlstm_sequence *q, float *dup, const struct mlstm_sums *g) {
    long T = s->steps, I = s->inner, H = s->heads, L = 2 * I, P = padded(2 * H), b = s->block;
    memset(q->dvalue, 0, (size_t)(T * I) * 4);
    memset(q->dasked, 0, (size_t)(T * I) * 4);
    for (long h = 0; h < H; h++) mlstm_read_back(s, q, h);
    times_blocks(T, I, b, q->dasked, I, f->score_back, q->dconvolved, I, 1);
    add_block_gradients(T, I, b, q->convolved, I, q->dasked, I, g->score);
    times_blocks(T, I, b, q->dvalue, I, f->value_back, dup, L, 0);
    add_block_gradients(T, I, b, up, L, q->dvalue, I, g->value);
    for (long t = 0; t < T; t++)
        for (long gate = 0; gate < 2 * H; gate++) {
            float d = q->dgates[t * P + gate];
            add_scaled(q->dconvolved + t * I, d, f->of_convolved + gate * I, I);
            add_scaled(dup + t * L, d, f->of_input + gate * I, I);
            g->gate_bias[gate] += d;
        }
    add_outer(T, q->dgates, P, 2 * H, q->convolved, I, I, g->of_convolved, I);
    add_outer(T, q->dgates, P, 2 * H, up, L, I, g->of_input, I);
    for (long t = 0; t < T; t++) {
        unsquash_row(I, q->before + t * I, q->squashed + t * I, q->dconvolved + t * I);
        convolve_row_back(t, L, I, s->kernel, up + t * L, q->dconvolved + t * I, f->taps, dup + t * L, L, g->taps,
                          g->conv_bias);
    }
}

#endif
