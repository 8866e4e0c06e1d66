/* The cache of keys and values of a program of inference (plan/serving.h), which is an entry of the state. */
#ifndef TWS_PLAN_CACHE_H
#define TWS_PLAN_CACHE_H

#include "plan/lower.h"

/* Adds the cache of this rank's layers to the state; does nothing for other programs. */
tws_code tws_cache_begin(tws_lower *l);
/* Returns 1 if a module is attention that a program of inference lowers with the cache. */
int tws_cache_has(const tws_lower *l, const tws_module *m);
/* Lowers such a module: writes keys and values of the program's tokens to the cache, and attends to the prompts or
 * to the cache. */
void tws_cache_attention(tws_lower *l, const tws_module *m);
/* Returns 1 for a module that a decode does not run: one that expands compressed rows of latent attention to keys and
 * values, as attention reads the compressed rows themselves, or one on the source of an encoder-decoder. */
int tws_cache_skips(const tws_lower *l, const tws_module *m);
/* Lowers the loss of the head to a copy of the scores. */
void tws_cache_scores(tws_lower *l, const tws_module *m);

#endif
