/* Memory of a node that other software takes where states are offloaded to the host. */
#ifndef TWS_JOB_SOFTWARE_HOST_H
#define TWS_JOB_SOFTWARE_HOST_H

#include "job/job.h"
#include "models/hardware/host_buffers.h"

/* Of one buffer on a rank, as it is allocated; 0: the job has none. */
double tws_software_host_buffer(const tws_job *job, const tws_host_buffer *buffer);
/* Bytes of a rank's host memory beyond the plan's, of which the ledger is that of the fullest rank: the buffers of the
 * profile's runtime (models/hardware/host_buffers.def) in place of the plan's parameters, gradients and masters there,
 * and a process; or, where every rank loads a whole model, that. 0 where nothing is offloaded to the host, for this
 * program's own runtime, and where training is not in 16 bits with float32 masters. */
double tws_software_host_bytes(const tws_job *job, const tws_ledger *ledger);

#endif
