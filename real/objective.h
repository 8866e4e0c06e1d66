/* Builds the inputs of a network for its training objective (tws_objective).
 *
 * - NEXT_TOKEN: tokens, and as targets the tokens that follow them (real/data.h).
 *
 * - MASKED: 15 % of the tokens of a sample are predicted (Devlin et al., 2019, section 3.1), at least one and at most
 * network->predictions: 80 % of these are replaced by the mask, 10 % by a random token and 10 % are unchanged. The
 * choice depends on the seed, the step and the position of the sample in the global batch. twinspeed.ignored_token is
 * padding: it is not predicted, and a sample ends with the last other token.
 *
 * - SENTENCES: two texts as [CLS] A [SEP] B [SEP], whose other tokens are masked as in MASKED, and a class: 0 if B
 * follows A, 1 if it is from elsewhere (Devlin et al., 2019, section 3.1 and appendix A.2). A is the beginning of a
 * sample, up to a random token; B is the rest of it or, for half of the samples, the same range of another sample. A
 * file of lines with labels (real/pairs.h) has both texts and marks in its input, B's types are 1, and its label is
 * the class.
 *
 * - PAIRS: a source for the encoder and its target. They come from a file of pairs (real/pairs.h), or from a text by
 * span corruption (Raffel et al., 2020, section 3.1.4: 15 % of the tokens, spans of 3 on average): the source is the
 * text with a sentinel in place of each span, the target is the spans, each after its sentinel. The choice depends on
 * the seed, the step and the position of the sample. Both end with the network's end_token, and are truncated if too
 * long. The decoder reads start_token and the target without its last token; padding does not count, neither as a key
 * nor as a target.
 *
 * - PICTURES: pictures and their classes (real/pictures.h), in the order of samples of texts, and which rows are
 * patches and which are class tokens. Noise is normal with deviation 1, and depends on the seed, the step and the
 * position of the sample in the global batch; constant inputs have their value.
 *
 * - CLASSES: a text and its class, of a file with labels (real/pairs.h): the classified token is the first if tokens
 * see all others, else the last. TAGS: a text and a class for each token. SPANS: a text and the first
 * and the last token of an answer in it; neither counts if the truncated text does not have the whole answer.
 * Such texts end with the network's pad_token, and are truncated if too long.
 *
 * Where documents are packed (twinspeed.document_end_token), the last token of each has no target, as the next token
 * is of another document, and the token that ends a document is never masked. Inputs for which a text has no data,
 * segments, are 0. */
#ifndef TWS_REAL_OBJECTIVE_H
#define TWS_REAL_OBJECTIVE_H

#include "models/network/network.h"
#include "real/data.h"

typedef struct tws_objective_source {
  const tws_network *network;
  const tws_data *data;
  const tws_batch_shape *shape;
  tws_dtype dtype;      /* for PICTURES: type of the patches' elements, which is that of activations */
  int64_t target;       /* for PAIRS: twinspeed.target_length, the number of target tokens */
  int64_t document_end; /* twinspeed.document_end_token; -1: a sample is one document */
} tws_objective_source;

/* Determines for each of `count` tokens the index of the first token of its document, and the index after the
 * document's last token: int32 [count][2]. A document ends with end_token, or with the last token. */
void tws_documents_find(const int32_t *tokens, int64_t count, int64_t end_token, int32_t *documents);

/* Opens the training data of the network: pictures, or a file of tokens or labelled texts. Fails as tws_pictures_open()
 * and tws_data_open() do. */
tws_code tws_objective_open(const tws_network *network, const char *path, int64_t sequence, int64_t train_batch,
                            uint64_t seed, tws_data *data, tws_error *err);
/* Opens data of batches in memory (tws_data_set_batch()). Fails with TWS_UNSUPPORTED for pictures and for labelled
 * texts, which come from files. */
tws_code tws_objective_open_memory(const tws_network *network, int64_t sequence, int64_t train_batch, uint64_t seed,
                                   tws_data *data, tws_error *err);
/* Fills one rank's share of step `step`, counted from 0. input[i]: buffer of the network's input i for all
 * micro-batches, one after another. Fails as tws_data_fill() does. */
tws_code tws_objective_fill(const tws_objective_source *source, int64_t step, void *const input[TWS_NETWORK_INPUTS],
                            tws_error *err);

#endif
