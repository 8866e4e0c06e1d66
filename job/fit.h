/* Compares the memory that a job's ranks need with the capacity of the machine. No other file decides if a job fits. */
#ifndef TWS_JOB_FIT_H
#define TWS_JOB_FIT_H

#include "job/job.h"
#include "models/hardware/runtime_interval.h"

/* Capacity of a machine for the ranks of a job, in bytes. */
typedef struct tws_capacity {
  int host;           /* ranks live in host memory: there are no devices */
  int ranks_per_node; /* at most */
  double overhead;    /* memory that the libraries of a rank need in addition to its arenas */
  double device;      /* memory of one device; 0 on hosts */
  double node;        /* host memory of one node; 0: not known, and not a limit */
  double disk;        /* disks of one node; 0: not known, and not a limit */
  /* limits of one rank's arenas: on its device, and in its share of the node's memory; equal on hosts */
  double rank_device, rank_node;
  double rank_disk; /* limit in its share of the node's disks */
} tws_capacity;
/* device_limit: bytes of one device (on hosts: of one rank) in place of the cluster's or profile's; 0: theirs. */
tws_capacity tws_capacity_of(const tws_machine *machine, int ranks, double device_limit);

typedef struct tws_fit {
  tws_capacity capacity;
  int fits;
  int tight;                       /* it fits, and the upper end of the runtime's interval exceeds the device */
  const tws_memory_interval *seen; /* measured-to-predicted memory of the runtime; NULL: hosts, or no job */
  double device_need;              /* of one device: arenas and libraries */
  double node_need;                /* of one node, all its ranks */
  double node_software;            /* part of node_need: host buffers of the runtime, beyond the plan */
  double disk_need;                /* of one node's disks */
  /* need of one rank in the memory that decides: the one that is too small, otherwise its device's */
  tws_tier tier;
  double rank_need, rank_have;
} tws_fit;
/* Compares the ledger of the fullest rank with the capacity. For a job, the memory of the profile's runtime is added to
 * the plan's; device_limit as above. */
tws_fit tws_fit_of(const tws_capacity *capacity, const tws_ledger *ledger);
tws_fit tws_job_fit(const tws_job *job, const tws_ledger *ledger);
tws_fit tws_job_fit_within(const tws_job *job, const tws_ledger *ledger, double device_limit);
/* Returns the largest predicted bytes for which the upper end of the runtime's interval still fits into one device; 0:
 * the whole device, as for this program's own engine and for hosts. */
double tws_job_limit_with_margin(const tws_job *job);
/* Refuses a job that does not fit, stating the tier and the amount: "does not fit: a device needs 90 GiB and has 80
 * GiB". TWS_NO with the hint. */
tws_code tws_fit_refuse(const tws_fit *fit, const char *hint, tws_error *err);
/* Refuses a tight fit, stating by how much the interval exceeds the device. TWS_NO with the hint. */
tws_code tws_fit_refuse_tight(const tws_fit *fit, const char *hint, tws_error *err);

/* Checks that this build can train on the hardware of the job's cluster; `by_cluster`, `by_profile`: 1 if that option
 * chose it, for the hint. TWS_UNSUPPORTED: the cluster has GPUs and this build no CUDA backend; TWS_ENVIRONMENT: the
 * engine's module is missing. */
tws_code tws_job_check_engine(const tws_job *job, int by_cluster, int by_profile, tws_error *err);

/* Computes the memory that the first `here` ranks of a job need on this machine, and the memory that is free now. With
 * `evaluates` the ranks also hold plans for evaluation over the same state. */
typedef struct tws_local_fit {
  int fits;
  int limited;       /* by a control group */
  double need, have; /* have 0: not known */
} tws_local_fit;
tws_code tws_job_fit_here(const tws_job *job, int here, int evaluates, tws_local_fit *fit, tws_error *err);

#endif
