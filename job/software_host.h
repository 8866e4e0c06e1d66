/* Host memory that other software (DeepSpeed, ...) takes on a node if states are offloaded to the host. */
#ifndef TWS_JOB_SOFTWARE_HOST_H
#define TWS_JOB_SOFTWARE_HOST_H

#include "job/job.h"
#include "models/hardware/host_buffers.h"

/* Returns the bytes of host memory that a rank needs in addition to its plan's. The buffers of the profile's runtime
 * (models/hardware/host_buffers.def) replace the plan's parameters, gradients and master weights on the host, and the
 * process itself is added; or, if every rank loads a whole model and that needs more, those bytes. ledger: of the rank
 * that needs the most memory. 0: nothing is offloaded to the host, the runtime is this program's own, or training is
 * not in 16 bits with float32 master weights. */
double tws_software_host_bytes(const tws_job *job, const tws_ledger *ledger);

#endif
