/* exp, log, sine, cosine and the row norms with operations that every host rounds alike.
 *
 * pot_expf: n = rint(x / ln 2), r = x - n ln 2 in two fma steps, a polynomial of degree 6, times 2^n.
 * pot_log, pot_exp and pot_sincos: the usual reductions with the minimax coefficients that fdlibm made well
 * known, in double; +, -, *, /, fma and rint are correctly rounded everywhere, so the order written here is
 * the whole contract. */
#include "kernels/math.h"

#include <math.h>
#include <string.h>

#include "kernels/convert.h"

static double double_from_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float pot_expf(float x) {
    x = x < -87.33654f ? -87.33654f : x;
    x = x > 88.37626f ? 88.37626f : x;
    if (x != x) return x;
    float n = rintf(x * 1.44269504088896341f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    float y = fmaf(p, r * r, r) + 1.0f;
    /* The clamp keeps n within [-126, 127]: 2^n is a normal number and the product is rounded once. */
    return y * pot_f32_from_bits((uint32_t)((int32_t)n + 127) << 23);
}

float pot_swiglu(float g, float u) { return g / (1.0f + pot_expf(-g)) * u; }

float pot_sigmoid(float x) { return 1.0f / (1.0f + pot_expf(-x)); }

static const double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;

double pot_log(double x) {
    int exponent = 0;
    if (x < 0x1p-1022) { /* subnormal: make room in the exponent */
        x *= 0x1p54;
        exponent = -54;
    }
    uint64_t bits = double_bits(x);
    exponent += (int)(bits >> 52) - 1023;
    double m = double_from_bits((bits & 0xfffffffffffffu) | (uint64_t)1023 << 52);
    if (m > 1.41421356237309504880) {
        m *= 0.5;
        exponent++;
    }
    double f = m - 1.0, s = f / (2.0 + f), z = s * s, half_square = 0.5 * f * f;
    double p = 1.479819860511658591e-01;
    p = p * z + 1.531383769920937332e-01;
    p = p * z + 1.818357216161805012e-01;
    p = p * z + 2.222219843214978396e-01;
    p = p * z + 2.857142874366239149e-01;
    p = p * z + 3.999999999940941908e-01;
    p = p * z + 6.666666666666735130e-01;
    double k = (double)exponent;
    return k * LN2_HIGH - ((half_square - (s * (half_square + p * z) + k * LN2_LOW)) - f);
}

double pot_exp(double x) {
    if (x > 709.782712893383973096) return INFINITY;
    if (x < -745.133219101941108420) return 0.0;
    if (x != x) return x;
    double k = rint(x * 1.44269504088896338700);
    double high = x - k * LN2_HIGH, low = k * LN2_LOW, r = high - low, t = r * r;
    double p = 4.13813679705723846039e-08;
    p = p * t - 1.65339022054652515390e-06;
    p = p * t + 6.61375632143793436117e-05;
    p = p * t - 2.77777777770155933842e-03;
    p = p * t + 1.66666666666666019037e-01;
    double c = r - t * p;
    double y = 1.0 + (r * c / (2.0 - c) - low + high);
    /* 2^k in two factors: k reaches -1075 and 1024, which one normal number cannot hold. */
    int first = (int)k / 2, second = (int)k - first;
    return y * double_from_bits((uint64_t)(first + 1023) << 52) * double_from_bits((uint64_t)(second + 1023) << 52);
}

void pot_sincos(float *sine, float *cosine, float angle) {
    /* pi/2 in three doubles.  n < 2^30 and the first fma is exact (its result is a multiple of 2^-52 below
     * 1), so what is left of the angle is good to far more than the bits of a float even next to a multiple
     * of pi/2. */
    double a = (double)angle, n = rint(a * 6.36619772367581382433e-01);
    double r = fma(n, -0x1.921fb54442d18p+0, a);
    r = fma(n, -0x1.1a62633145c07p-54, r);
    r = fma(n, 0x1.f1976b7ed8fbcp-110, r);
    double z = r * r;
    double s = 1.58969099521155010221e-10;
    s = s * z - 2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    s = r + r * z * s;
    double c = -1.13596475577881948265e-11;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    c = 1.0 - 0.5 * z + z * z * c;
    unsigned quadrant = (unsigned)(int64_t)n & 3u;
    double sine_part = quadrant & 1u ? c : s, cosine_part = quadrant & 1u ? s : c;
    *sine = (float)(quadrant & 2u ? -sine_part : sine_part);
    *cosine = (float)((quadrant + 1u) & 2u ? -cosine_part : cosine_part);
}

void pot_rope_frequencies(float *out, double theta, uint32_t d) {
    double log_theta = pot_log(theta);
    for (uint32_t j = 0; j < d / 2; j++) out[j] = (float)pot_exp(-(2.0 * (double)j / (double)d) * log_theta);
}

enum { LANES = 16 };

float pot_combine(float lane[LANES]) {
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++) lane[i] += lane[i + step];
    return lane[0];
}

/* Sum over i of (x[i] - shift)^2. */
static float sum_of_squares(const float *x, uint32_t n, float shift) {
    float lane[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        float d = x[i] - shift;
        lane[i % LANES] = fmaf(d, d, lane[i % LANES]);
    }
    return pot_combine(lane);
}

void pot_rms_norm(float *y, const float *x, const float *weight, uint32_t n, float eps) {
    float scale = 1.0f / sqrtf(sum_of_squares(x, n, 0.0f) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * scale * weight[i];
}

void pot_layer_norm(float *y, const float *x, const float *weight, const float *bias, uint32_t n, float eps) {
    float lane[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) lane[i % LANES] += x[i];
    float mean = pot_combine(lane) / (float)n;
    float scale = 1.0f / sqrtf(sum_of_squares(x, n, mean) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = fmaf((x[i] - mean) * scale, weight[i], bias[i]);
}
