#include "emulation/shrink.h"

typedef struct attempt {
  tws_job_fails fails;
  void *user;
  int tried;
} attempt;

static int still_fails(attempt *a, tws_job_spec *spec, const tws_job_spec *smaller) {
  a->tried++;
  if (!a->fails(a->user, smaller)) return 0;
  *spec = *smaller;
  return 1;
}

/* Reduces one number of the specification to the first value, from `least` upwards, with which the job fails. */
static int lower(attempt *a, tws_job_spec *spec, size_t offset, int64_t least) {
  tws_job_spec smaller = *spec;
  int64_t *field = (int64_t *)(void *)((char *)&smaller + offset);
  const int64_t before = *field;
  for (*field = least; *field < before; ++*field)
    if (still_fails(a, spec, &smaller)) return 1;
  return 0;
}

static int leave_out(attempt *a, tws_job_spec *spec, size_t offset) {
  tws_job_spec plainer = *spec;
  const char **field = (const char **)(void *)((char *)&plainer + offset);
  if (!*field) return 0;
  *field = NULL;
  return still_fails(a, spec, &plainer);
}

static int leave_out_setting(attempt *a, tws_job_spec *spec, int at) {
  tws_job_spec plainer = *spec;
  plainer.set.item[at] = plainer.set.item[--plainer.set.count];
  return still_fails(a, spec, &plainer);
}

int tws_job_minimize(tws_job_spec *spec, tws_job_fails fails, void *user) {
  static const struct {
    size_t offset;
    int64_t least;
  } numbers[] = {{offsetof(tws_job_spec, tensor_ranks), 1},
                 {offsetof(tws_job_spec, sequence_ranks), 1},
                 {offsetof(tws_job_spec, pipeline_stages), 1},
                 {offsetof(tws_job_spec, ranks), 1},
                 {offsetof(tws_job_spec, accumulation), 1},
                 {offsetof(tws_job_spec, micro_batch), 1},
                 {offsetof(tws_job_spec, stage), 0}};
  static const size_t texts[] = {offsetof(tws_job_spec, schedule), offsetof(tws_job_spec, recompute),
                                 offsetof(tws_job_spec, dtype)};
  attempt a = {.fails = fails, .user = user};
  for (int changed = 1; changed;) {
    changed = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
      changed |= lower(&a, spec, numbers[i].offset, numbers[i].least);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) changed |= leave_out(&a, spec, texts[i]);
    for (int i = spec->set.count; i-- > 0;) changed |= leave_out_setting(&a, spec, i);
    tws_job_spec plainer = *spec;
    plainer.sequence_parallel = 0;
    if (spec->sequence_parallel) changed |= still_fails(&a, spec, &plainer);
  }
  return a.tried;
}
