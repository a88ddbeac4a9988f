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

/* Each thread takes whole groups. Too few for all threads: one after another, each by all, and outside of any parallel
 * region, for inside of one, even of a single thread, OpenMP starts new threads for every block. */
#define FOR_GROUPS(DO)                                                                       \
    if (g->count < threads) {                                                                \
        int inner = threads;                                                                 \
        for (long group = 0; group < g->count; group++) DO                                   \
    } else {                                                                                 \
        int inner = 1;                                                                       \
        _Pragma("omp parallel for num_threads(threads) schedule(static) reduction(+ : failed)") \
        for (long group = 0; group < g->count; group++) DO                                   \
    }

/* x, mask and out [groups,M,T,E]. Returns how many groups ran out of memory. */
int groups_forward(forward_of *block, const struct groups *g, const long *shape, float *const *weights, const float *x,
                   const float *mask, float *out, int threads) {
    long size = shape[0] * shape[1] * shape[2];
    int failed = 0;
    FOR_GROUPS({
        float *own[g->weights];
        long at = group * size;
        pick(g, group, weights, own);
        failed += block(shape, own, x + at, mask ? mask + at : NULL, out + at, inner);
    })
    return failed;
}

/* The gradients of groups_forward: by x to dx, by the weights to those of the same layout. */
int groups_backward(backward_of *block, const struct groups *g, const long *shape, float *const *weights,
                    const float *x, const float *mask, const float *dout, float *dx, float *const *gradients,
                    int threads) {
    long size = shape[0] * shape[1] * shape[2];
    int failed = 0;
    FOR_GROUPS({
        float *own[g->weights];
        float *gradient[g->weights];
        long at = group * size;
        pick(g, group, weights, own);
        pick(g, group, gradients, gradient);
        failed += block(shape, own, x + at, mask ? mask + at : NULL, dout + at, dx + at, gradient, inner);
    })
    return failed;
}
