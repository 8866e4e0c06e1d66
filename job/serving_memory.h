/* Memory of inference by other software: what its sources allocate in addition to a plan's buffers
 * (models/hardware/serving.h). */
#ifndef TWS_JOB_SERVING_MEMORY_H
#define TWS_JOB_SERVING_MEMORY_H

#include "job/serving.h"

/* Makes both programs for `micro` texts of a micro batch, whose prompts and whole texts have these numbers of tokens.
 * *config, the job's with the batch of these texts, must outlive *out. Fails as tws_serving_make(). */
tws_code tws_serve_programs(const tws_job *job, const tws_serve_request *request, int64_t micro, int64_t prompt,
                            int64_t text, tws_config *config, tws_serving *out, tws_error *err);
/* Returns a copy of `job` that runs one of the programs: its network, configuration and program are replaced. */
tws_job tws_serve_job_of(const tws_job *job, tws_serving *serving, int program);
/* Returns 1 if the software divides the prompts of the `texts` texts of a micro batch into several passes, so that the
 * plan of one pass over all of them does not show its memory. */
int tws_serve_divides_prompts(const tws_serve_request *request, int64_t texts);
/* Adds to the ledger of a rank, which is that of the decode or of both programs, what the software of the request needs
 * in addition for a micro batch of `micro` texts: as activations if it is due to passes, as workspace if it is always
 * there. Fails as tws_serving_make(). */
tws_code tws_serve_add_memory(const tws_job *job, const tws_serve_request *request, int64_t micro, tws_ledger *ledger,
                              tws_error *err);

#endif
