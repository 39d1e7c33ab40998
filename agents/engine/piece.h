// Attention of a few queries that read the same blocks, for one kv head.  Blocks that several rows share are read once
// for up to MANY of them: out of the cache a block comes no faster than one row's products take.
#pragma once
#include <vector>

#include "vectors.h"

constexpr int CELLS = BS / LANES;  // vectors of cells in a block
constexpr int WIDTH = D / LANES;   // vectors of a query, key or value
constexpr int MANY = R > 6 ? 1 : R > 4 ? 2 : R > 3 ? 3 : 4;  // most queries of a piece
constexpr int REGISTERS = 24;      // accumulators that the inner loops keep
constexpr int AHEAD = 2;           // blocks between the one that is computed and the one that is fetched
template <class T> constexpr int LINE = 64 / sizeof(T);  // elements of a cache line

struct Forward {
    const int32_t *pointers, *blocks, *fills, *base;  // a table of blocks for each feed: entries pointers[f] .. pointers[f + 1] - 1
    const int32_t *feeds, *positions;                 // [T] of each query
    const void *cosines, *sines;                      // [T][D] of the rotary embedding in the type of the queries, or null
    int heads, window;
    float scale;
};

// `count` queries, first, first + 1, ...: of one feed, or of feeds whose tables begin with the same `common` entries.
struct Cut {
    int first, count, common;
};

// Table entries begin .. end - 1, which are blocks number `place`, ... of a query's context; `tile`: where they are in Tiles.
struct Part {
    int begin, end, place, tile;
};

// Blocks of a piece in the order in which they are read: all keys, then all values.
template <class T> struct Tiles {
    std::vector<const T*> at;
    const T* ahead(int i) const { return at[i + AHEAD < (int)at.size() ? i + AHEAD : (int)at.size() - 1]; }
};

// Cells of entry e that a query at `position` looks at: first .. last - 1.
static inline void seen(const Forward& f, int e, int position, int& first, int& last) {
    first = f.window ? position - f.window + 1 - f.base[e] : 0;
    last = position + 1 - f.base[e];
    if (first < 0) first = 0;
    if (last > f.fills[e]) last = f.fills[e];
}

// Scores of one block for N query vectors [N][D]: into scores[n * stride ..].
template <int N, class T> static inline void products(const T* keys, const T* ahead, const float* query, float* scores,
    int64_t stride) {
    constexpr int WIDE = N * CELLS <= REGISTERS ? CELLS : 1;
    constexpr int PARTS = N * WIDE >= 8 ? 1 : N * WIDE >= 4 ? 2 : 4;  // sums that do not wait for one another
    for (int c = 0; c < CELLS; c += WIDE) {
        vec score[PARTS][N][WIDE] = {};
        for (int d = 0; d < D; d += PARTS)
            for (int p = 0; p < PARTS; ++p) {
                const int64_t at = (d + p) * BS + c * LANES;
                for (int i = 0; i < WIDE * LANES; i += LINE<T>) __builtin_prefetch(ahead + at + i);
                for (int w = 0; w < WIDE; ++w) {
                    vec k = load(keys + at + w * LANES);
                    for (int n = 0; n < N; ++n) score[p][n][w] += k * query[n * D + d + p];
                }
            }
        for (int n = 0; n < N; ++n)
            for (int w = 0; w < WIDE; ++w) {
                vec s = score[0][n][w];
                for (int p = 1; p < PARTS; ++p) s += score[p][n][w];
                store(scores + n * stride + (c + w) * LANES, s);
            }
    }
}

// Scores of a block's cells outside from .. to - 1 become -inf; `best` the largest of each lane.
static inline void limit(float* scores, int from, int to, vec& best) {
    const bool whole = from <= 0 && to >= BS;
    ivec lane;
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    for (int c = 0; c < CELLS; ++c) {
        vec s = load(scores + c * LANES);
        if (!whole) {
            ivec cell = lane + c * LANES;
            s = (cell >= from) & (cell < to) ? s : (vec){} - INFINITY;
            store(scores + c * LANES, s);
        }
        best = s > best ? s : best;
    }
}

template <int Q, class T> struct Piece {
    static constexpr int N = Q * R;
    const Forward& f;
    const int first, head;
    Part common, own[Q];
    int blocks;      // keys in Tiles
    int64_t stride;  // scores of one query vector

    Piece(const Forward& f, const Cut& cut, int head) : f(f), first(cut.first), head(head) {
        const int* position = f.positions + first;
        int lowest = position[0], highest = position[0], most = 0;
        for (int q = 1; q < Q; ++q) {
            lowest = position[q] < lowest ? position[q] : lowest;
            highest = position[q] > highest ? position[q] : highest;
        }
        const int begin = f.pointers[f.feeds[first]];
        common = trimmed({begin, begin + cut.common, 0, 0}, lowest, highest);
        const int shared = blocks = common.end - common.begin;
        for (int q = 0; q < Q; ++q) {
            const int feed = f.feeds[first + q];
            own[q] = trimmed({f.pointers[feed] + cut.common, f.pointers[feed + 1], shared, blocks}, position[q], position[q]);
            const int count = own[q].end - own[q].begin;
            blocks += count;
            most = count > most ? count : most;
        }
        stride = (int64_t)(shared + most) * BS;
    }

    // Without entries behind the highest position, and before the window of the lowest.
    Part trimmed(Part part, int lowest, int highest) const {
        while (part.end > part.begin && f.base[part.end - 1] > highest) --part.end;
        while (f.window && part.begin < part.end && f.base[part.begin] + f.fills[part.begin] <= lowest - f.window + 1)
            ++part.begin;
        return part;
    }

    void add_tiles(const T* pool, Tiles<T>& tiles) const {
        const auto add = [&](const Part& part) {
            for (int e = part.begin; e < part.end; ++e)
                tiles.at.push_back(pool + ((int64_t)f.blocks[e] * f.heads + head) * D * BS);
        };
        add(common);
        for (int q = 0; q < Q; ++q) add(own[q]);
    }

    // Scores of M queries from number q on.
    template <int M> void score(const Part& part, int q, const float* query, const Tiles<T>& tiles, float* scores, vec* best) const {
        for (int e = part.begin; e < part.end; ++e) {
            const int i = e - part.begin;
            float* row = scores + q * R * stride + (int64_t)(part.place + i) * BS;
            products<M * R>(tiles.at[part.tile + i], tiles.ahead(part.tile + i), query + q * R * D, row, stride);
            for (int m = 0; m < M; ++m) {
                int from, to;
                seen(f, e, f.positions[first + q + m], from, to);
                for (int n = m * R; n < (m + 1) * R; ++n) limit(row + n * stride, from, to, best[q * R + n]);
            }
        }
    }

    // Add the values of the cells, by their weights, to sums [N][D] of M queries from number q on.
    template <int M> void mix(const Part& part, int q, const Tiles<T>& tiles, const float* weights, float* sums) const {
        constexpr int N = M * R;
        constexpr int STEP = N * WIDTH <= REGISTERS ? WIDTH : N * 2 <= REGISTERS ? 2 : 1;  // vectors of a value at a time
        sums += q * R * D;
        for (int j = 0; j < WIDTH && part.begin < part.end; j += STEP) {
            vec mixed[N][STEP];
            for (int n = 0; n < N; ++n)
                for (int s = 0; s < STEP && j + s < WIDTH; ++s) mixed[n][s] = load(sums + n * D + (j + s) * LANES);
            for (int e = part.begin; e < part.end; ++e) {
                int from = BS, to = 0;
                for (int m = 0; m < M; ++m) {
                    int start, stop;
                    seen(f, e, f.positions[first + q + m], start, stop);
                    from = start < from ? start : from;
                    to = stop > to ? stop : to;
                }
                const int i = e - part.begin, tile = blocks + part.tile + i;
                const T *value = tiles.at[tile] + j * LANES, *ahead = tiles.ahead(tile) + j * LANES;
                const float* weight = weights + q * R * stride + (int64_t)(part.place + i) * BS;
                for (int t = from; t < to; ++t) {
                    for (int k = 0; k < STEP * LANES && j * LANES + k < D; k += LINE<T>) __builtin_prefetch(ahead + t * D + k);
                    for (int s = 0; s < STEP && j + s < WIDTH; ++s) {
                        vec v = load(value + t * D + s * LANES);
                        for (int n = 0; n < N; ++n) mixed[n][s] += v * weight[n * stride + t];
                    }
                }
            }
            for (int n = 0; n < N; ++n)
                for (int s = 0; s < STEP && j + s < WIDTH; ++s) store(sums + n * D + (j + s) * LANES, mixed[n][s]);
        }
    }

    // query [N][D]; scores: room for N * stride floats; out [Q][heads * R][D] from this head on.
    void attend(const float* query, const Tiles<T>& tiles, float* scores, T* out) const {
        vec best[N];
        for (int n = 0; n < N; ++n) best[n] = (vec){} - INFINITY;
        score<Q>(common, 0, query, tiles, scores, best);
        for (int q = 0; q < Q; ++q) score<1>(own[q], q, query, tiles, scores, best);
        float total[N];
        for (int n = 0; n < N; ++n) {
            const float top = largest(best[n]);
            const Part& part = own[n / R];
            const int64_t end = n * stride + (int64_t)(part.place + part.end - part.begin) * BS;
            vec sums = (vec){};
            for (int64_t i = n * stride; i < end; i += LANES) {
                vec w = exponential(load(scores + i) - top);
                sums += w;
                store(scores + i, w);
            }
            total[n] = 1.0f / sum(sums);
        }
        alignas(64) float sums[N * D] = {};
        mix<Q>(common, 0, tiles, scores, sums);
        for (int q = 0; q < Q; ++q) mix<1>(own[q], q, tiles, scores, sums);
        for (int n = 0; n < N; ++n)
            for (int d = 0; d < D; d += LANES)
                store(out + ((int64_t)(n / R) * f.heads * R + n % R) * D + d, load(sums + n * D + d) * total[n]);
    }
};
