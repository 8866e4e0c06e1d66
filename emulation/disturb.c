#include "emulation/disturb.h"

#include "base/memory.h"
#include "emulation/faults.h"

struct tws_perturbation {
  tws_arena *arena;
  tws_scenario *scenario;
  tws_faults faults;
  tws_rank_slot *place, *together; /* place: [rank] location of each rank; together: locations of the ranks of one
                                    * operation */
  int analytic;
  tws_sim_effects effects;
};

static double takes(void *user, const tws_run_member *members, uint32_t count, double start_s, double seconds) {
  const tws_perturbation *d = user;
  for (uint32_t i = 0; i < count; i++) d->together[i] = d->place[members[i].rank];
  if (count > 1 && !d->analytic) return seconds; /* the flow model applies the events to each link itself */
  return count > 1 ? tws_faults_transfer(&d->faults, d->together, (int)count, start_s, seconds)
                   : tws_faults_compute(&d->faults, d->together[0], members[0].op, start_s, seconds);
}

static double share(void *user, int rank, int network, double at_s, double *until_s) {
  const tws_perturbation *d = user;
  return tws_faults_share(&d->faults, d->place[rank], network, at_s, until_s);
}

static tws_code check_events(const tws_scenario *scenario, tws_error *err) {
  for (int i = 0; i < scenario->event_count; i++) {
    const tws_fault_event_kind kind = scenario->events[i].kind;
    if (kind == TWS_HAPPENS_SLOW || kind == TWS_HAPPENS_JITTER || kind == TWS_HAPPENS_LINK || kind == TWS_HAPPENS_FLAP)
      continue;
    return tws_fail(err, TWS_INVALID, "twinspeed emulate trains through it", "event %d (%s) does not change one step",
                    i + 1, tws_fault_event_name(kind));
  }
  return TWS_OK;
}

static tws_code open_it(tws_perturbation *d, const char *path, const tws_job *job, tws_error *err) {
  const size_t ranks = (size_t)job->ranks;
  TWS_TRY(tws_scenario_load(path, &d->scenario, err));
  TWS_TRY(check_events(d->scenario, err));
  d->place = tws_arena_alloc(d->arena, ranks, sizeof *d->place);
  d->together = tws_arena_alloc(d->arena, ranks, sizeof *d->together);
  if (!d->place || !d->together) return tws_fail(err, TWS_MEMORY, NULL, "no memory for %d ranks", job->ranks);
  for (int r = 0; r < job->ranks; r++)
    d->place[r] = (tws_rank_slot){.slot = r, .node = tws_mapping_node(&job->mapping, r)};
  return tws_faults_open(d->scenario, job->mapping.nodes, job->mapping.slots, d->arena, &d->faults, err);
}

tws_code tws_perturbation_open(const char *path, const tws_job *job, tws_fidelity fidelity, tws_perturbation **out,
                               tws_error *err) {
  tws_arena *arena = tws_arena_create();
  tws_perturbation *d = arena ? tws_arena_alloc(arena, 1, sizeof *d) : NULL;
  *out = NULL;
  if (!d) {
    tws_arena_destroy(arena);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for a scenario");
  }
  *d = (tws_perturbation){.arena = arena, .analytic = fidelity == TWS_FIDELITY_ANALYTIC};
  d->effects = (tws_sim_effects){.takes = takes, .share = share, .user = d};
  const tws_code code = open_it(d, path, job, err);
  if (code == TWS_OK)
    *out = d;
  else
    tws_perturbation_close(d);
  return code;
}

const tws_sim_effects *tws_perturbation_effects(const tws_perturbation *d) {
  return &d->effects;
}

void tws_perturbation_close(tws_perturbation *d) {
  if (!d) return;
  tws_scenario_destroy(d->scenario);
  tws_arena_destroy(d->arena);
}
