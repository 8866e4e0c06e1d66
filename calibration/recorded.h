/* From recordings of other software's runs (traces/recording.h) to a profile: `calibrate --from`.
 *
 * Traces: seconds of kernels are summed up by the module that their names tell, and compared with those that the plan
 * of the same job takes under a profile to start from. Four factors follow, on products, attention, the optimizer and
 * all other kernels, one on each collective, and one on all of them, so that the step is the measured one.
 * Step logs: as --measured (job/measured.h), one step for each pair of sequence length and micro batch that rows tell.
 * Logs of nccl-tests become tables of collectives; nvidia-smi's CSV says which device it is, and its memory. */
#ifndef TWS_CALIBRATION_RECORDED_H
#define TWS_CALIBRATION_RECORDED_H

#include <cjson/cJSON.h>

#include "calibration/attribute.h"
#include "calibration/products.h"
#include "job/measured.h"

typedef struct tws_recorded_request {
  const tws_job_spec *spec; /* of the runs; without a model only tables and facts of devices are read */
  const tws_strings *files;
  int64_t steps; /* that a trace without marks of steps has; 0: not said */
} tws_recorded_request;

typedef struct tws_recorded_row {
  double calls, measured_s, predicted_s; /* of one step of one device; calls: of kernels measured */
} tws_recorded_row;

enum { TWS_RECORDED_UNKNOWN = 20 };
typedef struct tws_recorded_result {
  char base[256], device[128];
  int traces, logs, tables; /* recordings of each kind */
  int kernels_on_device;
  int sizes;                                      /* of collectives that the trace has */
  double uniform;                                 /* the factor on all, with which the step is the measured one */
  double collective_factor[TWS_COLLECTIVE_COUNT]; /* by which tables of these sizes are divided, as corrections apply */
  tws_recorded_row part[TWS_PART_COUNT];
  tws_product_row product[TWS_PRODUCT_ROWS]; /* where the trace has their sizes */
  int product_count;
  double kernel_s, unattributed_s; /* of one step, measured */
  struct {
    char name[96];
    double seconds;
  } unknown[TWS_RECORDED_UNKNOWN]; /* kernels without a module, the longest first */
  int unknown_count;
  double measured_s, before_s, after_s; /* of the step; 0: no file says one */
  tws_rescaling rescaling;              /* of step logs */
  cJSON *profile;                       /* the file; the caller deletes it */
  int64_t left_out;                     /* events beyond what is kept */
} tws_recorded_result;

/* The caller deletes out->profile in any case. TWS_USAGE where a trace or a log needs a model, or no file tells the
 * device; TWS_INVALID for files. */
tws_code tws_recorded_profile(const tws_recorded_request *request, tws_recorded_result *out, tws_error *err);

/* The built-in profile of a device by the driver's name ("NVIDIA GeForce RTX 4090"); NULL: none is known. */
const char *tws_profile_of_device(const char *name);

#endif
