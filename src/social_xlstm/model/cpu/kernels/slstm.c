/* The sLSTM half of the sLSTM block, norm to residual, a few sequences at a time. */
#include "slstm_steps.h"
#include "tiles.h"

/* As the module has them; the order is that of slstm.py. The matrices [H,D,D] drive the gates i, f, z and o. */
struct slstm_weights {
    float *norm, *taps, *conv_bias, *matrix[4], *recurrence, *bias, *scale;
};

static _Thread_local struct arena slstm_packed_memory, slstm_scratch_memory;

static void place_packed(struct arena *a, const struct slstm_shape *s, struct slstm_packed *p) {
    long matrices = 4 * s->heads * head_width(s) * padded(head_width(s));
    p->norm = take(a, s->width);
    p->taps = take(a, s->kernel * s->width);
    p->bias = take(a, 4 * row_width(s));
    p->scale = take(a, s->width);
    float **packed[] = {&p->gates, &p->recurrence, &p->gates_back, &p->recurrence_back};
    for (int i = 0; i < 4; i++) *packed[i] = take(a, matrices);
}

static int ready_weights(const struct slstm_shape *s, const struct slstm_weights *w, struct slstm_packed *p) {
    long E = s->width, H = s->heads, D = head_width(s), W = padded(D), Q = row_width(s);
    struct arena *a = &slstm_packed_memory, plan = {NULL, 0, 0};
    place_packed(&plan, s, p);
    a->used = plan.used;
    if (!reserve(a)) return 0;
    a->used = 0;
    place_packed(a, s, p);
    for (long c = 0; c < E; c++) {
        p->norm[c] = 1.0f + w->norm[c];
        p->scale[c] = 1.0f + w->scale[c];
    }
    turn_taps(w->taps, E, s->kernel, p->taps);
    memset(p->bias, 0, (size_t)(4 * Q) * 4);
    for (long g = 0; g < 4; g++)
        for (long h = 0; h < H; h++) {
            long at = (g * H + h) * D * W;
            const float *matrix = w->matrix[g] + h * D * D, *recurrence = w->recurrence + (h * 4 + g) * D * D;
            pack(matrix, 1, D, D, D, p->gates + at);
            pack(matrix, D, 1, D, D, p->gates_back + at);
            pack(recurrence, 1, D, D, D, p->recurrence + at);
            pack(recurrence, D, 1, D, D, p->recurrence_back + at);
            memcpy(p->bias + g * Q + h * W, w->bias + g * E + h * D, (size_t)D * 4);
        }
    return 1;
}

static void place_scratch(struct arena *a, const struct slstm_shape *s, struct slstm_scratch *m) {
    long rows = TILE * s->steps, E = s->width, Q = row_width(s);
    long matrices = 4 * s->heads * head_width(s) * padded(head_width(s));
    float **narrow[] = {&m->normed, &m->before, &m->squashed, &m->convolved};
    for (int i = 0; i < 4; i++) *narrow[i] = take(a, rows * E);
    m->mean = take(a, rows);
    m->rstd = take(a, rows);
    m->gates = take(a, rows * 4 * Q);
    float **states[] = {&m->reads, &m->states, &m->dstates};
    for (int i = 0; i < 3; i++) *states[i] = take(a, rows * Q);
    m->log_weight = take(a, TILE * Q);
    m->dread = take(a, TILE * Q);
    m->head = take(a, head_width(s));
    size_t before = a->used;
    m->sums.norm = take(a, E);
    m->sums.taps = take(a, s->kernel * E);
    m->sums.conv_bias = take(a, E);
    m->sums.gates = take(a, matrices);
    m->sums.recurrence = take(a, matrices);
    m->sums.bias = take(a, 4 * Q);
    m->sums.scale = take(a, E);
    m->sums_size = (long)(a->used - before);
}

static int prepare(const struct slstm_shape *s, struct slstm_scratch *m) {
    struct arena *a = &slstm_scratch_memory, plan = {NULL, 0, 0};
    place_scratch(&plan, s, m);
    a->used = plan.used;
    if (!reserve(a)) return 0;
    a->used = 0;
    place_scratch(a, s, m);
    return 1;
}

/* The state of one head as its norm sees it, behind dropout. */
INLINE void dropped(const float *state, const float *mask, long D, float *to) {
    SIMD
    for (long c = 0; c < D; c++) to[c] = mask ? state[c] * mask[c] : state[c];
}

static void run_forward(const struct slstm_shape *s, const struct slstm_packed *p, const float *conv_bias,
                        struct slstm_scratch *m, const float *x, long count) {
    long T = s->steps, E = s->width;
    for (long n = 0; n < count; n++)
        for (long t = 0; t < T; t++) {
            long r = t * count + n;
            normalize(x + (n * T + t) * E, E, p->norm, m->normed + r * E, m->mean + r, m->rstd + r);
        }
    recur(s, p, conv_bias, m, count);
}

static void tile_forward(const struct slstm_shape *s, const struct slstm_packed *p, const float *conv_bias,
                         struct slstm_scratch *m, const float *x, const float *mask, long count, float *out) {
    long T = s->steps, E = s->width, D = head_width(s), W = padded(D), Q = row_width(s);
    float mean, rstd;
    run_forward(s, p, conv_bias, m, x, count);
    for (long n = 0; n < count; n++)
        for (long t = 0; t < T; t++)
            for (long h = 0; h < s->heads; h++) {
                long at = (n * T + t) * E + h * D;
                dropped(m->states + (t * count + n) * Q + h * W, mask ? mask + at : NULL, D, m->head);
                normalize(m->head, D, p->scale + h * D, out + at, &mean, &rstd);
                SIMD
                for (long c = 0; c < D; c++) out[at + c] += x[at + c];
            }
}

static void tile_backward(const struct slstm_shape *s, const struct slstm_packed *p, const float *conv_bias,
                          struct slstm_scratch *m, const float *x, const float *mask, const float *dout, long count,
                          float *dx) {
    long T = s->steps, E = s->width, D = head_width(s), W = padded(D), Q = row_width(s);
    float mean, rstd;
    run_forward(s, p, conv_bias, m, x, count);
    for (long n = 0; n < count; n++)
        for (long t = 0; t < T; t++)
            for (long h = 0; h < s->heads; h++) {
                long at = (n * T + t) * E + h * D;
                float *to = m->dstates + (t * count + n) * Q + h * W;
                dropped(m->states + (t * count + n) * Q + h * W, mask ? mask + at : NULL, D, m->head);
                normalize(m->head, D, p->scale + h * D, to, &mean, &rstd);
                memset(to, 0, (size_t)W * 4);
                normalize_back(dout + at, m->head, D, p->scale + h * D, mean, rstd, to, to, m->sums.scale + h * D);
                if (mask)
                    for (long c = 0; c < D; c++) to[c] *= mask[at + c];
            }
    recur_back(s, p, m, count);
    for (long n = 0; n < count; n++)
        for (long t = 0; t < T; t++) {
            long at = (n * T + t) * E, r = t * count + n;
            normalize_back(m->reads + r * Q, x + at, E, p->norm, m->mean[r], m->rstd[r], dout + at, dx + at,
                           m->sums.norm);
        }
}

static void unpack_gradients(const struct slstm_shape *s, const struct slstm_sums *g, const struct slstm_weights *d) {
    long E = s->width, H = s->heads, D = head_width(s), W = padded(D), Q = row_width(s);
    memcpy(d->norm, g->norm, (size_t)E * 4);
    memcpy(d->conv_bias, g->conv_bias, (size_t)E * 4);
    memcpy(d->scale, g->scale, (size_t)E * 4);
    for (long c = 0; c < E; c++)
        for (long k = 0; k < s->kernel; k++) d->taps[c * s->kernel + k] = g->taps[k * E + c];
    for (long gate = 0; gate < 4; gate++)
        for (long h = 0; h < H; h++) {
            long at = (gate * H + h) * D * W;
            memcpy(d->bias + gate * E + h * D, g->bias + gate * Q + h * W, (size_t)D * 4);
            for (long i = 0; i < D; i++)
                for (long o = 0; o < D; o++) {
                    d->matrix[gate][h * D * D + o * D + i] = g->gates[at + i * W + o];
                    d->recurrence[(h * 4 + gate) * D * D + o * D + i] = g->recurrence[at + i * W + o];
                }
        }
}

/* out [M,T,E] = x + norm by head(mask·states(norm(x))); mask may be NULL. Returns 0, or 1 where memory ran out. */
int slstm_forward(const struct slstm_shape *s, const struct slstm_weights *w, const float *x, const float *mask,
                  float *out, int threads) {
    struct slstm_packed p;
    int failed = !ready_weights(s, w, &p);
    long sequence = s->steps * s->width;
    OVER_TILES(struct slstm_scratch, prepare(s, &m), NOTHING, s->sequences, TILE, {
        long at = n * sequence;
        tile_forward(s, &p, w->conv_bias, &m, x + at, mask ? mask + at : NULL, count, out + at);
    }, NOTHING)
    return failed;
}

/* The gradients of slstm_forward: by x to dx, by the weights to d. */
int slstm_backward(const struct slstm_shape *s, const struct slstm_weights *w, const float *x, const float *mask,
                   const float *dout, float *dx, const struct slstm_weights *d, int threads) {
    struct slstm_packed p;
    int failed = !ready_weights(s, w, &p);
    long sequence = s->steps * s->width;
    float *sums[threads];
    struct slstm_sums whole;
    OVER_TILES(struct slstm_scratch, prepare(s, &m), {
        start_sums(sums, m.sums.norm, m.sums_size);
        if (omp_get_thread_num() == 0) whole = m.sums;
    }, s->sequences, TILE, {
        long at = n * sequence;
        tile_backward(s, &p, w->conv_bias, &m, x + at, mask ? mask + at : NULL, dout + at, count, dx + at);
    }, join_sums(sums, m.sums_size))
    if (!failed) unpack_gradients(s, &whole, d);
    return failed;
}
