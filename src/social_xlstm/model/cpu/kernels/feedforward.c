/* The gated feed-forward half of the sLSTM block, norm to residual. */
#include "product.h"
#include "tiles.h"

#define TILE_ROWS 96

struct ffn_shape {
    long sequences, steps, width, expanded;
};

/* As the modules have them: the norm's difference from one [E], [2F,E] and [E,F]. */
struct ffn_weights {
    float *norm, *up, *down;
};

struct ffn_packed {
    float *norm, *up, *down, *up_back, *down_back;
};

struct ffn_scratch {
    float *normed, *branch, *mean, *rstd, *both, *gated, *dgated, *dboth;
    struct ffn_weights sums;
    long sums_size;
};

static _Thread_local struct arena ffn_packed_memory, ffn_scratch_memory;

static void place_packed(struct arena *a, const struct ffn_shape *s, struct ffn_packed *f) {
    long E = s->width, F = s->expanded, P = padded(E);
    f->norm = take(a, E);
    f->up = take(a, E * 2 * F);
    f->down = take(a, F * P);
    f->up_back = take(a, 2 * F * P);
    f->down_back = take(a, E * F);
}

static int ready_weights(const struct ffn_shape *s, const struct ffn_weights *w, struct ffn_packed *f, int backward) {
    long E = s->width, F = s->expanded;
    struct arena *a = &ffn_packed_memory, plan = {NULL, 0, 0};
    place_packed(&plan, s, f);
    a->used = plan.used;
    if (!reserve(a)) return 0;
    a->used = 0;
    place_packed(a, s, f);
    for (long c = 0; c < E; c++) f->norm[c] = 1.0f + w->norm[c];
    pack(w->up, 1, E, E, 2 * F, f->up);
    pack(w->down, 1, F, F, E, f->down);
    if (backward) {
        pack(w->up, E, 1, 2 * F, E, f->up_back);
        pack(w->down, F, 1, E, F, f->down_back);
    }
    return 1;
}

static void place_scratch(struct arena *a, const struct ffn_shape *s, struct ffn_scratch *m) {
    long P = padded(s->width), F = s->expanded;
    m->normed = take(a, TILE_ROWS * P);
    m->branch = take(a, TILE_ROWS * P);
    m->mean = take(a, TILE_ROWS);
    m->rstd = take(a, TILE_ROWS);
    m->both = take(a, TILE_ROWS * 2 * F);
    m->gated = take(a, TILE_ROWS * F);
    m->dgated = take(a, TILE_ROWS * F);
    m->dboth = take(a, TILE_ROWS * 2 * F);
    size_t before = a->used;
    m->sums.norm = take(a, P);
    m->sums.up = take(a, 2 * F * P);
    m->sums.down = take(a, s->width * F);
    m->sums_size = (long)(a->used - before);
}

static int prepare(const struct ffn_shape *s, struct ffn_scratch *m) {
    struct arena *a = &ffn_scratch_memory, plan = {NULL, 0, 0};
    place_scratch(&plan, s, m);
    a->used = plan.used;
    if (!reserve(a)) return 0;
    a->used = 0;
    place_scratch(a, s, m);
    return 1;
}

static void expand(const struct ffn_shape *s, const struct ffn_packed *f, struct ffn_scratch *m, const float *x,
                   long rows) {
    long E = s->width, P = padded(E), F = s->expanded;
    for (long r = 0; r < rows; r++) normalize(x + r * E, E, f->norm, m->normed + r * P, m->mean + r, m->rstd + r);
    multiply(rows, E, m->normed, P, f->up, m->both, 2 * F, 2 * F, 0);
}

static void tile_forward(const struct ffn_shape *s, const struct ffn_packed *f, struct ffn_scratch *m, const float *x,
                         long rows, float *out) {
    long E = s->width, P = padded(E), F = s->expanded;
    expand(s, f, m, x, rows);
    for (long r = 0; r < rows; r++) {
        const float *gate = m->both + r * 2 * F, *value = gate + F;
        float *gated = m->gated + r * F;
        SIMD
        for (long c = 0; c < F; c++) {
            float density;
            gated[c] = gate[c] * normal_(gate[c], &density) * value[c];
        }
    }
    multiply(rows, F, m->gated, F, f->down, m->branch, P, E, 0);
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < E; c++) out[r * E + c] = x[r * E + c] + m->branch[r * P + c];
}

static void tile_backward(const struct ffn_shape *s, const struct ffn_packed *f, struct ffn_scratch *m, const float *x,
                          const float *dout, long rows, float *dx) {
    long E = s->width, P = padded(E), F = s->expanded;
    expand(s, f, m, x, rows);
    multiply(rows, E, dout, E, f->down_back, m->dgated, F, F, 0);
    for (long r = 0; r < rows; r++) {
        const float *gate = m->both + r * 2 * F, *value = gate + F, *d = m->dgated + r * F;
        float *gated = m->gated + r * F, *dgate = m->dboth + r * 2 * F, *dvalue = dgate + F;
        SIMD
        for (long c = 0; c < F; c++) {
            float density, share = normal_(gate[c], &density), gelu = gate[c] * share;
            gated[c] = gelu * value[c];
            dvalue[c] = d[c] * gelu;
            dgate[c] = d[c] * value[c] * (share + gate[c] * density);
        }
    }
    add_outer(rows, dout, E, E, m->gated, F, F, m->sums.down, F);
    add_outer(rows, m->dboth, 2 * F, 2 * F, m->normed, P, E, m->sums.up, P);
    multiply(rows, 2 * F, m->dboth, 2 * F, f->up_back, m->branch, P, E, 0);
    for (long r = 0; r < rows; r++)
        normalize_back(m->branch + r * P, x + r * E, E, f->norm, m->mean[r], m->rstd[r], dout + r * E, dx + r * E,
                       m->sums.norm);
}

/* out [M,T,E] = x + ffn(norm(x)). There is no dropout here; the argument makes all blocks' calls alike.
   Returns 0, or 1 where memory ran out. */
int ffn_forward(const struct ffn_shape *s, const struct ffn_weights *w, const float *x, const float *mask, float *out,
                int threads) {
    (void)mask;
    long rows = s->sequences * s->steps;
    struct ffn_packed f;
    int failed = !ready_weights(s, w, &f, 0);
    OVER_TILES(struct ffn_scratch, prepare(s, &m), NOTHING, rows, TILE_ROWS,
               tile_forward(s, &f, &m, x + n * s->width, count, out + n * s->width), NOTHING)
    return failed;
}

/* The gradients of ffn_forward: by x to dx, by the weights to d. */
int ffn_backward(const struct ffn_shape *s, const struct ffn_weights *w, const float *x, const float *mask,
                 const float *dout, float *dx, const struct ffn_weights *d, int threads) {
    (void)mask;
    long rows = s->sequences * s->steps;
    struct ffn_packed f;
    int failed = !ready_weights(s, w, &f, 1);
    long E = s->width, P = padded(E), F = s->expanded;
    float *sums[threads];
    struct ffn_weights whole;
    OVER_TILES(struct ffn_scratch, prepare(s, &m), {
        start_sums(sums, m.sums.norm, m.sums_size);
        if (omp_get_thread_num() == 0) whole = m.sums;
    }, rows, TILE_ROWS, tile_backward(s, &f, &m, x + n * E, dout + n * E, count, dx + n * E),
    join_sums(sums, m.sums_size))
    if (failed) return 1;
    memcpy(d->norm, whole.norm, (size_t)E * 4);
    memcpy(d->down, whole.down, (size_t)(E * F) * 4);
    for (long n = 0; n < 2 * F; n++) memcpy(d->up + n * E, whole.up + n * P, (size_t)E * 4);
    return 0;
}
