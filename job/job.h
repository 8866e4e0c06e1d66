/* A job: a model, its configuration, the machine, and the number of ranks.
 *
 * Code that reads plans (estimators/, sim/, real/) takes a tws_plan_request and a tws_machine, which a job provides;
 * all other code takes a job. Callers read a job's public members and write only those whose comment allows it. */
#ifndef TWS_JOB_JOB_H
#define TWS_JOB_JOB_H

#include "base/log.h"
#include "estimators/estimators.h"
#include "job/rescaling.h"
#include "job/runtime_choice.h"
#include "job/spec.h"
#include "job/variant.h"
#include "plan/representatives.h"

typedef struct tws_job {
  const tws_network *network;
  tws_config *config; /* resolved when `ranks` is chosen; until then the caller may change it */
  /* The program that plans are built for: a training step, unless the caller chooses another. An evaluation holds the
   * model's parameters and no gradients or optimizer states. */
  tws_program program;
  tws_cluster cluster; /* the caller may change it while `ranks` is 0 */
  const tws_profile *profile;
  tws_machine machine; /* cluster and profile */
  tws_backend_kind backend;
  int ranks;                /* 0: the number is not chosen yet, and the job cannot be planned */
  int threads;              /* threads of one host rank; 1 on GPUs */
  tws_topology topology;    /* the arrangement of the ranks along axes */
  tws_node_mapping mapping; /* the nodes and NICs of the ranks */
  /* 1: the program assumed the data type (that of the model's file, or else float32), the runtime, or the sequence
   * length, because neither a flag nor a file states it (job/assumed.h) */
  int assumed_dtype, assumed_runtime, assumed_sequence;
  char runtime_why[TWS_RUNTIME_WHY]; /* why the job has its runtime; "": a caller assembled the job */
  tws_rescaling rescaling;           /* the factors by which measurements (spec->measured) rescaled the profile */
  struct tws_job_parts *parts;       /* private: the objects that the job owns */
} tws_job;

/* Loads a job, validates it, and resolves its configuration. Fails with TWS_USAGE without a model, and with TWS_INVALID
 * for bad files or keys and for more ranks than devices. */
tws_code tws_job_load(const tws_job_spec *spec, tws_job **out, tws_error *err);
/* Loads an open job, without a number of ranks, from which searches derive jobs with tws_job_derive(). */
tws_code tws_job_open(const tws_job_spec *spec, tws_job **out, tws_error *err);
void tws_job_destroy(tws_job *job); /* NULL is allowed */

/* The parts of a job that the caller has read; config is not resolved. The job owns network, config and profile after
 * the call, even if tws_job_assemble() fails. */
typedef struct tws_job_parts_given {
  tws_network *network;
  tws_config *config;
  tws_profile *profile;
  tws_cluster cluster;
  int ranks; /* 0: the job stays open */
} tws_job_parts_given;
tws_code tws_job_assemble(const tws_job_parts_given *parts, tws_job **out, tws_error *err);

/* Builds a resolved job from `base` with a variant's settings. It must not outlive `base`, which owns the network of
 * the derived job: that of `base`, or a copy whose vocabulary is padded further for tensor ranks. */
tws_code tws_job_derive(tws_job *base, const tws_variant *variant, tws_job **out, tws_error *err);
/* Returns the variant that describes the settings of a job with a known number of ranks, as a search would name
 * them. */
tws_variant tws_job_variant(const tws_job *job);
/* Replaces the profile by another profile of the same machine. The job then owns the new profile. */
void tws_job_set_profile(tws_job *job, tws_profile *profile);

/* Corrects the profile by measured training runs (tws_profile_correct()). To be called only for a job that owns its
 * profile, not for a derived one. */
void tws_job_correct_profile(tws_job *job, const tws_profile_correction *correction);

/* Rescales the profile by tws_profile_rescale(). To be called only for a job that owns its profile. */
void tws_job_rescale_profile(tws_job *job, const double factor[TWS_SCALE_COUNT]);

/* ---- its ranks ---- */
/* Returns the ranks along an axis; 1 without that axis. */
int tws_job_ranks_along(const tws_job *job, tws_axis axis);
/* Return the number of pipeline stages, and a stage's representative rank: the first along every other axis. */
int tws_job_stages(const tws_job *job);
int tws_job_stage_rank(const tws_job *job, int stage);
/* Lists representative ranks, such that every rank of the job has the same plan as one of them; lists all ranks if
 * there are at most `every_up_to`. */
tws_code tws_job_representatives(const tws_job *job, int every_up_to, tws_rank_set *out, tws_error *err);
/* Returns the tokens of a sample: the configuration's, or else the number of the model's positions. */
int64_t tws_job_sequence(const tws_job *job);
/* Return the throughput of the whole job, in samples/s and in tokens/s, if a step takes step_s seconds. */
double tws_job_samples_per_s(const tws_job *job, double step_s);
double tws_job_tokens_per_s(const tws_job *job, double step_s);

/* ---- its plans ---- */
tws_plan_request tws_job_request(const tws_job *job, int rank);
tws_code tws_job_plan(const tws_job *job, int rank, tws_plan **out, tws_error *err);
/* Builds a plan of at most `micro_batches` of the step's micro-batches. */
tws_code tws_job_part_plan(const tws_job *job, int rank, int64_t micro_batches, tws_plan **out, tws_error *err);
/* Sets job->program to the program of that name; NULL: leaves it unchanged. Fails with TWS_USAGE for an unknown
 * name. */
tws_code tws_job_choose_program(tws_job *job, const char *name, tws_error *err);
/* Builds the plan of `program` instead of job->program. state: the state of a plan that was built before, over which
 * the program runs; NULL: the plan has a state of its own. */
tws_code tws_job_program(const tws_job *job, int rank, tws_program program, tws_state *state, tws_plan **out,
                         tws_error *err);

/* ---- predictions ---- */
tws_code tws_job_fingerprint(const tws_job *job, tws_fingerprint *out, tws_error *err);
/* Estimates the job by tws_estimate_job(). stages: receives an estimate for each of the tws_job_stages() stages; may be
 * NULL. */
tws_code tws_job_estimate(const tws_job *job, tws_estimate *out, tws_stage_estimate *stages, tws_error *err);

/* Computes a lower bound of the job's memory by tws_estimate_live(), in a fraction of the time of an estimate. */
tws_code tws_job_live(const tws_job *job, tws_ledger *out, tws_error *err);

/* Verifies the plans of several ranks together (tws_ranks_to_verify()) and reports what was verified, so that a clean
 * result does not claim more. max_ranks 0: as many ranks as take a few seconds. */
typedef struct tws_verification {
  /* ranks: number of ranks of the job; checked: number of ranks that were verified; together: 1 if all ranks were
   * verified together */
  int ranks, checked, together;
  int replicas;          /* number of whole replicas that were verified; 0: only one rank of each stage */
  int64_t micro_batches; /* number of verified micro-batches, which determine the whole step (plan/fold.h) */
  uint64_t operations;
} tws_verification;
tws_code tws_job_verify(const tws_job *job, int64_t max_ranks, tws_progress *progress, tws_verification *seen,
                        tws_error *err);

#endif
