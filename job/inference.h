/* The configuration of DeepSpeed's inference engine (DeepSpeedInferenceConfig), which deepspeed.init_inference() takes:
 * its keys become settings of a job, or are explained. */
#ifndef TWS_JOB_INFERENCE_H
#define TWS_JOB_INFERENCE_H

#include "job/spec.h"

typedef struct tws_inference {
  int given;           /* 1: the job's configuration file was one of DeepSpeed's inference engine */
  int weight_codes;    /* quant: type of codes (tws_code_type); 0: weights have the job's type */
  int64_t most_tokens; /* max_out_tokens: tokens of a prompt and its output together; 0: no limit */
  tws_text notes;      /* a line for each key that has no effect, with the reason; the caller frees it */
} tws_inference;

/* If spec->config names a regular file with keys of an inference configuration and none of a training, reads it, sets
 * tensor ranks and type of the spec unless options gave them, and sets spec->config to NULL; otherwise changes nothing.
 * Fails with TWS_INVALID, and with file, line and key, for unknown keys and bad values. */
tws_code tws_inference_read(tws_job_spec *spec, tws_inference *out, tws_error *err);

#endif
