/* Vectors, functions that compilers can vectorize, and memory that a thread keeps between calls. */
#ifndef ARITHMETIC_H
#define ARITHMETIC_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 12 /* of a product at a time: 24 sums of the 32 registers */
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6
#elif defined(__aarch64__)
#define LANES 4
#define ROWS 12
#else
#define LANES 4
#define ROWS 6
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * LANES)));

#define SIMD _Pragma("omp simd")
#define INLINE static inline __attribute__((always_inline))

#define NORM_EPSILON 1e-5f /* torch's and the package's */

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }

/* Channels of a buffer that products write: whole vectors. */
INLINE long padded(long n) { return (n + LANES - 1) / LANES * LANES; }

/* exp within 1e-7 of its value; outside of float's range the nearest end of it; NaN stays NaN, for comparisons with it
   are false. */
INLINE float exp_(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.3f ? 88.3f : x;
    const float shift = 12582912.0f; /* 1.5·2²³: adding it rounds to an integer */
    float shifted = x * 1.44269504f + shift;
    float n = shifted - shift;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int bits;
    memcpy(&bits, &shifted, 4);
    bits = (int)(((unsigned)bits + 127u) << 23);
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale;
}

INLINE float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }

/* log(1 + e^x) and σ(x); the logarithm from log(1+u) = 2·artanh(u/(2+u)) with u = e^−|x| in [0,1]. */
INLINE float softplus_(float x, float *slope) {
    float u = exp_(x < 0.0f ? x : -x);
    float s = u / (2.0f + u), q = s * s;
    float p = 1.0f / 15.0f;
    p = p * q + 1.0f / 13.0f;
    p = p * q + 1.0f / 11.0f;
    p = p * q + 1.0f / 9.0f;
    p = p * q + 1.0f / 7.0f;
    p = p * q + 1.0f / 5.0f;
    p = p * q + 1.0f / 3.0f;
    p = p * q + 1.0f;
    float inverse = 1.0f / (1.0f + u);
    *slope = x < 0.0f ? u * inverse : inverse;
    return (x < 0.0f ? 0.0f : x) + 2.0f * s * p;
}

/* The quotient of polynomials that Eigen uses: relative accuracy near zero too, where 2σ(2x)−1 has none. */
INLINE float tanh_(float x) {
    x = x < -7.90531110763549805f ? -7.90531110763549805f : x;
    x = x > 7.90531110763549805f ? 7.90531110763549805f : x;
    float q = x * x;
    float p = -2.76076847742355e-16f;
    p = p * q + 2.00018790482477e-13f;
    p = p * q - 8.60467152213735e-11f;
    p = p * q + 5.12229709037114e-08f;
    p = p * q + 1.48572235717979e-05f;
    p = p * q + 6.37261928875436e-04f;
    p = p * q + 4.89352455891786e-03f;
    float d = 1.19825839466702e-06f;
    d = d * q + 1.18534705686654e-04f;
    d = d * q + 2.26843463243900e-03f;
    d = d * q + 4.89352518554385e-03f;
    return x * p / d;
}

/* Abramowitz and Stegun 7.1.26, as torch has it: the normal distribution at x within 1e-7, and its density. */
INLINE float normal_(float x, float *density) {
    float a = x < 0.0f ? -x : x;
    float e = exp_(-0.5f * x * x);
    float t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * a);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    float tail = 0.5f * p * t * e;
    *density = 0.39894228f * e;
    return x < 0.0f ? tail : 1.0f - tail;
}

/* y = norm(x)·scale, rows of n channels. */
INLINE void normalize(const float *x, long n, const float *scale, float *y, float *mean, float *rstd) {
    float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long c = 0; c < n; c++) sum += x[c];
    float m = sum / (float)n;
#pragma omp simd reduction(+ : squares)
    for (long c = 0; c < n; c++) squares += (x[c] - m) * (x[c] - m);
    float r = 1.0f / sqrtf(squares / (float)n + NORM_EPSILON);
    SIMD
    for (long c = 0; c < n; c++) y[c] = (x[c] - m) * r * scale[c];
    *mean = m;
    *rstd = r;
}

/* dx = residual + the norm's gradient at y = norm(x)·scale; dscale is added to. */
INLINE void normalize_back(const float *dy, const float *x, long n, const float *scale, float mean, float rstd,
                           const float *residual, float *dx, float *dscale) {
    float sum = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : sum, along)
    for (long c = 0; c < n; c++) {
        float unit = (x[c] - mean) * rstd, d = dy[c] * scale[c];
        dscale[c] += dy[c] * unit;
        sum += d;
        along += d * unit;
    }
    sum /= (float)n;
    along /= (float)n;
    SIMD
    for (long c = 0; c < n; c++) {
        float unit = (x[c] - mean) * rstd;
        dx[c] = residual[c] + rstd * (dy[c] * scale[c] - sum - unit * along);
    }
}

/* Memory of this thread, kept for the next call: fresh pages cost more than the arithmetic on them. */
struct arena {
    float *start;
    size_t size, used;
};

/* Plan with start NULL, then allocate: the same calls twice. */
INLINE float *take(struct arena *a, long floats) {
    float *p = a->start ? a->start + a->used : NULL;
    a->used += ((size_t)floats + 31) / 16 * 16; /* at least 16 apart: equal strides would share cache sets */
    return p;
}

INLINE int reserve(struct arena *a) {
    if (a->start && a->size >= a->used) return 1;
    free(a->start);
    a->size = a->used;
    a->start = aligned_alloc(64, (a->size * 4 + 63) / 64 * 64);
    if (!a->start) return 0;
    memset(a->start, 0, a->size * 4); /* what pads a row is multiplied too and must be finite */
    return 1;
}

#endif
