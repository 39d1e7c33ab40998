// Attention of the rollout engine on a CPU: new tokens are written to the block pool, then each looks at the blocks of
// its context.  Built on demand by native.py for one head size (D), query heads a kv head (R) and block size (BS).  Keys
// are stored transposed, [D][BS] a block, so that scores of 16 cells are one vector without a reduction.
#include "piece.h"

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

// What a thread works with.
template <class T> struct Scratch {
    Tiles<T> tiles;
    std::vector<float> scores;
};

template <int Q, class T> static void attend(const Forward& f, const T* query, const int64_t* strides, const T* keys,
    const T* values, const Cut& cut, int head, Scratch<T>& scratch, T* out) {
    alignas(64) float q[Q * R * D];
    for (int n = 0; n < Q * R; ++n) {
        const int token = cut.first + n / R;
        turned(query + (head * R + n % R) * strides[0] + token * strides[1], angle<T>(f.cosines, token),
            angle<T>(f.sines, token), f.scale, q + n * D);
    }
    const Piece<Q, T> piece(f, cut, head);
    scratch.tiles.at.clear();
    piece.add_tiles(keys, scratch.tiles);
    piece.add_tiles(values, scratch.tiles);
    scratch.scores.resize(Q * R * piece.stride + LANES);
    float* scores = (float*)(((uintptr_t)scratch.scores.data() + 63) & ~(uintptr_t)63);
    piece.attend(q, scratch.tiles, scores, out + ((int64_t)cut.first * f.heads + head) * R * D);
}

// Where the work is cut: neighbours whose tables begin with the same blocks go together.
static std::vector<Cut> cuts(const Forward& f, int n) {
    std::vector<Cut> out;
    const auto begin = [&](int i) { return f.pointers[f.feeds[i]]; };
    const auto length = [&](int i) { return f.pointers[f.feeds[i] + 1] - begin(i); };
    for (int i = 0, next; i < n; i = next) {
        int common = length(i);
        for (next = i + 1; next < n && next < i + MANY; ++next) {
            const int a = begin(i), b = begin(next), most = length(next) < common ? length(next) : common;
            int same = 0;
            while (same < most && f.blocks[a + same] == f.blocks[b + same] && f.fills[a + same] == f.fills[b + same]) ++same;
            if (!same) break;
            common = same;
        }
        if (next - i > 2 && next - i < MANY) next = i + 2;  // one of the numbers that there is code for
        out.push_back({i, next - i, next - i == 1 ? length(i) : common});
    }
    return out;
}

template <class T> static void run(const Forward& f, int n, const T* query, const T* key, const T* value,
    const int64_t* strides, const int64_t* blocks, const int64_t* cells, T* keys, T* values, T* out) {
    const std::vector<Cut> pieces = cuts(f, n);
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
        Scratch<T> scratch;
        // Heads inside: blocks are read from memory in one piece.
#pragma omp for schedule(dynamic, 4)
        for (int i = 0; i < (int)pieces.size() * f.heads; ++i) {
            const Cut& cut = pieces[i / f.heads];
            const auto together = cut.count == 1 ? attend<1, T> : cut.count == 2 ? attend<2, T> : attend<MANY, T>;
            together(f, query, strides, keys, values, cut, i % f.heads, scratch, out);
        }
    }
}

// query, key, value: [heads][T][D] by strides (elements; head and token of each), new tokens of one layer; written to
// blocks/cells i64[T] of keys T[..][heads][D][BS], values T[..][heads][BS][D]; window 0: none.  out T[n][heads * R][D].
// cosines, sines: queries and keys are turned first; null: they are already.
extern "C" void attention(int half, int n, int heads, int window, float scale, const void* query, const void* key,
    const void* value, const int64_t* strides, const void* cosines, const void* sines, const int64_t* blocks,
    const int64_t* cells, const int32_t* pointers, const int32_t* table, const int32_t* fills, const int32_t* base,
    const int32_t* feeds, const int32_t* positions, void* keys, void* values, void* out) {
    const Forward f = {pointers, table, fills, base, feeds, positions, cosines, sines, heads, window, scale};
    if (half)
        run(f, n, (const uint16_t*)query, (const uint16_t*)key, (const uint16_t*)value, strides, blocks, cells,
            (uint16_t*)keys, (uint16_t*)values, (uint16_t*)out);
    else
        run(f, n, (const float*)query, (const float*)key, (const float*)value, strides, blocks, cells, (float*)keys,
            (float*)values, (float*)out);
}
