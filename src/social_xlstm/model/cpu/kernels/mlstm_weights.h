/* The mLSTM block's weights as they come, as its passes want them, and their gradients back. */
#ifndef MLSTM_WEIGHTS_H
#define MLSTM_WEIGHTS_H

#include "blocks.h"
#include "convolution.h"
#include "product.h"

struct mlstm_shape {
    long sequences, steps, width, inner, heads, kernel, block;
};

/* As the module has them; the order is that of mlstm.py. */
struct mlstm_weights {
    float *norm, *up, *taps, *conv_bias, *q, *k, *v, *igate, *fgate, *igate_bias, *fgate_bias, *read, *skip, *down;
};

/* Folded: queries into keys (scores are c·score·cᵀ), all three projections into the gates. */
struct mlstm_folded {
    float *norm;                     /* [E] */
    float *up, *down;                /* packed, forward */
    float *up_back, *down_back;      /* packed, backward */
    float *taps;                     /* [kernel,I] */
    float *score, *value;            /* spread, [b,I] */
    float *score_back, *value_back;  /* spread, [b,I] */
    float *of_convolved, *of_input;  /* [2H,I] */
    float *convolved_gates, *input_gates; /* the same, packed */
    float *read;                     /* [I] */
};

/* What one thread sums up; the same quantities. */
struct mlstm_sums {
    float *norm, *up, *taps, *conv_bias, *score, *value, *of_convolved, *of_input, *gate_bias, *read, *skip, *down;
};

static void mlstm_place_folded(struct arena *a, const struct mlstm_shape *s, struct mlstm_folded *f) {
    long E = s->width, I = s->inner, G = 2 * s->heads;
    f->norm = take(a, E);
    f->up = take(a, E * 2 * I);
    f->down = take(a, I * padded(E));
    f->up_back = take(a, 2 * I * padded(E));
    f->down_back = take(a, E * I);
    f->taps = take(a, s->kernel * I);
    f->score = take(a, s->block * I);
    f->value = take(a, s->block * I);
    f->score_back = take(a, s->block * I);
    f->value_back = take(a, s->block * I);
    f->of_convolved = take(a, G * I);
    f->of_input = take(a, G * I);
    f->convolved_gates = take(a, padded(G) * I);
    f->input_gates = take(a, padded(G) * I);
    f->read = take(a, I);
}

/* Returns the first float behind the sums, for zeroing and adding them all at once. */
static void mlstm_place_sums(struct arena *a, const struct mlstm_shape *s, struct mlstm_sums *g) {
    long E = s->width, I = s->inner, G = 2 * s->heads;
    g->norm = take(a, E);
    g->up = take(a, 2 * I * padded(E));
    g->taps = take(a, s->kernel * I);
    g->conv_bias = take(a, I);
    g->score = take(a, s->block * I);
    g->value = take(a, s->block * I);
    g->of_convolved = take(a, G * I);
    g->of_input = take(a, G * I);
    g->gate_bias = take(a, G);
    g->read = take(a, I);
    g->skip = take(a, I);
    g->down = take(a, E * I);
}

INLINE const float *gate_row(const struct mlstm_shape *s, const struct mlstm_weights *w, long gate) {
    long H = s->heads;
    return gate < H ? w->igate + gate * 3 * s->inner : w->fgate + (gate - H) * 3 * s->inner;
}

static void mlstm_fold(const struct mlstm_shape *s, const struct mlstm_weights *w, struct mlstm_folded *f,
                       int backward) {
    long E = s->width, I = s->inner, b = s->block, G = 2 * s->heads;
    float root = sqrtf((float)(I / s->heads));
    for (long c = 0; c < E; c++) f->norm[c] = 1.0f + w->norm[c];
    for (long c = 0; c < I; c++) f->read[c] = 1.0f + w->read[c];
    pack(w->up, 1, E, E, 2 * I, f->up);
    pack(w->down, 1, I, I, E, f->down);
    if (backward) {
        pack(w->up, E, 1, 2 * I, E, f->up_back);
        pack(w->down, I, 1, E, I, f->down_back);
    }
    turn_taps(w->taps, I, s->kernel, f->taps);
    memset(f->of_convolved, 0, (size_t)(G * I) * 4);
    memset(f->of_input, 0, (size_t)(G * I) * 4);
    for (long first = 0; first < I; first += b) {
        const float *q = w->q + first * b, *k = w->k + first * b, *v = w->v + first * b;
        for (long i = 0; i < b; i++)
            for (long j = 0; j < b; j++) {
                float sum = 0.0f;
                for (long o = 0; o < b; o++) sum += q[o * b + i] * k[o * b + j];
                f->score[i * I + first + j] = f->score_back[j * I + first + i] = sum / root;
                f->value[i * I + first + j] = f->value_back[j * I + first + i] = v[j * b + i];
            }
        for (long g = 0; g < G; g++) {
            const float *row = gate_row(s, w, g) + first;
            for (long o = 0; o < b; o++)
                for (long i = 0; i < b; i++) {
                    f->of_convolved[g * I + first + i] += row[o] * q[o * b + i] + row[I + o] * k[o * b + i];
                    f->of_input[g * I + first + i] += row[2 * I + o] * v[o * b + i];
                }
        }
    }
    pack(f->of_convolved, 1, I, I, G, f->convolved_gates);
    pack(f->of_input, 1, I, I, G, f->input_gates);
}

/* The gradients of the weights as they come. */
static void mlstm_unfold(const struct mlstm_shape *s, const struct mlstm_weights *w, const struct mlstm_sums *g,
                         const struct mlstm_weights *d) {
    long E = s->width, I = s->inner, b = s->block, H = s->heads, P = padded(E);
    float root = sqrtf((float)(I / H));
    memcpy(d->norm, g->norm, (size_t)E * 4);
    for (long n = 0; n < 2 * I; n++) memcpy(d->up + n * E, g->up + n * P, (size_t)E * 4);
    memcpy(d->down, g->down, (size_t)(E * I) * 4);
    for (long c = 0; c < I; c++)
        for (long k = 0; k < s->kernel; k++) d->taps[c * s->kernel + k] = g->taps[k * I + c];
    memcpy(d->conv_bias, g->conv_bias, (size_t)I * 4);
    memcpy(d->read, g->read, (size_t)I * 4);
    memcpy(d->skip, g->skip, (size_t)I * 4);
    memcpy(d->igate_bias, g->gate_bias, (size_t)H * 4);
    memcpy(d->fgate_bias, g->gate_bias + H, (size_t)H * 4);
    for (long first = 0; first < I; first += b) {
        long at = first * b;
        for (long o = 0; o < b; o++)
            for (long i = 0; i < b; i++) {
                float dq = 0.0f, dk = 0.0f;
                for (long j = 0; j < b; j++) {
                    dq += g->score[i * I + first + j] * w->k[at + o * b + j];
                    dk += g->score[j * I + first + i] * w->q[at + o * b + j];
                }
                d->q[at + o * b + i] = dq / root;
                d->k[at + o * b + i] = dk / root;
                d->v[at + o * b + i] = g->value[i * I + first + o];
            }
        for (long gate = 0; gate < 2 * H; gate++) {
            const float *row = gate_row(s, w, gate) + first;
            float *drow = (float *)gate_row(s, d, gate) + first;
            const float *dc = g->of_convolved + gate * I + first, *di = g->of_input + gate * I + first;
            for (long o = 0; o < b; o++) {
                float of_q = 0.0f, of_k = 0.0f, of_v = 0.0f;
                for (long i = 0; i < b; i++) {
                    long e = at + o * b + i;
                    of_q += dc[i] * w->q[e];
                    of_k += dc[i] * w->k[e];
                    of_v += di[i] * w->v[e];
                    d->q[e] += dc[i] * row[o];
                    d->k[e] += dc[i] * row[I + o];
                    d->v[e] += di[i] * row[2 * I + o];
                }
                drow[o] = of_q;
                drow[I + o] = of_k;
                drow[2 * I + o] = of_v;
            }
        }
    }
}

#endif
