/* What the inputs of a network are made of, by what it is trained for (tws_objective).
 *
 * - NEXT_TOKEN: tokens, and as targets the tokens behind them (real/data.h).
 *
 * - MASKED: of the tokens of a sample 15 % are predicted (Devlin et al., 2019, section 3.1), at least one and at most
 *   network->predictions: 80 % of these are replaced by the mask, 10 % by any token and 10 % stay as they are. Which
 *   ones follows from the seed, the step and the place of the sample in the global batch. twinspeed.ignored_token is
 *   padding: it is not predicted, and a sample ends with the last other token.
 *
 * - SENTENCES: of two texts, as a network of [CLS] A [SEP] B [SEP] reads them, tokens but marks are masked likewise;
 *   and whether B follows A, 0, or is of somewhere else, 1 (Devlin et al., 2019, section 3.1 and appendix A.2). A is
 *   the beginning of a sample, up to a token that is drawn, B the rest of it or, for half of the samples, the same
 *   stretch of another one. A file of lines with labels (real/pairs.h) has both texts and marks in its input, B's
 *   types are 1, and its label is the class.
 *
 * - PAIRS: a source for the encoder and its target: those of a file of pairs (real/pairs.h), or of a text all tokens
 *   but spans that are left out, with a sentinel in the place of each, and these spans behind their sentinels (Raffel
 *   et al., 2020, section 3.1.4: 15 % of the tokens, spans of 3 on average). Which ones follows from the seed, the
 *   step and the place of the sample. Both end with the network's end_token, and what is too long is cut. The decoder
 *   reads start_token and the target but its end; padding does not count, neither as a key nor as a target.
 *
 * - PICTURES: pictures and their classes (real/pictures.h), in the order in which samples of texts come, and which
 *   rows are patches and which stand for the classes.
 *
 * - CLASSES: a text and its class, of a file with labels (real/pairs.h): which of its tokens is classified is the
 *   first where tokens see all others, else the last. TAGS: a text and a class for each of its tokens, likewise.
 *   SPANS: a text and the first and the last token of an answer in it, likewise; neither counts where the answer is
 *   not whole in what is left of the text. Such texts end with the network's pad_token, and what is too long is cut.
 *
 * Where documents are packed (twinspeed.document_end_token), the last token of each predicts nothing, as what follows
 * it is another one, and the token that ends them is never masked. Inputs that a text says nothing about, segments,
 * are 0. */
#ifndef TWS_REAL_OBJECTIVE_H
#define TWS_REAL_OBJECTIVE_H

#include "models/network/network.h"
#include "real/data.h"

typedef struct tws_objective_source {
  const tws_network *network;
  const tws_data *data;
  const tws_batch_shape *shape;
  tws_dtype dtype;      /* PICTURES: of activations */
  int64_t target;       /* PAIRS: twinspeed.target_length */
  int64_t document_end; /* twinspeed.document_end_token; -1: a sample is one text */
} tws_objective_source;

/* Of each of `count` tokens where its document begins and behind which token it ends, int32 [count][2]. A document ends
 * with end_token, or with the last token. */
void tws_documents_find(const int32_t *tokens, int64_t count, int64_t end_token, int32_t *documents);

/* Opens what the network is trained on: pictures, or else what tws_data_open() takes. Errors as theirs. */
tws_code tws_objective_open(const tws_network *network, const char *path, int64_t sequence, int64_t train_batch,
                            uint64_t seed, tws_data *data, tws_error *err);
/* One rank's part of 0-based step `step`. input: for each of the network's inputs what its buffer holds, all
 * micro-batches one after another. Errors as of tws_data_fill(). */
tws_code tws_objective_fill(const tws_objective_source *source, int64_t step, void *const input[TWS_NETWORK_INPUTS],
                            tws_error *err);

#endif
