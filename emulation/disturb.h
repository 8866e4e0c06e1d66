/* A scenario's slow devices, jitter and weak links in one simulated step of a job of any size, without training it. */
#ifndef TWS_EMULATION_DISTURB_H
#define TWS_EMULATION_DISTURB_H

#include "job/job.h"
#include "sim/sim.h"

typedef struct tws_perturbation tws_perturbation;

/* Reads a scenario's events and seed, and ignores its other keys. Fails with TWS_INVALID if an event has no effect on
 * the time of a step (a death, a flipped bit, a full disk), or names ranks or nodes that the job does not have. */
tws_code tws_perturbation_open(const char *path, const tws_job *job, tws_fidelity fidelity, tws_perturbation **out,
                               tws_error *err);
const tws_sim_effects *tws_perturbation_effects(const tws_perturbation *disturbance);
void tws_perturbation_close(tws_perturbation *disturbance); /* NULL is allowed */

#endif
