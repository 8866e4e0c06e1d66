/* Derives the network of inference from that of a training: adds inputs with the positions of a program's tokens in
 * their texts, and computes scores only of the last tokens. */
#ifndef TWS_MODELS_SERVING_H
#define TWS_MODELS_SERVING_H

#include "models/network/network.h"

typedef enum tws_serving_part {
  /* all tokens of prompts, from their first one on; scores of the last token of each. Of an encoder-decoder prompts are
   * the sources, and the decoder has the first token of each text */
  TWS_SERVING_PROMPTS,
  TWS_SERVING_TOKENS   /* one token of each text at any position */
} tws_serving_part;

/* Returns the reason why a network cannot use a cache of keys and values, and writes the name of the module that it
 * concerns to *module; NULL: it can. */
const char *tws_network_unserved(const tws_network *network, const char **module);

/* Makes the network of a program of inference. It has the parameters of `network`, which must outlive it, in the same
 * order. Its inputs are tokens, TWS_INPUT_STARTS (the position of a sample's first token) and TWS_INPUT_LENGTHS (the
 * number of its tokens); of PROMPTS also TWS_INPUT_ROWS (the row of each sample's last token); of TOKENS also
 * TWS_INPUT_DOCUMENTS, if positions are rotary, with minus the token's position as the first token. Networks with a
 * table of positions have TWS_INPUT_POSITIONS. Those of an encoder-decoder have TWS_INPUT_SOURCE and TWS_INPUT_LENGTHS
 * of sources, and TWS_INPUT_COUNTS for the numbers of the decoder's tokens, and TWS_INPUT_ENDS; they have no rows.
 * Fails with TWS_UNSUPPORTED if tws_network_unserved(). weight_codes: the type of codes (tws_code_type) of the weights
 * of linear layers, except the head's and shared ones; 0: they are as in the training. blocks: if it is not 0, there is
 * also TWS_INPUT_BLOCKS with as many numbers for each sample. The caller destroys *out. */
tws_code tws_network_serve(const tws_network *network, tws_serving_part part, int weight_codes, int64_t blocks,
                           tws_network **out, tws_error *err);

#endif
