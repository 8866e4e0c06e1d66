/* Memory of inference by other software: what its sources allocate in addition to a plan's buffers
 * (models/hardware/serving.h). */
#ifndef TWS_JOB_SERVING_MEMORY_H
#define TWS_JOB_SERVING_MEMORY_H

#include "job/serving.h"

/* Returns 1 if the software divides the prompts of the `texts` texts of a micro batch into several passes, so that the
 * plan of one pass over all of them does not show its memory. */
int tws_serve_divides_prompts(const tws_serve_request *request, int64_t texts);
/* Returns how many weights of a row share a scale in the software of the request; 0: as many as in this program. */
int64_t tws_serve_code_block(const tws_job *job, const tws_serve_request *request);
/* Adds to the ledger of a rank, which is that of the decode or of both programs, what the software of the request needs
 * in addition for a micro batch of `micro` texts: as activations if it is due to passes, as workspace if it is always
 * there. Fails as tws_serving_make(). */
tws_code tws_serve_add_memory(const tws_job *job, const tws_serve_request *request, int64_t micro, tws_ledger *ledger,
                              tws_error *err);

#endif
