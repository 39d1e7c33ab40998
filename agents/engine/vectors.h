// Vectors of 16 floats with GCC's vector extensions: one source for AVX-512, AVX2 and NEON.  Arithmetic is fp32; what is
// stored is fp32 or bf16 (as uint16_t).
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

constexpr int LANES = 16;
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint16_t hvec __attribute__((vector_size(LANES * 2), aligned(2)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4), aligned(4)));

static inline vec load(const float* p) { return *(const vec*)p; }
static inline vec load(const uint16_t* p) {
#ifdef __AVX512F__  // GCC makes five instructions of the conversion
    return (vec)((uvec)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)) << 16);
#else
    return (vec)(__builtin_convertvector(*(const hvec*)p, uvec) << 16);
#endif
}
static inline void store(float* p, vec x) { *(vec*)p = x; }
static inline void store(uint16_t* p, vec x) {  // round to nearest even, as torch does
    uvec bits = (uvec)x;
    bits += 0x7fffu + ((bits >> 16) & 1u);
    *(hvec*)p = __builtin_convertvector(bits >> 16, hvec);
}

static inline float widen(float x) { return x; }
static inline float widen(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}
static inline void narrow(float x, float& out) { out = x; }
static inline void narrow(float x, uint16_t& out) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    out = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// exp(x) for x <= 0, relative error about 1e-7 (Cephes); 0 for x = -inf.
static inline vec exponential(vec x) {
    ivec nothing = x < -87.0f;
    x = nothing ? (vec){} - 87.0f : x;
    vec scaled = x * 1.44269504f;
    ivec n = __builtin_convertvector(scaled - 0.5f, ivec);  // truncation of a negative number: to nearest
    vec whole = __builtin_convertvector(n, vec);
    vec f = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec p = (vec){} + 1.9875691500e-4f;
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    p = p * (vec)((n + 127) << 23);
    return nothing ? (vec){} : p;
}

static inline float largest(vec x) {
    float out = x[0];
    for (int i = 1; i < LANES; ++i) out = x[i] > out ? x[i] : out;
    return out;
}

static inline float sum(vec x) {
    float out = 0;
    for (int i = 0; i < LANES; ++i) out += x[i];
    return out;
}
