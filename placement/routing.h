/* Tokens that are routed like those of a real model, made from nothing but how often it chooses each expert.
 *
 * A token wants expert e of a layer with weight heat[e] * exp(sigma * z[e]), and takes k different experts.  z is a walk of each expert
 * with variance 1 that remembers the part `rho` of itself from token to token, so that what was wanted lately is wanted again; each prompt
 * begins anew.  With `stick` a token also keeps each expert of the one before, by that chance.  Topics: a prompt is about one of them, and
 * experts have likings that return with it.
 *
 * Deterministic from the seed on every machine: own random numbers, own exp, operations in a fixed order.  One owner.
 */
#ifndef POT_PLACEMENT_ROUTING_H
#define POT_PLACEMENT_ROUTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* How often each expert was chosen. */
typedef struct pot_heat {
    uint32_t n_layers, n_experts;
    double *of;      /* [n_layers][n_experts] relative within a layer */
    uint32_t *layer; /* [n_layers] its number in the model */
} pot_heat;
/* Text, CSV: lines of a layer's number and a count for each expert; lines with `#` and a heading are passed over.  `name` is for sentences. */
pot_status pot_heat_parse(pot_heat **out, const char *text, size_t bytes, const char *name, pot_err *err);
void pot_heat_free(pot_heat *heat); /* NULL is fine */

typedef struct pot_routing_options {
    const pot_heat *heat; /* borrowed */
    uint32_t k;           /* experts of a token and layer; each layer needs as many with heat */
    double sigma, rho, stick;
    uint32_t prompt_tokens; /* a new prompt after so many; 0 = one prompt for ever */
    uint32_t topics;        /* 0 = none */
    double topic_part;      /* of the variance of z, what the topic explains: 0 to 1 */
    uint64_t seed;
} pot_routing_options;

/* What fits GLM-5.2 and Qwen3-30B: tests/test_routing.c. */
#define POT_ROUTING_GLM_52 .k = 8, .sigma = 1.7, .rho = 0.99, .stick = 0.10
#define POT_ROUTING_QWEN3_30B .k = 8, .sigma = 2.2, .rho = 0.99

typedef struct pot_routing pot_routing;
pot_status pot_routing_create(pot_routing **out, const pot_routing_options *options, pot_err *err);
void pot_routing_free(pot_routing *routing); /* NULL is fine */
/* The next token: chosen[layer * k + i], in no order.  true when it begins a prompt. */
bool pot_routing_next(pot_routing *routing, uint32_t *chosen);
/* What the latest token's choice was drawn by, [n_layers][n_experts], borrowed until the next: what no cache can know. */
const double *pot_routing_weights(const pot_routing *routing);
/* What a router that looks at the layer before would guess for this token: each expert is found with the chance `recall`, and is another,
 * taken by weight, otherwise.  guess[layer * k + i], distinct within a layer.  After pot_routing_next. */
void pot_routing_guess(pot_routing *routing, double recall, uint32_t *guess);

#endif
