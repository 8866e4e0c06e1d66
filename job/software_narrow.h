/* Memory of matrix products in 8 and 4 bits as Transformer Engine keeps their inputs and weights. */
#ifndef TWS_JOB_SOFTWARE_NARROW_H
#define TWS_JOB_SOFTWARE_NARROW_H

#include "job/job.h"

/* Returns 1 if the inputs of matrix products are kept for backward in 8 or 4 bits. */
int tws_software_keeps_narrow(const tws_config *config);
/* Returns 1 if backward recomputes the outputs of activation functions. */
int tws_software_recomputes_activations(const tws_config *config);
/* Return the bytes that a stage keeps in addition to its plan, which can be less than 0, in inputs of products that
 * wait for backward, and in weights; 0 unless the runtime's row says so (narrow_inputs, narrow_weights). */
double tws_software_narrow_inputs(const tws_job *job, const tws_stage_estimate *stage);
double tws_software_narrow_weights(const tws_job *job, const tws_stage_estimate *stage);

#endif
