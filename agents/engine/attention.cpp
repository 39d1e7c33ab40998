// Attention of the rollout engine on a CPU: new tokens are written to the block pool, then each looks at the blocks of
// its context.  Built on demand by native.py for one head size (D), query heads a kv head (R) and block size (BS).  Keys
// are stored transposed, [D][BS] a block, so that scores of 16 cells are one vector without a reduction.
#include <vector>

#include "vectors.h"

constexpr int CELLS = BS / LANES;  // vectors of cells in a block
constexpr int WIDTH = D / LANES;   // vectors of a query, key or value
constexpr int MANY = R > 6 ? 1 : R > 4 ? 2 : R > 3 ? 3 : 4;  // queries of a segment that are taken together
constexpr int REGISTERS = 24;      // accumulators that the inner loops keep

struct Forward {
    const int32_t *pointers, *blocks, *fills, *base;  // a table of blocks for each feed: entries pointers[f] .. pointers[f + 1] - 1
    const int32_t *feeds, *positions;                 // [T] of each query
    const void *cosines, *sines;                      // [T][D] of the rotary embedding in the type of the queries, or null
    int heads, window;
    float scale;
};

// Cells of entry e that a query at `position` looks at: first .. last - 1.
static inline void seen(const Forward& f, int e, int position, int& first, int& last) {
    first = f.window ? position - f.window + 1 - f.base[e] : 0;
    last = position + 1 - f.base[e];
    if (first < 0) first = 0;
    if (last > f.fills[e]) last = f.fills[e];
}

// Scores of one block for N query vectors [N][D]: into scores[n * stride ..].
template <int N, class T> static inline void products(const T* keys, const T* next, const float* query, float* scores,
    int64_t stride) {
    constexpr int WIDE = N * CELLS <= REGISTERS ? CELLS : 1;
    constexpr int PARTS = N * WIDE >= 8 ? 1 : N * WIDE >= 4 ? 2 : 4;  // sums that do not wait for one another
    for (int c = 0; c < CELLS; c += WIDE) {
        vec score[PARTS][N][WIDE] = {};
        for (int d = 0; d < D; d += PARTS)
            for (int p = 0; p < PARTS; ++p)
                for (int w = 0; w < WIDE; ++w) {
                    vec k = load(keys + (d + p) * BS + (c + w) * LANES);
                    __builtin_prefetch(next + (d + p) * BS + (c + w) * LANES);
                    for (int n = 0; n < N; ++n) score[p][n][w] += k * query[n * D + d + p];
                }
        for (int n = 0; n < N; ++n)
            for (int w = 0; w < WIDE; ++w) {
                vec s = score[0][n][w];
                for (int p = 1; p < PARTS; ++p) s += score[p][n][w];
                store(scores + n * stride + (c + w) * LANES, s);
            }
    }
}

// Q queries of one feed, first, first + 1, ..., for one kv head.
template <int Q, class T> static void attend(const Forward& f, const float* query, const T* keys, const T* values, int first,
    int head, float* scores, T* out) {
    constexpr int N = Q * R;
    constexpr int STEP = N * WIDTH <= REGISTERS ? WIDTH : N * 2 <= REGISTERS ? 2 : 1;  // vectors of a value at a time
    const int position = f.positions[first];
    int begin = f.pointers[f.feeds[first]], end = f.pointers[f.feeds[first] + 1];
    while (end > begin + 1 && f.base[end - 1] > position + Q - 1) --end;  // behind the last query
    while (f.window && begin + 1 < end && f.base[begin] + f.fills[begin] <= position - f.window + 1) ++begin;
    const int64_t stride = (int64_t)(end - begin) * BS;
    vec best[N];
    for (int n = 0; n < N; ++n) best[n] = (vec){} - INFINITY;
    const auto at = [&](const T* pool, int e) { return pool + ((int64_t)f.blocks[e] * f.heads + head) * D * BS; };
    ivec lane;
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    for (int e = begin; e < end; ++e) {
        float* row = scores + (int64_t)(e - begin) * BS;
        products<N>(at(keys, e), at(keys, e + 1 < end ? e + 1 : e), query, row, stride);
        for (int q = 0; q < Q; ++q) {
            int from, to;
            seen(f, e, position + q, from, to);
            for (int n = q * R; n < (q + 1) * R; ++n)
                for (int c = 0; c < CELLS; ++c) {
                    vec s = load(row + n * stride + c * LANES);
                    ivec cell = lane + c * LANES;
                    s = (cell >= from) & (cell < to) ? s : (vec){} - INFINITY;
                    store(row + n * stride + c * LANES, s);
                    best[n] = s > best[n] ? s : best[n];
                }
        }
    }
    float total[N];
    for (int n = 0; n < N; ++n) {
        const float top = largest(best[n]);
        vec sums = (vec){};
        for (int64_t i = n * stride; i < (n + 1) * stride; i += LANES) {
            vec w = exponential(load(scores + i) - top);
            sums += w;
            store(scores + i, w);
        }
        total[n] = 1.0f / sum(sums);
    }
    for (int j = 0; j < WIDTH; j += STEP) {
        vec mixed[N][STEP] = {};
        for (int e = begin; e < end; ++e) {
            int from, to, unused;
            seen(f, e, position, from, unused);
            seen(f, e, position + Q - 1, unused, to);
            const T *value = at(values, e) + j * LANES, *next = at(values, e + 1 < end ? e + 1 : e) + j * LANES;
            const float* weight = scores + (int64_t)(e - begin) * BS;
            for (int t = from; t < to; ++t)
                for (int s = 0; s < STEP && j + s < WIDTH; ++s) {
                    vec v = load(value + t * D + s * LANES);
                    __builtin_prefetch(next + t * D + s * LANES);
                    for (int n = 0; n < N; ++n) mixed[n][s] += v * weight[n * stride + t];
                }
        }
        for (int n = 0; n < N; ++n)
            for (int s = 0; s < STEP && j + s < WIDTH; ++s)
                store(out + ((int64_t)(n / R) * f.heads * R + n % R) * D + (j + s) * LANES, mixed[n][s] * total[n]);
    }
}

// x[D] as floats, turned by the rotary embedding of its token where there is one (halves, as Llama has them).
template <class T> static inline void turned(const T* x, const T* cosines, const T* sines, float scale, float* out) {
    if (!cosines) {
        for (int d = 0; d < D; ++d) out[d] = widen(x[d]) * scale;
        return;
    }
    for (int d = 0; d < D / 2; ++d) {
        const float a = widen(x[d]) * scale, b = widen(x[d + D / 2]) * scale;
        out[d] = a * widen(cosines[d]) - b * widen(sines[d]);
        out[d + D / 2] = b * widen(cosines[d + D / 2]) + a * widen(sines[d + D / 2]);
    }
}

template <class T> static inline const T* angle(const void* table, int token) {
    return table ? (const T*)table + (int64_t)token * D : nullptr;
}

template <int Q, class T> static void gather(const Forward& f, const T* query, int64_t head_stride, int64_t token_stride,
    const T* keys, const T* values, int first, int head, std::vector<float>& scores, T* out) {
    alignas(64) float q[Q * R * D];
    for (int n = 0; n < Q * R; ++n) {
        const int token = first + n / R;
        turned(query + (head * R + n % R) * head_stride + token * token_stride, angle<T>(f.cosines, token),
            angle<T>(f.sines, token), f.scale, q + n * D);
    }
    const int feed = f.feeds[first];
    scores.resize((size_t)Q * R * (f.pointers[feed + 1] - f.pointers[feed]) * BS);
    attend<Q>(f, q, keys, values, first, head, scores.data(), out + ((int64_t)first * f.heads + head) * R * D);
}

// Where the work is cut: queries of one feed in groups of MANY, the others one by one.
static std::vector<int> cuts(const Forward& f, int n) {
    std::vector<int> out;
    for (int i = 0; i < n;) {
        out.push_back(i);
        i += i + MANY <= n && f.feeds[i + MANY - 1] == f.feeds[i] ? MANY : 1;
    }
    out.push_back(n);
    return out;
}

template <class T> static void run(const Forward& f, int n, const T* query, const T* key, const T* value,
    const int64_t* strides, const int64_t* blocks, const int64_t* cells, T* keys, T* values, T* out) {
    const std::vector<int> starts = cuts(f, n);
    const int pieces = (int)starts.size() - 1;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int i = 0; i < n * f.heads; ++i) {
            const int t = i / f.heads, head = i % f.heads;
            const int64_t at = (blocks[t] * f.heads + head) * D * BS;
            const T *k = key + head * strides[2] + t * strides[3], *v = value + head * strides[4] + t * strides[5];
            float whole[D];
            turned(k, angle<T>(f.cosines, t), angle<T>(f.sines, t), 1.0f, whole);
            for (int d = 0; d < D; ++d) narrow(whole[d], keys[at + d * BS + cells[t]]);
            for (int d = 0; d < D; ++d) values[at + cells[t] * D + d] = v[d];
        }
        std::vector<float> scores;
        // Heads inside: blocks are read from memory in one piece.  Queries that share blocks are packed side by side.
#pragma omp for schedule(dynamic, 4)
        for (int i = 0; i < pieces * f.heads; ++i) {
            const int piece = i / f.heads, head = i % f.heads, first = starts[piece], count = starts[piece + 1] - first;
            if (count == 1)
                gather<1>(f, query, strides[0], strides[1], keys, values, first, head, scores, out);
            else
                gather<MANY>(f, query, strides[0], strides[1], keys, values, first, head, scores, out);
        }
    }
}

// query, key, value: [heads][T][D] by strides (elements; head and token of each), new tokens of one layer; written to
// blocks/cells i64[T] of keys T[..][heads][D][BS], values T[..][heads][BS][D]; window 0: none.  out T[n][heads * R][D].
// cosines, sines: queries and keys are turned first; null: they are already.
extern "C" void attention(int half, int n, int heads, int window, float scale, const void* query, const void* key,
    const void* value, const int64_t* strides, const void* cosines, const void* sines, const int64_t* blocks, const int64_t* cells, const int32_t* pointers,
    const int32_t* table, const int32_t* fills, const int32_t* base, const int32_t* feeds, const int32_t* positions,
    void* keys, void* values, void* out) {
    const Forward f = {pointers, table, fills, base, feeds, positions, cosines, sines, heads, window, scale};
    if (half)
        run(f, n, (const uint16_t*)query, (const uint16_t*)key, (const uint16_t*)value, strides, blocks, cells,
            (uint16_t*)keys, (uint16_t*)values, (uint16_t*)out);
    else
        run(f, n, (const float*)query, (const float*)key, (const float*)value, strides, blocks, cells, (float*)keys,
            (float*)values, (float*)out);
}
