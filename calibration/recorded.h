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
  /* specification of the recorded runs; without a model, only tables of collectives and properties of devices are
   * read */
  const tws_job_spec *spec;
  const tws_strings *files;
  int64_t steps; /* number of steps in a trace without step marks; 0: not stated */
} tws_recorded_request;

typedef struct tws_recorded_row {
  /* seconds of one step on one device; calls: number of recorded kernels in it */
  double calls, measured_s, predicted_s;
} tws_recorded_row;

enum { TWS_RECORDED_UNKNOWN = 20 };
typedef struct tws_recorded_result {
  char base[256], device[128];
  int traces, logs, tables; /* numbers of recordings: traces, step logs, and logs of nccl-tests */
  int kernels_on_device;
  int sizes; /* number of collective sizes in the trace */
  /* the factor on all kernels and collectives with which the predicted step time equals the measured one */
  double uniform;
  /* factors by which the tables of collectives from the trace are divided, because corrections multiply them again */
  double collective_factor[TWS_COLLECTIVE_COUNT];
  tws_recorded_row part[TWS_PART_COUNT];
  /* the matrix products of the step, by size; filled only if the trace records the products' sizes */
  tws_product_row product[TWS_PRODUCT_ROWS];
  int product_count;
  double kernel_s, unattributed_s; /* measured seconds of all kernels of a step, and of those without a module */
  struct {
    char name[96];
    double seconds;
  } unknown[TWS_RECORDED_UNKNOWN]; /* kernels without a module, the longest first */
  int unknown_count;
  /* seconds of a step: measured, predicted before, and predicted after the fit; 0: no file states the measured one */
  double measured_s, before_s, after_s;
  tws_rescaling rescaling; /* factors fitted to step logs */
  cJSON *profile;          /* JSON object of the new profile's file; the caller deletes it */
  int64_t left_out;        /* number of recorded events that exceeded the limit and were not read */
} tws_recorded_result;

/* Makes a profile from the recordings. Fails with TWS_USAGE if a trace or a log needs a model and none is given, or if
 * no file states the device, and with TWS_INVALID for invalid files. The caller deletes out->profile, also after an
 * error. */
tws_code tws_recorded_profile(const tws_recorded_request *request, tws_recorded_result *out, tws_error *err);

/* Returns the name of the built-in profile of a device, by the driver's name of it ("NVIDIA GeForce RTX 4090"); NULL:
 * none is known. */
const char *tws_profile_of_device(const char *name);

#endif
