/* The functions whose bits are part of the answer (DESIGN 3, rule 2): fixed operations, the same on every host.
 * Only + - * / sqrt fma rint come from the platform.  contract.py is the executable form of exp and SwiGLU. */
#ifndef POT_KERNELS_MATH_H
#define POT_KERNELS_MATH_H

#include <stdint.h>

float pot_expf(float x);                                  /* clamped to [-87.33654, 88.37626]; error under 1 ulp */
float pot_swiglu(float g, float u);                       /* (g / (1 + exp(-g))) * u */
float pot_sigmoid(float x);                               /* 1 / (1 + exp(-x)) */
double pot_log(double x);                                 /* x > 0; fixed double operations; error under 2 ulp */
double pot_exp(double x);                                 /* fixed double operations; error under 2 ulp */
void pot_sincos(float *sine, float *cosine, float angle); /* of the f32 angle; through double, |angle| < 2^30 */
/* theta^(-2j/d) for j in [0, d/2): fixed double operations, rounded to f32 once.  out[d/2] */
void pot_rope_frequencies(float *out, double theta, uint32_t d);

/* Row norms: element i goes into accumulator i mod 16 (one fmaf), the sixteen are combined 8-4-2-1.
 * y may be x.  y = (x * (1 / sqrt(mean(x^2) + eps))) * weight; LayerNorm with population variance. */
float pot_combine(float lane[16]); /* spoils lane */
void pot_rms_norm(float *y, const float *x, const float *weight, uint32_t n, float eps);
void pot_layer_norm(float *y, const float *x, const float *weight, const float *bias, uint32_t n, float eps);

#endif
