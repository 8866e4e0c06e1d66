/* The communication log: the collectives and messages of a job's training steps, with their sizes, latencies and
 * bandwidths. Real training, emulated training and simulation all report the times at which each operation of a rank's
 * plan started and ended, so their logs have the same rows.
 *
 * A recorder stores the latencies of one rank's operations for some steps. A log merges the records of all ranks: the
 * operations of different ranks in one collective are one call. The latency of a call on a rank is the time from when
 * the rank enters it until it ends there. The shortest latency among the call's ranks is the call's transfer time,
 * since the rank that enters last does not wait; the rest of another rank's latency is that rank's waiting. So the
 * clocks of machines need not agree. DeepSpeed's comms_logger divides latencies in the same way.
 *
 *   tws_comm_recorder_create(plan, &filter, weight, steps, &recorder, err);
 *   after each step: tws_comm_recorder_add(recorder, times);
 *   tws_comm_log_merge(log, records, ranks, err); tws_comm_log_finish(log, err); */
#ifndef TWS_ESTIMATORS_COMM_LOG_H
#define TWS_ESTIMATORS_COMM_LOG_H

#include "plan/plan.h"

/* Codes of logged operations: the values of tws_collective, then messages. */
enum { TWS_COMM_SEND = TWS_COLLECTIVE_COUNT, TWS_COMM_RECEIVE, TWS_COMM_OPERATIONS };
/* Returns "all_reduce", "send", ...; the names are those of models/collectives.def and DeepSpeed. */
const char *tws_comm_name(int operation);
/* Returns the code of an operation by its name in the plan or in DeepSpeed ("all_to_all_single", "isend"), or -1. */
int tws_comm_find(const char *name);

/* Selects the operations that are logged. */
typedef struct tws_comm_filter {
  uint32_t operations; /* bit set of codes */
  int by_caller;       /* 1: calls by different modules are in different rows (comms_logger.debug) */
} tws_comm_filter;
/* Reads the filter of the section comms_logger; fails with TWS_INVALID for an unknown operation in prof_ops. */
tws_code tws_comm_filter_read(const tws_config *config, tws_comm_filter *out, tws_error *err);

enum { TWS_COMM_CALLER = 64 };
/* The properties that all calls of a row have in common. */
typedef struct tws_comm_key {
  uint64_t bytes; /* bytes of the collective's larger operand (for a gather or scatter the data of all ranks), or of the
                   * message */
  uint32_t axes;  /* tws_axes of the group; 0 for messages */
  uint32_t ranks; /* number of ranks of the group; 2 for messages */
  uint8_t operation, dtype, pad[6];
  char caller[TWS_COMM_CALLER]; /* "backward h.0.mlp.c_fc"; "" unless calls are divided by caller */
} tws_comm_key;
/* Returns the size in bytes that DeepSpeed logs: for operations that gather or scatter, the data of one rank, otherwise
 * the whole operand. */
uint64_t tws_comm_message_bytes(const tws_comm_key *key);

typedef struct tws_comm_call {
  tws_comm_key key;
  uint64_t id; /* equal on all ranks of the same collective or message */
} tws_comm_call;

/* Total seconds and number of executions of one kind of work on a rank. Ranks that run the same kernel with the same
 * shape and types have the same kind of work. */
typedef struct tws_comm_work {
  uint64_t work; /* hash of kernel, shape and types */
  double seconds, count;
} tws_comm_work;

/* The latencies and computing times that one rank has recorded during some steps. */
typedef struct tws_comm_record {
  int32_t rank;
  uint32_t steps, call_count, work_count;
  double weight; /* number of ranks that this rank represents */
  tws_comm_call *calls;
  float *latency_s; /* [step][call] */
  tws_comm_work *works;
} tws_comm_record;

typedef struct tws_comm_recorder {
  tws_comm_record record;
  const tws_plan *plan;
  uint32_t *op_of_call;
  uint32_t *work_of; /* [work of the plan] index in record.works, or TWS_NONE for works that do not compute */
  uint32_t capacity; /* largest number of steps that the record can store */
  int64_t added;     /* number of all steps so far */
} tws_comm_recorder;

/* Creates a recorder with room for `steps` steps. The plan must exist as long as the recorder. */
tws_code tws_comm_recorder_create(const tws_plan *plan, const tws_comm_filter *filter, double weight, uint32_t steps,
                                  tws_comm_recorder **out, tws_error *err);
void tws_comm_recorder_destroy(tws_comm_recorder *recorder); /* NULL is allowed */
/* Adds a step. times: [op_count][2] seconds at which each operation started (entered its group) and ended. Allocates
 * nothing. Must not be called if the recorder is full. */
void tws_comm_recorder_add(tws_comm_recorder *recorder, const double *times);
static inline int tws_comm_recorder_is_full(const tws_comm_recorder *recorder) {
  return recorder->record.steps == recorder->capacity;
}
/* Removes the recorded latencies after they were merged; sums of computing times stay. */
void tws_comm_recorder_clear(tws_comm_recorder *recorder);
/* Appends the record to `out` as bytes, or reads such bytes; *out then points into memory of `arena`. */
void tws_comm_record_pack(const tws_comm_record *record, tws_text *out);
tws_code tws_comm_record_unpack(const unsigned char *bytes, uint64_t count, tws_arena *arena, tws_comm_record *out,
                                tws_error *err);

/* A growing list of the durations of calls in seconds; calls after the first TWS_COMM_SAMPLES are not added. */
enum { TWS_COMM_SAMPLES = 1 << 16 };
typedef struct tws_comm_samples {
  float *s;
  size_t count, capacity;
} tws_comm_samples;

typedef struct tws_comm_row {
  tws_comm_key key;
  double count;      /* calls of all steps: a group's collective is one call; a send and its receive are two */
  double latency_s;  /* sum over the calls of the mean latency of their ranks */
  double transfer_s; /* sum over the calls of their transfer times */
  double min_s;      /* shortest transfer */
  tws_comm_samples latencies, transfers; /* mean latency and transfer time of each call */
  double *waiting_s;                     /* [rank of the log] sum of the rank's waiting times, seconds */
} tws_comm_row;

typedef struct tws_comm_rank {
  int rank;
  double computing_s, waiting_s, transfer_s; /* sums over the recorded steps */
  double expected_s;   /* seconds that the rank's kernels would take at the median pace of the ranks that run them */
  double factor;       /* computing_s / expected_s; 1 if no other rank runs these kernels */
  double waited_for_s; /* sum over calls that this rank entered last: mean waiting time of the others */
  int is_straggler;    /* 1: the rank is slower, by more than the spread among the other ranks explains */
} tws_comm_rank;

typedef struct tws_comm_log {
  tws_comm_row *rows; /* after tws_comm_log_finish(): ordered by operation, axis, ranks, size and caller */
  size_t row_count, row_capacity;
  tws_comm_rank *ranks; /* in the order of the merged records */
  int rank_count, world;
  int64_t steps;
  struct tws_comm_pace *pace; /* seconds of each work on each rank */
} tws_comm_log;

/* Creates the log of a job with `world` ranks, of which `ranks` ranks are recorded. */
tws_code tws_comm_log_create(int ranks, int world, tws_comm_log **out, tws_error *err);
void tws_comm_log_destroy(tws_comm_log *log); /* NULL is allowed */
/* Adds records of all recorded ranks, which must cover the same steps; the order of ranks must be the same in all
 * calls. */
tws_code tws_comm_log_merge(tws_comm_log *log, const tws_comm_record *const *records, tws_error *err);
/* Sorts the rows and determines the stragglers. Call it after the last merge. */
tws_code tws_comm_log_finish(tws_comm_log *log, tws_error *err);

/* ---- bandwidths ---- */
typedef struct tws_comm_bandwidth {
  double algorithm, bus;
} tws_comm_bandwidth;
/* Returns bandwidths in Gbit/s by DeepSpeed's formulas (utils/comms_logging.py, calc_bw_log): n S/t for all-gather and
 * reduce-scatter, 2 S/t for all-reduce, else S/t, where S is the size that DeepSpeed logs. DeepSpeed uses the number of
 * all ranks of the job as n; here n is the number of ranks of the group. Both bandwidths are 0 if seconds is 0. */
tws_comm_bandwidth tws_comm_deepspeed_gbps(int operation, uint32_t ranks, uint64_t message_bytes, double seconds);
/* Returns bandwidths in GB/s as nccl-tests defines them (doc/PERFORMANCE.md): S/t, where S is the size of the larger
 * operand, and this value times 2 (n-1)/n for an all-reduce, (n-1)/n for all-gather, reduce-scatter, all-to-all, gather
 * and scatter. */
tws_comm_bandwidth tws_comm_nccl_gbs(int operation, uint32_t ranks, uint64_t bytes, double seconds);
/* Writes a size in the same form as DeepSpeed, such as "976.56 KB", and returns `text`. */
enum { TWS_COMM_SIZE_TEXT = 24 };
const char *tws_comm_size_text(uint64_t bytes, char text[TWS_COMM_SIZE_TEXT]);
/* Returns the mean of the values without the smallest tenth and the largest tenth, as DeepSpeed computes it; sorts the
 * values. If `constant` > 0, the mean is that of constant / value (for bandwidths). */
double tws_comm_trimmed_mean(float *values, size_t count, double constant);
double tws_comm_median(float *values, size_t count); /* sorts the values; 0 if there are none */
/* Writes the line that DeepSpeed prints with `verbose` for one call; step: index among the recorded steps. Returns the
 * line's length. */
int tws_comm_call_text(const tws_comm_record *record, uint32_t step, uint32_t call, char *text, size_t size);

/* ---- as JSON ---- */
struct cJSON;
/* Returns the log as JSON for the member "communication_log" of summaries; NULL if memory is exhausted. */
struct cJSON *tws_comm_log_json(tws_comm_log *log);
/* Reads the rows of a member "communication_log", without waiting times; errors name the file `path`. */
tws_code tws_comm_log_read_json(const struct cJSON *json, const char *path, tws_comm_log **out, tws_error *err);

#endif
