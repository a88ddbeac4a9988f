/* Products of a few hundred rows with matrices that stay in the second-level cache. */
#ifndef PRODUCT_H
#define PRODUCT_H

#include "arithmetic.h"

/* R rows times V vectors of C = (C +) A·B; A[i,k] at a[i·ai + k·ak], B's row k at b[k·bk]. */
INLINE void corner(const int R, const int V, long K, const float *a, long ai, long ak, const float *b, long bk,
                   float *c, long ci, int add) {
    vec sums[ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int j = 0; j < V; j++) sums[i][j] = add ? load(c + i * ci + j * LANES) : (vec){0};
    /* Three rows share a base address: x86 has addresses for a, a + n and a + 2n. */
    const float *base[4] = {a, a + 3 * ai, a + 6 * ai, a + 9 * ai};
    for (long k = 0; k < K; k++) {
        vec row[2];
#pragma GCC unroll 2
        for (int j = 0; j < V; j++) row[j] = load(b + j * LANES);
#pragma GCC unroll 12
        for (int i = 0; i < R; i++) {
            float factor = base[i / 3][i % 3 * ai];
#pragma GCC unroll 2
            for (int j = 0; j < V; j++) sums[i][j] += factor * row[j];
        }
        b += bk;
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) base[g] += ak;
    }
#pragma GCC unroll 12
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int j = 0; j < V; j++) store(c + i * ci + j * LANES, sums[i][j]);
}

typedef void corner_of(long K, const float *a, long ai, long ak, const float *b, long bk, float *c, long ci, int add);

#define CORNER(R)                                                                                                     \
    static void corner_##R##_1(long K, const float *a, long ai, long ak, const float *b, long bk, float *c, long ci,  \
                               int add) {                                                                            \
        corner(R, 1, K, a, ai, ak, b, bk, c, ci, add);                                                               \
    }                                                                                                                \
    static void corner_##R##_2(long K, const float *a, long ai, long ak, const float *b, long bk, float *c, long ci,  \
                               int add) {                                                                            \
        corner(R, 2, K, a, ai, ak, b, bk, c, ci, add);                                                               \
    }
#define BOTH(R) {corner_##R##_1, corner_##R##_2}
CORNER(1) CORNER(2) CORNER(3) CORNER(4) CORNER(5) CORNER(6)
#if ROWS == 12
CORNER(7) CORNER(8) CORNER(9) CORNER(10) CORNER(11) CORNER(12)
#endif
static corner_of *const CORNERS[ROWS][2] = {
    BOTH(1), BOTH(2), BOTH(3), BOTH(4), BOTH(5), BOTH(6),
#if ROWS == 12
    BOTH(7), BOTH(8), BOTH(9), BOTH(10), BOTH(11), BOTH(12),
#endif
};

/* Lay B [K,N] in panels of two vectors' width; B[k,n] at b[k·bk + n·bn]. Needs K·padded(N) floats. */
static void pack(const float *b, long bk, long bn, long K, long N, float *to) {
    long whole = padded(N);
    for (long j = 0; j < whole; j += 2 * LANES) {
        long width = whole - j < 2 * LANES ? LANES : 2 * LANES;
        for (long k = 0; k < K; k++)
            for (long n = 0; n < width; n++) to[j * K + k * width + n] = j + n < N ? b[k * bk + (j + n) * bn] : 0.0f;
    }
}

/* C [rows,N] = (C +) A [rows,K]·B, B packed; writes padded(N) columns. */
static void multiply(long rows, long K, const float *a, long ai, const float *b, float *c, long ci, long N, int add) {
    long whole = padded(N);
    for (long j = 0; j < whole; j += 2 * LANES) {
        long vectors = whole - j < 2 * LANES ? 1 : 2;
        for (long i = 0; i < rows; i += ROWS) {
            long some = rows - i < ROWS ? rows - i : ROWS;
            CORNERS[some - 1][vectors - 1](K, a + i * ai, ai, 1, b + j * K, vectors * LANES, c + i * ci + j, ci, add);
        }
    }
}

/* C [N1,N2] += Aᵀ·B over rows; A [rows,N1] and B [rows,padded(N2)] as they lie. */
static void add_outer(long rows, const float *a, long ai, long N1, const float *b, long bi, long N2, float *c,
                      long ci) {
    long whole = padded(N2);
    for (long j = 0; j < whole; j += 2 * LANES) {
        long vectors = whole - j < 2 * LANES ? 1 : 2;
        for (long i = 0; i < N1; i += ROWS) {
            long some = N1 - i < ROWS ? N1 - i : ROWS;
            CORNERS[some - 1][vectors - 1](rows, a + i, 1, ai, b + j, bi, c + i * ci + j, ci, 1);
        }
    }
}

#endif
