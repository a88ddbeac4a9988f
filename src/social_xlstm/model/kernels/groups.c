/* A block for many sets of weights in one call, each with sequences of its own; a set is never split over threads. */
#include <stddef.h>

/* The blocks' own functions; their structures are the arrays of longs and of addresses given here. */
typedef int forward_of(const long *shape, float *const *weights, const float *x, const float *mask, float *out,
                       int threads);
typedef int backward_of(const long *shape, float *const *weights, const float *x, const float *mask,
                        const float *dout, float *dx, float *const *gradients, int threads);

/* Weight i of all groups lies in one piece, sizes[i] floats for each. */
struct groups {
    long count, weights;
    const long *sizes;
};

static void pick(const struct groups *g, long group, float *const *all, float **own) {
    for (long i = 0; i < g->weights; i++) own[i] = all[i] + group * g->sizes[i];
}

/* Too few groups for all threads: one after another, each by all. */
static int by_groups(const struct groups *g, int threads) { return g->count >= threads; }

/* x, mask and out [groups,M,T,E]. Returns how many groups ran out of memory. */
int groups_forward(forward_of *block, const struct groups *g, const long *shape, float *const *weights, const float *x,
                   const float *mask, float *out, int threads) {
    long size = shape[0] * shape[1] * shape[2];
    int failed = 0, inner = by_groups(g, threads) ? 1 : threads;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : failed) if (inner < threads)
    for (long group = 0; group < g->count; group++) {
        float *own[g->weights];
        long at = group * size;
        pick(g, group, weights, own);
        failed += block(shape, own, x + at, mask ? mask + at : NULL, out + at, inner);
    }
    return failed;
}

/* The gradients of groups_forward: by x to dx, by the weights to those of the same layout. */
int groups_backward(backward_of *block, const struct groups *g, const long *shape, float *const *weights,
                    const float *x, const float *mask, const float *dout, float *dx, float *const *gradients,
                    int threads) {
    long size = shape[0] * shape[1] * shape[2];
    int failed = 0, inner = by_groups(g, threads) ? 1 : threads;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : failed) if (inner < threads)
    for (long group = 0; group < g->count; group++) {
        float *own[g->weights], *gradient[g->weights];
        long at = group * size;
        pick(g, group, weights, own);
        pick(g, group, gradients, gradient);
        failed += block(shape, own, x + at, mask ? mask + at : NULL, dout + at, dx + at, gradient, inner);
    }
    return failed;
}
