/* Does a job fit: what its ranks need against what there is. The one place that says so. */
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
  /* what the arenas of one rank may fill, in its device and in its share of the node's memory; on hosts the same */
  double rank_device, rank_node;
  double rank_disk; /* and in its share of the node's disks */
} tws_capacity;
/* device_limit: of one device (of one rank on hosts) instead of what cluster and profile say; 0: theirs. */
tws_capacity tws_capacity_of(const tws_machine *machine, int ranks, double device_limit);

typedef struct tws_fit {
  tws_capacity capacity;
  int fits;
  int tight;                       /* it fits, and what was seen of the runtime reaches beyond the device */
  const tws_memory_interval *seen; /* of the runtime; NULL: the fit is of no job, or of hosts */
  double device_need;              /* of one device: arena and what the libraries take */
  double node_need;                /* of one node, all its ranks */
  double node_software;            /* the part of it that is the software's, beyond the plan's */
  double disk_need;                /* of one node's disks */
  /* of one rank, where it decides: in the memory that is too small, else in its device's */
  tws_tier tier;
  double rank_need, rank_have;
} tws_fit;
/* Compares the ledger of the fullest rank with the capacity. For a job, the memory of the profile's runtime is added to
 * the plan's; device_limit as above. */
tws_fit tws_fit_of(const tws_capacity *capacity, const tws_ledger *ledger);
tws_fit tws_job_fit(const tws_job *job, const tws_ledger *ledger);
tws_fit tws_job_fit_within(const tws_job *job, const tws_ledger *ledger, double device_limit);
/* Returns the bytes that a job may be predicted to need on one device so that the interval of what was seen of its
 * runtime stays within the device; 0: the whole device, as for this program's own engine and for hosts. */
double tws_job_limit_with_margin(const tws_job *job);
/* Refuses a job that does not fit, stating the tier and the amount: "does not fit: a device needs 90 GiB and has 80
 * GiB". TWS_NO with the hint. */
tws_code tws_fit_refuse(const tws_fit *fit, const char *hint, tws_error *err);
/* Of a tight fit: by how much. TWS_NO with the hint. */
tws_code tws_fit_refuse_tight(const tws_fit *fit, const char *hint, tws_error *err);

/* Requires that this build can train on the hardware of the job's cluster; `by_cluster`, `by_profile`: the options that
 * chose it, for the hint. TWS_UNSUPPORTED: it has GPUs, and there is no CUDA backend; TWS_ENVIRONMENT: there is no
 * engine. */
tws_code tws_job_check_engine(const tws_job *job, int by_cluster, int by_profile, tws_error *err);

/* This machine's memory that a job needs when its first `here` ranks run here, and the memory that is free now. The
 * plans of all ranks are built and verified together; with `evaluates` those of evaluations over the same state,
 * too. */
typedef struct tws_local_fit {
  int fits;
  int limited;       /* by a control group */
  double need, have; /* have 0: not known */
} tws_local_fit;
tws_code tws_job_fit_here(const tws_job *job, int here, int evaluates, tws_local_fit *fit, tws_error *err);

#endif
