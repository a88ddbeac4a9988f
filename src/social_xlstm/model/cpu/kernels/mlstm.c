/* The mLSTM block, pre-norm to residual, a few sequences at a time: what lies between two products stays in cache. */
#include "mlstm_memory.h"
#include "tiles.h"

/* Rows of a product at a time: weights are read from the second-level cache once for so many. */
#define TILE_ROWS 96

struct mlstm_scratch {
    float *normed, *branch, *dbranch, *mean, *rstd, *up, *dup, *gated, *dgated;
    struct mlstm_sequence sequence;
    struct mlstm_sums sums;
    float *first_sum;
    long sums_size;
};

static _Thread_local struct arena mlstm_folded_memory, mlstm_scratch_memory;

static long tile_sequences(const struct mlstm_shape *s) {
    long n = TILE_ROWS / s->steps;
    return n < 1 ? 1 : n;
}

static void place_scratch(struct arena *a, const struct mlstm_shape *s, struct mlstm_scratch *w, int backward) {
    long rows = tile_sequences(s) * s->steps, P = padded(s->width), I = s->inner;
    w->normed = take(a, rows * P);
    w->branch = take(a, rows * P);
    w->mean = take(a, rows);
    w->rstd = take(a, rows);
    w->up = take(a, rows * 2 * I);
    w->gated = take(a, rows * I);
    mlstm_place_sequence(a, s, &w->sequence);
    if (!backward) return;
    w->dbranch = take(a, rows * P);
    w->dup = take(a, rows * 2 * I);
    w->dgated = take(a, rows * I);
    size_t before = a->used;
    mlstm_place_sums(a, s, &w->sums);
    w->first_sum = w->sums.norm;
    w->sums_size = (long)(a->used - before);
}

static int prepare(const struct mlstm_shape *s, struct mlstm_scratch *w, int backward) {
    struct arena *a = &mlstm_scratch_memory, plan = {NULL, 0, 0};
    place_scratch(&plan, s, w, backward);
    a->used = plan.used;
    if (!reserve(a)) return 0;
    a->used = 0;
    place_scratch(a, s, w, backward);
    return 1;
}

static int fold(const struct mlstm_shape *s, const struct mlstm_weights *w, struct mlstm_folded *f, int backward) {
    struct arena *a = &mlstm_folded_memory, plan = {NULL, 0, 0};
    mlstm_place_folded(&plan, s, f);
    a->used = plan.used;
    if (!reserve(a)) return 0;
    a->used = 0;
    mlstm_place_folded(a, s, f);
    mlstm_fold(s, w, f, backward);
    return 1;
}

/* gated = (normed read·scale + skip·convolved)·silu(z), one sequence. */
static void gate_output(const struct mlstm_shape *s, const struct mlstm_folded *f, const struct mlstm_weights *w,
                        const float *up, const struct mlstm_sequence *q, float *gated) {
    long I = s->inner;
    for (long t = 0; t < s->steps; t++) {
        const float *z = up + t * 2 * I + I, *read = q->read + t * I, *convolved = q->convolved + t * I;
        float *to = gated + t * I;
        SIMD
        for (long c = 0; c < I; c++)
            to[c] = (read[c] * f->read[c] + w->skip[c] * convolved[c]) * z[c] * sigmoid_(z[c]);
    }
}

/* Back through the output gate: dz, the gradients of the normed read and (so far) of the convolved input. */
static void gate_output_back(const struct mlstm_shape *s, const struct mlstm_folded *f, const struct mlstm_weights *w,
                             const float *up, struct mlstm_sequence *q, const float *dgated, float *gated, float *dup,
                             const struct mlstm_sums *g) {
    long I = s->inner;
    for (long t = 0; t < s->steps; t++) {
        const float *z = up + t * 2 * I + I, *read = q->read + t * I, *convolved = q->convolved + t * I;
        const float *d = dgated + t * I;
        float *dz = dup + t * 2 * I + I, *to = gated + t * I;
        float *dread = q->dread + t * I, *dconvolved = q->dconvolved + t * I;
        SIMD
        for (long c = 0; c < I; c++) {
            float squashed = sigmoid_(z[c]), gate = z[c] * squashed;
            float ungated = read[c] * f->read[c] + w->skip[c] * convolved[c];
            float du = d[c] * gate;
            to[c] = ungated * gate;
            dz[c] = d[c] * ungated * (squashed + gate * (1.0f - squashed));
            g->skip[c] += du * convolved[c];
            g->read[c] += du * read[c];
            dconvolved[c] = du * w->skip[c];
            dread[c] = du * f->read[c];
        }
    }
}

static void tile_forward(const struct mlstm_shape *s, const struct mlstm_folded *f, const struct mlstm_weights *w,
                         struct mlstm_scratch *m, const float *x, const float *mask, long count, float *out) {
    long T = s->steps, E = s->width, I = s->inner, P = padded(E), rows = count * T;
    for (long r = 0; r < rows; r++) normalize(x + r * E, E, f->norm, m->normed + r * P, m->mean + r, m->rstd + r);
    multiply(rows, E, m->normed, P, f->up, m->up, 2 * I, 2 * I, 0);
    for (long n = 0; n < count; n++) {
        const float *up = m->up + n * T * 2 * I;
        mlstm_remember(s, f, w, up, &m->sequence);
        gate_output(s, f, w, up, &m->sequence, m->gated + n * T * I);
    }
    multiply(rows, I, m->gated, I, f->down, m->branch, P, E, 0);
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < E; c++)
            out[r * E + c] = x[r * E + c] + m->branch[r * P + c] * (mask ? mask[r * E + c] : 1.0f);
}

static void tile_backward(const struct mlstm_shape *s, const struct mlstm_folded *f, const struct mlstm_weights *w,
                          struct mlstm_scratch *m, const float *x, const float *mask, const float *dout, long count,
                          float *dx) {
    long T = s->steps, E = s->width, I = s->inner, P = padded(E), rows = count * T;
    const struct mlstm_sums *g = &m->sums;
    for (long r = 0; r < rows; r++) normalize(x + r * E, E, f->norm, m->normed + r * P, m->mean + r, m->rstd + r);
    const float *dbranch = dout;
    multiply(rows, E, m->normed, P, f->up, m->up, 2 * I, 2 * I, 0);
    if (mask) {
        for (long i = 0; i < rows * E; i++) m->dbranch[i] = dout[i] * mask[i];
        dbranch = m->dbranch;
    }
    multiply(rows, E, dbranch, E, f->down_back, m->dgated, I, I, 0);
    for (long n = 0; n < count; n++) {
        const float *up = m->up + n * T * 2 * I;
        float *dup = m->dup + n * T * 2 * I;
        mlstm_remember(s, f, w, up, &m->sequence);
        gate_output_back(s, f, w, up, &m->sequence, m->dgated + n * T * I, m->gated + n * T * I, dup, g);
        mlstm_remember_back(s, f, up, &m->sequence, dup, g);
    }
    add_outer(rows, dbranch, E, E, m->gated, I, I, g->down, I);
    add_outer(rows, m->dup, 2 * I, 2 * I, m->normed, P, E, g->up, P);
    multiply(rows, 2 * I, m->dup, 2 * I, f->up_back, m->branch, P, E, 0);
    for (long r = 0; r < rows; r++)
        normalize_back(m->branch + r * P, x + r * E, E, f->norm, m->mean[r], m->rstd[r], dout + r * E, dx + r * E,
                       g->norm);
}

/* out [M,T,E] = x + mask·block(x); mask may be NULL. Returns 0, or 1 where memory ran out. */
int mlstm_forward(const struct mlstm_shape *s, const struct mlstm_weights *w, const float *x, const float *mask,
                  float *out, int threads) {
    struct mlstm_folded f;
    int failed = !fold(s, w, &f, 0);
    long tile = tile_sequences(s), rows = s->steps;
    OVER_TILES(struct mlstm_scratch, prepare(s, &m, 0), NOTHING, s->sequences, tile, {
        long at = n * rows * s->width;
        tile_forward(s, &f, w, &m, x + at, mask ? mask + at : NULL, count, out + at);
    }, NOTHING)
    return failed;
}

/* The gradients of mlstm_forward: by x to dx, by the weights to d. */
int mlstm_backward(const struct mlstm_shape *s, const struct mlstm_weights *w, const float *x, const float *mask,
                   const float *dout, float *dx, const struct mlstm_weights *d, int threads) {
    struct mlstm_folded f;
    int failed = !fold(s, w, &f, 1);
    long tile = tile_sequences(s), rows = s->steps;
    float *sums[threads];
    struct mlstm_sums whole;
    OVER_TILES(struct mlstm_scratch, prepare(s, &m, 1), {
        start_sums(sums, m.first_sum, m.sums_size);
        if (omp_get_thread_num() == 0) whole = m.sums;
    }, s->sequences, tile, {
        long at = n * rows * s->width;
        tile_backward(s, &f, w, &m, x + at, mask ? mask + at : NULL, dout + at, count, dx + at);
    }, join_sums(sums, m.sums_size))
    if (!failed) mlstm_unfold(s, w, &whole, d);
    return failed;
}
