// Row attention of the rollout engine: one query a row against the blocks of its context.
// Built on demand by native.py for one head size (D), query heads a kv head (R) and block size (BS); plain C++ with GCC's
// vector extensions, so that one source serves AVX-512, AVX2 and NEON.  Arithmetic is fp32; keys and values are fp32 or
// bf16.  Keys are stored transposed, [D][BS] a block, so that scores of 16 cells are one vector without a reduction.
#include <math.h>
#include <stdint.h>
#include <string.h>

constexpr int LANES = 16;
constexpr int CELLS = BS / LANES;   // vectors of cells in a block
constexpr int WIDTH = D / LANES;    // vectors of a value
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint16_t hvec __attribute__((vector_size(LANES * 2), aligned(2)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4), aligned(4)));

static inline vec load(const float* p) { return *(const vec*)p; }
static inline vec load(const uint16_t* p) { return (vec)(__builtin_convertvector(*(const hvec*)p, uvec) << 16); }
static inline void store(float* p, vec x) { *(vec*)p = x; }
static inline void store(uint16_t* p, vec x) {  // round to nearest even, as torch does
    uvec bits = (uvec)x;
    bits += 0x7fffu + ((bits >> 16) & 1u);
    *(hvec*)p = __builtin_convertvector(bits >> 16, hvec);
}

// exp(x) for x <= 0, relative error about 1e-7 (Cephes).
static inline vec exponential(vec x) {
    x = x < -87.0f ? (vec){} - 87.0f : x;
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
    return p * (vec)((n + 127) << 23);
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

struct State {
    vec mixed[R][WIDTH];
    float top[R], total[R];
};

// Cells first .. last - 1 of one block.
template <class T> static inline void block(const T* keys, const T* values, int first, int last, const float* query, State& s) {
    alignas(64) float weights[R][BS];
    vec score[R][CELLS];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < CELLS; ++c) score[r][c] = (vec){};
    for (int d = 0; d < D; ++d)
        for (int c = 0; c < CELLS; ++c) {
            vec k = load(keys + d * BS + c * LANES);
            for (int r = 0; r < R; ++r) score[r][c] += k * query[r * D + d];
        }
    ivec lane;
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    for (int r = 0; r < R; ++r) {
        vec best = (vec){} - INFINITY;
        for (int c = 0; c < CELLS; ++c) {
            ivec cell = lane + c * LANES;
            score[r][c] = (cell >= first) & (cell < last) ? score[r][c] : (vec){} - INFINITY;
            best = score[r][c] > best ? score[r][c] : best;
        }
        float top = largest(best);
        if (top < s.top[r]) top = s.top[r];
        float fade = s.top[r] == top ? 1.0f : expf(s.top[r] - top);
        vec total = (vec){};
        for (int c = 0; c < CELLS; ++c) {
            ivec cell = lane + c * LANES;
            vec w = exponential(score[r][c] - top);
            w = (cell >= first) & (cell < last) ? w : (vec){};
            total += w;
            *(vec*)(weights[r] + c * LANES) = w;
        }
        s.total[r] = s.total[r] * fade + sum(total);
        s.top[r] = top;
        if (fade != 1.0f)
            for (int j = 0; j < WIDTH; ++j) s.mixed[r][j] *= fade;
    }
    for (int t = first; t < last; ++t)
        for (int j = 0; j < WIDTH; ++j) {
            vec v = load(values + t * D + j * LANES);
            for (int r = 0; r < R; ++r) s.mixed[r][j] += v * weights[r][t];
        }
}

// query f32[n][heads * R][D], scaled; keys T[..][heads][D][BS]; values T[..][heads][BS][D]; a row's table is entries
// pointers[i] .. pointers[i + 1] - 1 of blocks/fills/base; window 0: none.  out T[n][heads * R][D].
template <class T> static void run(const float* query, const T* keys, const T* values, const int32_t* pointers,
    const int32_t* blocks, const int32_t* fills, const int32_t* base, const int32_t* positions, int n, int heads,
    int window, T* out) {
#pragma omp parallel for schedule(static)
    for (int work = 0; work < n * heads; ++work) {
        int head = work / n, row = work % n;  // rows inside: neighbours find what they share in the cache
        State s;
        for (int r = 0; r < R; ++r) {
            s.top[r] = -INFINITY;
            s.total[r] = 0;
            for (int j = 0; j < WIDTH; ++j) s.mixed[r][j] = (vec){};
        }
        int64_t own = (int64_t)row * heads + head;
        for (int e = pointers[row]; e < pointers[row + 1]; ++e) {
            int first = window ? positions[row] - window + 1 - base[e] : 0;
            if (first < 0) first = 0;
            if (first >= fills[e]) continue;
            int64_t at = ((int64_t)blocks[e] * heads + head) * D * BS;
            block<T>(keys + at, values + at, first, fills[e], query + own * R * D, s);
        }
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < WIDTH; ++j) store(out + (own * R + r) * D + j * LANES, s.mixed[r][j] * (1.0f / s.total[r]));
    }
}

extern "C" void rows_attention(int half, const float* query, const void* keys, const void* values, const int32_t* pointers,
    const int32_t* blocks, const int32_t* fills, const int32_t* base, const int32_t* positions, int n, int heads,
    int window, void* out) {
    if (half)
        run<uint16_t>(query, (const uint16_t*)keys, (const uint16_t*)values, pointers, blocks, fills, base, positions, n,
            heads, window, (uint16_t*)out);
    else
        run<float>(query, (const float*)keys, (const float*)values, pointers, blocks, fills, base, positions, n, heads,
            window, (float*)out);
}
