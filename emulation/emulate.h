/* The virtual cluster: a job trains for real, under the simulator's clock.
 *
 * The simulator decides when each operation of each rank starts and ends; at its end the host's kernels do what it
 * does, on memory of that rank. So losses and bytes are those of a training, times those of a simulation of the
 * cluster, and a run is the same twice to the last bit. All ranks live in this process. */
#ifndef TWS_EMULATION_EMULATE_H
#define TWS_EMULATION_EMULATE_H

#include "base/log.h"
#include "job/job.h"
#include "real/real.h"
#include "sim/sim.h"

typedef struct tws_emulation_request {
  const tws_real_api *real;
  const tws_sim_api *sim;
  tws_fidelity fidelity;
  const char *data;
  int64_t steps;
  int ignore_memory;                                          /* of the virtual devices, and of this machine */
  tws_timeline *timeline;                                     /* of the last step of all ranks; NULL: none */
  void (*on_step)(void *user, const tws_step_report *report); /* its seconds are virtual */
  void *user;
  const tws_log *log;
} tws_emulation_request;

typedef struct tws_emulation {
  int64_t steps, skipped;
  double first_loss, last_loss; /* finite ones */
  double virtual_s;             /* of all steps together */
  double median_step_s;         /* virtual */
  double wall_s, effects_s;     /* what it took here, and of that kernels and copies */
  uint64_t events;
  uint64_t predicted_bytes, allocated_bytes; /* arenas of all ranks, all tiers */
} tws_emulation;

/* TWS_NO: a rank's arenas do not fit its virtual device, or all of them this machine; TWS_UNSUPPORTED: a job that the
 * host cannot compute; TWS_RANK: the training itself failed, at the virtual time that the message gives. */
tws_code tws_emulate(const tws_job *job, const tws_emulation_request *request, tws_emulation *out, tws_error *err);

#endif
