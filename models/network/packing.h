/* Packs several documents into one sample ("packed sequences"): tokens do not attend to other documents, and positions
 * are counted from the first token of each document, so that each document is trained as if it were a sample of its
 * own. */
#ifndef TWS_MODELS_PACKING_H
#define TWS_MODELS_PACKING_H

#include "config/ds_config.h"
#include "models/network/network.h"

/* Applies twinspeed.document_end_token: adds inputs that have the bounds of documents (TWS_INPUT_DOCUMENTS, and
 * TWS_INPUT_POSITIONS if there is a table of positions), and makes modules that read other tokens or positions use
 * these inputs. Without the key it changes nothing.
 *
 * Fails with TWS_INVALID if the vocabulary does not have the token, or document_length is given without it;
 * TWS_UNSUPPORTED if the network's samples are not plain sequences of tokens, or a module reads other tokens in a way
 * that cannot be restricted to documents; the message names the module. */
tws_code tws_network_pack(tws_network *network, const tws_config *config, tws_error *err);

#endif
