// What is done to each row of a matrix, in one pass.  Built on demand by native.py.
#include "vectors.h"

template <class T> static void normalise(int n, int width, float epsilon, const T* x, const T* weight, T* out) {
#pragma omp parallel for schedule(static) if ((int64_t)n * width > 32768)
    for (int i = 0; i < n; ++i) {
        const T* row = x + (int64_t)i * width;
        vec squares = (vec){};
        for (int j = 0; j < width; j += LANES) squares += load(row + j) * load(row + j);
        const float factor = 1.0f / sqrtf(sum(squares) / width + epsilon);
        for (int j = 0; j < width; j += LANES) {
            T* target = out + (int64_t)i * width + j;
            store(target, load(row + j) * factor);  // rounded to T before the weight, as the models do
            store(target, load(target) * load(weight + j));
        }
    }
}

// RMSNorm of x[n][width]; width is a multiple of LANES.
extern "C" void rms_norm(int half, int n, int width, float epsilon, const void* x, const void* weight, void* out) {
    if (half)
        normalise(n, width, epsilon, (const uint16_t*)x, (const uint16_t*)weight, (uint16_t*)out);
    else
        normalise(n, width, epsilon, (const float*)x, (const float*)weight, (float*)out);
}

// Sums of exp(x - best) over parts of `part` of a row (a multiple of LANES; the last one may be shorter), best its largest.
extern "C" void exponential_sums(int n, int width, int part, const float* x, float* best, double* sums) {
    const int parts = (width + part - 1) / part;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < n; ++i) {
        const float* row = x + (int64_t)i * width;
        const int whole = width - width % LANES;
        vec most = (vec){} - INFINITY;
        ivec strange = {};
        for (int j = 0; j < whole; j += LANES) {
            vec v = load(row + j);
            most = v > most ? v : most;
            strange |= v != v;
        }
        float top = largest(most);
        for (int j = 0; j < LANES; ++j) top = strange[j] ? NAN : top;
        for (int j = whole; j < width; ++j) top = row[j] > top || row[j] != row[j] ? row[j] : top;
        best[i] = top;
        for (int p = 0; p < parts; ++p) {
            const int end = (p + 1) * part < width ? (p + 1) * part : width;
            vec total = (vec){};
            int j = p * part;
            for (; j + LANES <= end; j += LANES) total += exponential(load(row + j) - top);
            float rest = 0;
            for (; j < end; ++j) rest += expf(row[j] - top);
            sums[(int64_t)i * parts + p] = (double)(sum(total) + rest);
        }
    }
}
