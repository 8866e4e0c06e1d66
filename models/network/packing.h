/* Several documents in one sample ("packed sequences"): tokens do not attend to other documents, and positions count
 * from the first token of each document, so that each document is trained as it would be alone. */
#ifndef TWS_MODELS_PACKING_H
#define TWS_MODELS_PACKING_H

#include "config/ds_config.h"
#include "models/network/network.h"

/* Applies twinspeed.document_end_token: inputs state where documents begin (TWS_INPUT_DOCUMENTS, and
 * TWS_INPUT_POSITIONS where there is a table of positions), and modules that read other tokens or positions take them.
 * Changes nothing without the key.
 *
 * TWS_INVALID: the vocabulary lacks the token, or document_length is set without it. TWS_UNSUPPORTED: a network whose
 * samples have a form of their own, or a module that reads other tokens in a way that cannot be confined to documents;
 * the message names it. */
tws_code tws_network_pack(tws_network *network, const tws_config *config, tws_error *err);

#endif
