/* The sLSTM's recurrence over a few sequences, both ways. */
#ifndef SLSTM_STEPS_H
#define SLSTM_STEPS_H

#include "convolution.h"
#include "product.h"

#define TILE ROWS /* sequences at a time: the rows of one recurrent product */

/* Rows are step-major, t·count + sequence. A row of states is [H,D] with D padded to whole vectors, Q floats; one of
   gates is [4,Q] in the order i, f, z, o. Packed weights are [4,H], each D×padded(D). */
struct slstm_shape {
    long sequences, steps, width, heads, kernel;
};

struct slstm_packed {
    float *norm, *taps, *bias, *scale;
    float *gates, *recurrence;           /* forward */
    float *gates_back, *recurrence_back; /* backward */
};

struct slstm_sums {
    float *norm, *taps, *conv_bias, *gates, *recurrence, *bias, *scale;
};

struct slstm_scratch {
    float *normed, *mean, *rstd, *before, *squashed, *convolved; /* [rows,E] */
    float *gates;                                                /* [rows,4Q], then what became of them, then their gradients */
    float *reads, *states, *dstates;                             /* [rows,Q] */
    float *log_weight, *dread;                                   /* [count,Q] */
    float *head;                                                 /* [D] */
    struct slstm_sums sums;
    long sums_size;
};

INLINE long head_width(const struct slstm_shape *s) { return s->width / s->heads; }
INLINE long row_width(const struct slstm_shape *s) { return s->heads * padded(head_width(s)); }

/* C [rows,·] += A·W for one gate, all heads; a head of A is `from` floats wide, one of C `to`. */
static void by_head(const struct slstm_shape *s, long rows, const float *a, long ai, long from, const float *packed,
                    float *c, long ci, int add) {
    long D = head_width(s), W = padded(D);
    for (long h = 0; h < s->heads; h++)
        multiply(rows, D, a + h * from, ai, packed + h * D * W, c + h * W, ci, D, add);
}

/* Sums [H,D,padded D] += Aᵀ·dG for one gate. */
static void add_by_head(const struct slstm_shape *s, long rows, const float *a, long ai, long from, const float *d,
                        long di, float *sums) {
    long D = head_width(s), W = padded(D);
    for (long h = 0; h < s->heads; h++)
        add_outer(rows, a + h * from, ai, D, d + h * W, di, D, sums + h * D * W, W);
}

/* One step of one sequence. The gates turn into what the backward pass wants: share, slope of log f, tanh z, σ(o).
   With c, n and m of the paper, read is c/n and log_weight is log n + m. */
INLINE void step_row(long Q, int first, const float *bias, float *gates, const float *past, float *read, float *state,
                     float *log_weight) {
    float *i = gates, *f = gates + Q, *z = gates + 2 * Q, *o = gates + 3 * Q;
    if (first) {
        /* Nothing is remembered yet: the first value is the whole memory. */
        SIMD
        for (long c = 0; c < Q; c++) {
            log_weight[c] = i[c] + bias[c];
            i[c] = 1.0f;
            f[c] = 0.0f;
            z[c] = read[c] = tanh_(z[c] + bias[2 * Q + c]);
            o[c] = sigmoid_(o[c] + bias[3 * Q + c]);
            state[c] = o[c] * read[c];
        }
        return;
    }
    SIMD
    for (long c = 0; c < Q; c++) {
        float input = i[c] + bias[c], slope, rest;
        /* How far the newcomer's weight exceeds the memory's, both as logarithms. */
        float ahead = input + softplus_(-(f[c] + bias[Q + c]), &slope) - log_weight[c];
        log_weight[c] = input + softplus_(-ahead, &rest);
        float share = 1.0f - rest, value = tanh_(z[c] + bias[2 * Q + c]);
        i[c] = share;
        f[c] = slope;
        z[c] = value;
        o[c] = sigmoid_(o[c] + bias[3 * Q + c]);
        read[c] = past[c] + share * (value - past[c]);
        state[c] = o[c] * read[c];
    }
}

/* The same backwards; what became of the gates turns into their gradients. */
INLINE void step_row_back(long Q, int first, float *gates, const float *past, const float *read, const float *state,
                          const float *dstate, float *dread, float *dlog) {
    float *i = gates, *f = gates + Q, *z = gates + 2 * Q, *o = gates + 3 * Q;
    if (first) {
        SIMD
        for (long c = 0; c < Q; c++) {
            float d = dread[c] + dstate[c] * o[c];
            o[c] = dstate[c] * state[c] * (1.0f - o[c]);
            z[c] = d * (1.0f - z[c] * z[c]);
            i[c] = dlog[c];
            f[c] = 0.0f;
        }
        return;
    }
    SIMD
    for (long c = 0; c < Q; c++) {
        float share = i[c], d = dread[c] + dstate[c] * o[c];
        o[c] = dstate[c] * state[c] * (1.0f - o[c]);
        z[c] = d * share * (1.0f - z[c] * z[c]);
        /* The read moved from the last one by share·(value − last): the last one keeps 1 − share of it, which is
           also what the move still had to gain from a larger share. */
        d -= d * share;
        float gain = (read[c] - past[c]) * d + dlog[c] * share, left = dlog[c] - gain;
        i[c] = gain;
        f[c] = left * f[c];
        dread[c] = d;
        dlog[c] = left;
    }
}

/* From normed inputs to states. */
static void recur(const struct slstm_shape *s, const struct slstm_packed *p, const float *conv_bias,
                  struct slstm_scratch *m, long count) {
    long T = s->steps, E = s->width, D = head_width(s), W = padded(D), Q = row_width(s), G = 4 * Q;
    long gate = s->heads * D * W, rows = T * count;
    for (long r = 0; r < rows; r++)
        convolve_row(r / count, count * E, E, s->kernel, m->normed + r * E, p->taps, conv_bias, m->before + r * E,
                     m->squashed + r * E, m->convolved + r * E);
    for (int g = 0; g < 4; g++)
        by_head(s, rows, g < 2 ? m->convolved : m->normed, E, D, p->gates + g * gate, m->gates + g * Q, G, 0);
    for (long t = 0; t < T; t++) {
        long at = t * count;
        if (t)
            for (int g = 0; g < 4; g++)
                by_head(s, count, m->states + (at - count) * Q, Q, W, p->recurrence + g * gate,
                        m->gates + at * G + g * Q, G, 1);
        for (long n = 0; n < count; n++) {
            long r = at + n;
            step_row(Q, t == 0, p->bias, m->gates + r * G, m->reads + (r - count) * Q, m->reads + r * Q,
                     m->states + r * Q, m->log_weight + n * Q);
        }
    }
}

/* Channels of all heads side by side again, in place; a no-op where heads fill vectors. */
INLINE void close_up(const struct slstm_shape *s, float *row) {
    long D = head_width(s), W = padded(D);
    for (long h = 1; W > D && h < s->heads; h++) memmove(row + h * D, row + h * W, (size_t)D * 4);
}

/* From dstates to the gradients of the normed inputs, which take the place of the reads; the weights' to the sums. */
static void recur_back(const struct slstm_shape *s, const struct slstm_packed *p, struct slstm_scratch *m,
                       long count) {
    long T = s->steps, E = s->width, D = head_width(s), W = padded(D), Q = row_width(s), G = 4 * Q;
    long gate = s->heads * D * W, rows = T * count;
    float *dlog = m->log_weight;
    memset(dlog, 0, (size_t)(count * Q) * 4);
    memset(m->dread, 0, (size_t)(count * Q) * 4);
    for (long t = T - 1; t >= 0; t--) {
        long at = t * count;
        if (t < T - 1)
            for (int g = 0; g < 4; g++)
                by_head(s, count, m->gates + (at + count) * G + g * Q, G, W, p->recurrence_back + g * gate,
                        m->dstates + at * Q, Q, 1);
        for (long n = 0; n < count; n++) {
            long r = at + n;
            step_row_back(Q, t == 0, m->gates + r * G, m->reads + (r - count) * Q, m->reads + r * Q,
                          m->states + r * Q, m->dstates + r * Q, m->dread + n * Q, dlog + n * Q);
        }
    }
    for (long r = 0; r < rows; r++) {
        const float *d = m->gates + r * G;
        SIMD
        for (long c = 0; c < G; c++) m->sums.bias[c] += d[c];
    }
    float *dconvolved = m->dstates, *dnormed = m->reads;
    for (int g = 0; g < 4; g++) {
        const float *d = m->gates + g * Q;
        add_by_head(s, rows - count, m->states, Q, W, d + count * G, G, m->sums.recurrence + g * gate);
        add_by_head(s, rows, g < 2 ? m->convolved : m->normed, E, D, d, G, m->sums.gates + g * gate);
        by_head(s, rows, d, G, W, p->gates_back + g * gate, g < 2 ? dconvolved : dnormed, Q, g % 2);
    }
    for (long r = 0; r < rows; r++) {
        close_up(s, dconvolved + r * Q);
        close_up(s, dnormed + r * Q);
        unsquash_row(E, m->before + r * E, m->squashed + r * E, dconvolved + r * Q);
        convolve_row_back(r / count, count * E, E, s->kernel, m->normed + r * E, dconvolved + r * Q, p->taps,
                          dnormed + r * Q, count * Q, m->sums.taps, m->sums.conv_bias);
    }
}

#endif
