/* Compares the memory that a job's ranks need with the capacity of the machine. No other file decides whether a job
 * fits. */
#ifndef TWS_JOB_FIT_H
#define TWS_JOB_FIT_H

#include "job/job.h"
#include "models/hardware/runtime_interval.h"

/* Capacity of a machine for the ranks of a job, in bytes. */
typedef struct tws_capacity {
  int host;           /* 1: ranks have no devices, and their arenas are in host memory */
  int ranks_per_node; /* largest number of ranks on one node */
  double overhead;    /* memory that the libraries of a rank need in addition to its arenas */
  double device;      /* memory of one device; 0 on hosts */
  double node;        /* host memory of one node; 0: not known, and not a limit */
  double disk;        /* disks of one node; 0: not known, and not a limit */
  /* limits of one rank's arenas: on its device, and in its share of the node's memory; equal on hosts */
  double rank_device, rank_node;
  double rank_disk; /* limit of one rank's arenas on disks: its share of the node's disks */
} tws_capacity;
/* Returns the capacity of a machine for `ranks` ranks. device_limit: bytes of one device (on hosts: of one rank) that
 * replace those of the cluster or the profile; 0: the cluster's or the profile's. */
tws_capacity tws_capacity_of(const tws_machine *machine, int ranks, double device_limit);

typedef struct tws_fit {
  tws_capacity capacity;
  int fits;
  int tight; /* 1: the job fits, but the upper end of the runtime's interval exceeds the device */
  /* interval of measured over predicted peaks for the runtime; NULL: on hosts, or without a job */
  const tws_memory_interval *seen;
  double device_need;   /* bytes of one device: arenas and libraries */
  double node_need;     /* bytes of one node's memory that all its ranks need */
  double node_software; /* part of node_need: host buffers of the runtime, beyond the plan */
  double disk_need;     /* bytes of one node's disks */
  /* the tier that decides: one whose memory is too small, or else the device's; bytes that one rank needs on that tier
   * and has there */
  tws_tier tier;
  double rank_need, rank_have;
} tws_fit;
/* Return the comparison of the ledger of the rank that needs the most memory with a capacity. For a job, the memory
 * that the profile's runtime needs in addition to the plan is added. device_limit: as for tws_capacity_of(). */
tws_fit tws_fit_of(const tws_capacity *capacity, const tws_ledger *ledger);
tws_fit tws_job_fit(const tws_job *job, const tws_ledger *ledger);
tws_fit tws_job_fit_within(const tws_job *job, const tws_ledger *ledger, double device_limit);
/* Returns the largest predicted bytes for which the upper end of the runtime's interval still fits into one device; 0:
 * the whole device, as for this program's own engine and for hosts. */
double tws_job_limit_with_margin(const tws_job *job);
/* Fails with TWS_NO and the hint if the job does not fit, stating the tier and the amount: "does not fit: a device
 * needs 90 GiB and has 80 GiB". */
tws_code tws_fit_refuse(const tws_fit *fit, const char *hint, tws_error *err);
/* Fails with TWS_NO and the hint if the fit is tight, stating by how much the upper end of the interval exceeds the
 * device. */
tws_code tws_fit_refuse_tight(const tws_fit *fit, const char *hint, tws_error *err);

/* Checks that this build can train on the hardware of the job's cluster; `by_cluster`, `by_profile`: 1 if the option
 * --cluster or --profile chose the hardware, which the hint then names. Fails with TWS_UNSUPPORTED if the cluster has
 * GPUs and this build has no CUDA backend, and with TWS_ENVIRONMENT if the engine's module is missing. */
tws_code tws_job_check_engine(const tws_job *job, int by_cluster, int by_profile, tws_error *err);

/* Computes the memory that the first `here` ranks of a job need on this machine, and the memory that is free now.
 * evaluates: 1 if the ranks also hold plans of an evaluation over the same state. */
typedef struct tws_local_fit {
  int fits;
  int limited;       /* 1: a control group limits the memory */
  double need, have; /* bytes that the ranks need, and bytes that are free; have 0: not known */
} tws_local_fit;
tws_code tws_job_fit_here(const tws_job *job, int here, int evaluates, tws_local_fit *fit, tws_error *err);

#endif
