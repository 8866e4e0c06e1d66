/* Computes the time of a step without simulation: the longest path through one plan, or through several plans with
 * common rendezvous. The run order determines which operations may start. An operation or rendezvous ends at the time
 * at which all its members are ready, plus its cost. */
#include <string.h>

#include "estimators/estimators.h"

enum { PEERS = 2 };
typedef struct known_message { /* the seconds of a work's messages to or from each of two peers; 0: not known yet */
  uint32_t peer[PEERS];
  double seconds[PEERS];
} known_message;

typedef struct job {
  tws_run *run;
  const tws_machine *machine;
  const double **cost;     /* [plan][work] seconds */
  known_message **message; /* [plan][work] */
} job;

/* A rank exchanges many messages of the same work with the same peers: the stages before and after it. */
static double message_seconds(void *user, uint32_t rank, uint32_t op) {
  const job *j = user;
  const tws_plan *plan = j->run->ranks[rank].plan;
  const uint32_t peer = plan->ops[op].peer, work = plan->ops[op].work;
  known_message *known = &j->message[rank][work];
  int at = 0;
  while (at + 1 < PEERS && known->seconds[at] > 0 && known->peer[at] != peer) at++;
  if (!(known->seconds[at] > 0) || known->peer[at] != peer) {
    known->peer[at] = peer;
    known->seconds[at] = tws_plan_message_seconds(plan, peer, work, j->machine);
  }
  return known->seconds[at];
}

static tws_code find_costs(job *j, int count, tws_error *err) {
  j->cost = tws_arena_alloc(j->run->arena, (size_t)count, sizeof *j->cost);
  j->message = tws_arena_alloc(j->run->arena, (size_t)count, sizeof *j->message);
  const int room = j->cost && j->message;
  for (int i = 0; room && i < count; i++) {
    const tws_plan *plan = j->run->ranks[i].plan;
    double *cost = tws_arena_alloc(j->run->arena, plan->work_count + 1u, sizeof *cost);
    j->message[i] = tws_arena_alloc(j->run->arena, plan->work_count + 1u, sizeof **j->message);
    if (!cost || !j->message[i]) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the longest path");
    const tws_launches launches = tws_plan_launches(plan, j->machine);
    for (uint32_t w = 0; w < plan->work_count; w++)
      cost[w] = tws_plan_launched_seconds(plan, w, j->machine, 1, &launches);
    j->cost[i] = cost;
  }
  return room ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the longest path");
}

static double last_end(const tws_run *run) {
  double last = 0;
  for (int i = 0; i < run->rank_count; i++) {
    const tws_run_rank *r = &run->ranks[i];
    for (int queue = 0; queue < TWS_STREAM_COUNT; queue++)
      if (r->free_at[queue] > last) last = r->free_at[queue];
  }
  return last;
}

tws_code tws_job_path(const tws_plan *const *plans, int count, const tws_machine *machine, tws_path_result *results,
                      double *step_s, tws_error *err) {
  const int serial = tws_profile_serial_streams(machine->profile);
  const tws_run_request request = {
      .plans = plans, .count = count, .mode = serial ? TWS_RUN_SERIAL : TWS_RUN_STREAMS, .absent = TWS_ABSENT_ANY};
  job j = {.machine = machine};
  TWS_TRY(tws_run_create(&request, &j.run, err));
  tws_code code = find_costs(&j, count, err);
  if (code == TWS_OK) {
    tws_run_all(j.run, &(tws_run_durations){j.cost, message_seconds, &j});
    code = tws_run_check(j.run, err);
  }
  if (code == TWS_OK) *step_s = last_end(j.run);
  for (int i = 0; code == TWS_OK && results && i < count; i++)
    code = tws_path_read(plans[i], j.run->ranks[i].times, serial, *step_s, &results[i], err);
  tws_run_destroy(j.run);
  return code;
}

tws_code tws_longest_path(const tws_plan *plan, const tws_machine *machine, tws_path_result *result, tws_error *err) {
  double step_s;
  return tws_job_path(&plan, 1, machine, result, &step_s, err);
}
