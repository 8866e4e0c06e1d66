/* Builds a hardware profile from recordings of runs of other software (traces/recording.h), for `calibrate
 * --from`.\n\nTraces: the seconds of kernels are summed up by the kind of module that their names indicate, and
 * compared with the seconds that the plan of the same job takes with a base profile. The results are four correction
 * factors (matrix products, attention, optimizer, all other kernels), one for each collective, and a common one, with
 * which the predicted step time equals the measured one.\nStep logs: as for --measured (job/measured.h), one step for
 * each pair of sequence length and micro-batch size.\nLogs of nccl-tests become tables of collectives; the CSV of
 * nvidia-smi states the device and its memory. */
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
  /* per step on one device: number of recorded kernels, measured seconds, predicted seconds */
  double calls, measured_s, predicted_s;
} tws_recorded_row;

enum { TWS_RECORDED_UNKNOWN = 20 };
typedef struct tws_recorded_result {
  char base[256], device[128];
  int traces, logs, tables; /* numbers of recordings: traces, step logs, and logs of nccl-tests */
  int kernels_on_device;
  int sizes; /* number of collective sizes in the trace */
  /* common factor on the times of all kernels and collectives, with which the predicted step time equals the measured
   * one */
  double uniform;
  /* factors that divide the tables of collectives from the trace, because the corrections multiply these tables
   * again */
  double collective_factor[TWS_COLLECTIVE_COUNT];
  tws_recorded_row part[TWS_PART_COUNT];
  /* the matrix products of the step, by size; filled only if the trace records the products' sizes */
  tws_product_row product[TWS_PRODUCT_ROWS];
  int product_count;
  double kernel_s, unattributed_s; /* measured seconds per step: all kernels, and kernels of no known module */
  struct {
    char name[96];
    double seconds;
  } unknown[TWS_RECORDED_UNKNOWN]; /* kernels that belong to no known module, the longest first */
  int unknown_count;
  /* seconds of a step: measured, predicted before the fit, and predicted after it; measured_s 0: no file states it */
  double measured_s, before_s, after_s;
  tws_rescaling rescaling; /* factors fitted to step logs */
  cJSON *profile;          /* JSON object of the new profile's file; the caller deletes it */
  int64_t left_out;        /* number of recorded events that exceeded the limit and were not read */
} tws_recorded_result;

/* Makes a profile from the recordings. Fails with TWS_USAGE if a trace or a log needs a model and none is given, or if
 * no file states the device, and with TWS_INVALID for invalid files. The caller deletes out->profile, also after an
 * error. */
tws_code tws_recorded_profile(const tws_recorded_request *request, tws_recorded_result *out, tws_error *err);

/* Returns the name of the built-in profile for a device, given the device's name in the driver ("NVIDIA GeForce RTX
 * 4090"); NULL if there is none. */
const char *tws_profile_of_device(const char *name);

#endif
