#include "sim/solver.h"

#include <math.h>

#include "base/memory.h"
#include "sim/adapter.h"
#include "sim/fluid.h"

struct tws_solver {
  tws_fluid *fluid; /* Twinspeed's own solver; NULL: SimGrid's network model is used */
};

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory while simulating");
}

static tws_code of_engine(int result, tws_error *err) {
  return result == 0 ? TWS_OK : tws_fail(err, TWS_ENVIRONMENT, NULL, "%s", tws_engine_error());
}

tws_code tws_solver_create(tws_solver_kind kind, int links, tws_solver **solver, tws_error *err) {
  tws_solver *s = *solver = tws_calloc(1, sizeof *s);
  if (!s) return no_memory(err);
  if (kind == TWS_SOLVER_SIMGRID) return of_engine(tws_engine_reserve_links(links), err);
  s->fluid = tws_fluid_create(links);
  return s->fluid ? TWS_OK : no_memory(err);
}

void tws_solver_destroy(tws_solver *s) {
  if (!s) return;
  tws_fluid_destroy(s->fluid);
  tws_free(s);
}

void tws_solver_capacity(tws_solver *s, int link, double bytes_per_s, double now_s) {
  if (s->fluid)
    tws_fluid_capacity(s->fluid, link, bytes_per_s, now_s);
  else
    tws_engine_capacity(link, bytes_per_s);
}

tws_code tws_solver_flow(tws_solver *s, const int *links, int count, double bytes, double now_s, uint64_t tag,
                         tws_error *err) {
  if (!s->fluid) return of_engine(tws_engine_flow(links, count, bytes, tag), err);
  return tws_fluid_flow(s->fluid, links, count, bytes, now_s, tag) == 0 ? TWS_OK : no_memory(err);
}

tws_code tws_solver_date(tws_solver *s, double date_s, uint64_t tag, tws_error *err) {
  if (!s->fluid) return of_engine(tws_engine_timer(date_s, tag), err);
  return tws_fluid_date(s->fluid, date_s, tag) == 0 ? TWS_OK : no_memory(err);
}

double tws_solver_next(tws_solver *s) {
  return s->fluid ? tws_fluid_next(s->fluid) : INFINITY;
}

uint64_t tws_solver_pop(tws_solver *s) {
  return tws_fluid_pop(s->fluid);
}
