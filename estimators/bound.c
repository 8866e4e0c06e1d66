#include "estimators/bound.h"

#include <string.h>

#include "models/hardware/runtime.h"
#include "plan/pipeline_grid.h"
#include "plan/pipeline_schedule.h"

enum { FEW = 3 }; /* number of micro-batches of a plan: the first, the last and one between them */

/* Number of resources of a rank: its streams (only the first if the rank has one queue for all of them), then its
 * channels. */
enum { RESOURCES = TWS_STREAM_COUNT + TWS_CHANNEL_COUNT };

typedef struct stage_plan {
  tws_plan *plan;
  /* per work: seconds, with the slowdown by kernel launches on the host: tws_launches_factor() */
  double *seconds;
  double *path_s;   /* per operation: seconds of the longest path from its start until the step is complete */
  uint32_t *before; /* per operation: its predecessor on its queue, or TWS_NONE */
} stage_plan;

typedef struct bounder {
  const tws_plan_request *request;
  const tws_machine *machine; /* the machine whose costs are used, if `costs` is NULL */
  const tws_bound_costs *costs;
  int64_t wanted, built; /* numbers of micro-batches: of the whole step, and of the plans */
  int stages, serial;
  int layers_alone;  /* 1: only operations of layers (is_of_layers()) take time */
  stage_plan *plans; /* per stage: its plan */
  tws_run *run;
  tws_run_start *order; /* rendezvous and single operations in the order in which they started */
  size_t count;
  tws_arena *arena;
} bounder;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the bound of a step");
}

/* ---- costs ---- */

static int is_middle(const bounder *b, const tws_op *o) {
  return o->phase != TWS_PHASE_STEP && o->micro_batch == 1 && b->built >= FEW;
}

/* Returns tws_plan_launches() of a plan with all micro-batches. The plan has few micro-batches, so the kernels of a
 * middle micro-batch are counted again for each micro-batch that was not planned. */
static tws_launches launches_of(const bounder *b, const tws_plan *plan, const double *seconds) {
  const double host_op_s = tws_profile_host_op_s(b->machine->profile);
  tws_launches all = {.factor = 1};
  double device_s = 0, host_s = 0;
  if (!(host_op_s > 0)) return all;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *o = &plan->ops[i];
    const tws_work *work = &plan->works[o->work];
    const double times = is_middle(b, o) ? (double)(1 + b->wanted - b->built) : 1;
    if (o->phase == TWS_PHASE_STEP) continue;
    if (o->kind == TWS_OP_SEND || o->kind == TWS_OP_RECV)
      host_s += times * host_op_s * tws_profile_message_launches(b->machine->profile);
    if (!tws_work_is_launched(work)) continue;
    device_s += times * seconds[o->work];
    host_s += times * host_op_s * tws_profile_host_launches(b->machine->profile, work);
    all.in_passes[work->code] = 1;
  }
  all.factor = tws_launch_slowdown(device_s, host_s, tws_profile_issues_in_turns(b->machine->profile));
  return all;
}

static tws_code find_costs(bounder *b, stage_plan *s, tws_error *err) {
  const tws_plan *plan = s->plan;
  s->seconds = tws_arena_alloc(b->arena, plan->work_count + 1u, sizeof *s->seconds);
  if (!s->seconds) return no_memory(err);
  for (uint32_t w = 0; w < plan->work_count; w++)
    s->seconds[w] = b->costs ? b->costs->work(b->costs->user, plan, w) : tws_plan_work_seconds(plan, w, b->machine, 1);
  if (b->costs) return TWS_OK;
  const tws_launches launches = launches_of(b, plan, s->seconds);
  for (uint32_t w = 0; w < plan->work_count; w++) s->seconds[w] *= tws_launches_factor(&launches, &plan->works[w]);
  return TWS_OK;
}

/* Returns 1 for kernels of the forward and backward passes, and for collectives among ranks that process the same
 * samples. */
static int is_of_layers(const tws_plan *plan, const tws_op *o) {
  const tws_axes layers = 1u << TWS_AXIS_MODEL | 1u << TWS_AXIS_SEQUENCE;
  if (o->phase == TWS_PHASE_STEP) return 0;
  if (o->kind == TWS_OP_COMPUTE) return o->place == TWS_PLACE_DEVICE;
  return o->kind == TWS_OP_COLLECTIVE && !(plan->groups[plan->works[o->work].group].axes & ~layers);
}

static double seconds_of(const bounder *b, uint32_t stage, uint32_t op) {
  const tws_plan *plan = b->plans[stage].plan;
  const tws_op *o = &plan->ops[op];
  if (o->kind == TWS_OP_SEND || o->kind == TWS_OP_RECV)
    return b->costs ? b->costs->message(b->costs->user, plan, o->peer, o->work)
                    : tws_plan_message_seconds(plan, o->peer, o->work, b->machine);
  if (b->layers_alone && !is_of_layers(plan, o)) return 0;
  return b->plans[stage].seconds[o->work];
}

/* ---- the longest paths to and from every operation ---- */

/* Writes the address of the operations that start together (the members of a rendezvous, or `alone` for one operation)
 * to *members, and returns their number. */
static uint32_t members_of(const bounder *b, const tws_run_start *start, tws_run_member *alone,
                           const tws_run_member **members) {
  *alone = (tws_run_member){start->rank, start->op};
  *members = alone;
  if (start->rendezvous == TWS_NONE) return 1;
  *members = &b->run->members[b->run->rendezvous[start->rendezvous].member_first];
  return b->run->rendezvous[start->rendezvous].needed;
}

static double longest_of(const bounder *b, const tws_run_member *members, uint32_t count) {
  double longest = 0;
  for (uint32_t i = 0; i < count; i++) {
    const double seconds = seconds_of(b, members[i].rank, members[i].op);
    if (seconds > longest) longest = seconds;
  }
  return longest;
}

/* Computes the earliest start of every operation. A rendezvous starts when all its members are ready, and takes the
 * longest of their costs. */
static tws_code run_forwards(bounder *b, tws_error *err) {
  tws_run_start start;
  size_t operations = 0;
  for (int s = 0; s < b->stages; s++) operations += b->plans[s].plan->op_count;
  b->order = tws_arena_alloc_unset(b->arena, operations + 1u, sizeof *b->order);
  if (!b->order) return no_memory(err);
  while (tws_run_next(b->run, &start)) {
    tws_run_member alone;
    const tws_run_member *members;
    const uint32_t count = members_of(b, &start, &alone, &members);
    const double longest = longest_of(b, members, count);
    b->order[b->count++] = start;
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t id = start.rendezvous;
      const double met =
          id == TWS_NONE ? b->run->ranks[members[i].rank].times[members[i].op].ready_s : b->run->rendezvous[id].met_s;
      tws_run_end(b->run, members[i].rank, members[i].op, met + longest);
    }
  }
  return tws_run_check(b->run, err);
}

static void raise(double *to, double value) {
  if (value > *to) *to = value;
}

/* Computes the longest path from every operation's start until the step is complete, in reverse order of start, so that
 * successors come first. */
static tws_code run_backwards(bounder *b, tws_error *err) {
  for (int s = 0; s < b->stages; s++) {
    stage_plan *p = &b->plans[s];
    const tws_run_rank *r = &b->run->ranks[s];
    p->path_s = tws_arena_alloc(b->arena, p->plan->op_count + 1u, sizeof *p->path_s);
    p->before = tws_arena_alloc_unset(b->arena, p->plan->op_count + 1u, sizeof *p->before);
    if (!p->path_s || !p->before) return no_memory(err);
    memset(p->before, 0xff, p->plan->op_count * sizeof *p->before); /* TWS_NONE */
    for (uint32_t op = 0; op < p->plan->op_count; op++)
      if (r->next[op] != TWS_NONE) p->before[r->next[op]] = op;
  }
  for (size_t at = b->count; at-- > 0;) {
    tws_run_member alone;
    const tws_run_member *members;
    const uint32_t count = members_of(b, &b->order[at], &alone, &members);
    double from_start = 0;
    for (uint32_t i = 0; i < count; i++) raise(&from_start, b->plans[members[i].rank].path_s[members[i].op]);
    from_start += longest_of(b, members, count);
    for (uint32_t i = 0; i < count; i++) {
      stage_plan *p = &b->plans[members[i].rank];
      const tws_op *o = &p->plan->ops[members[i].op];
      p->path_s[members[i].op] = from_start; /* until here path_s was the longest path from the operation's end */
      if (p->before[members[i].op] != TWS_NONE) raise(&p->path_s[p->before[members[i].op]], from_start);
      for (uint32_t d = 0; d < o->dep_count; d++) raise(&p->path_s[p->plan->deps[o->dep_first + d]], from_start);
    }
  }
  return TWS_OK;
}

/* ---- resources ---- */

/* The time in which a resource works: on all of its operations, or only on those of forward and backward passes. */
typedef struct busy {
  double start_s; /* seconds from the start of the step to the earliest start of its first operation */
  double seconds; /* busy seconds: sum over all operations of the planned micro-batches */
  double after_s; /* seconds of the longest path from the end of its last operation until the step is complete */
  int used;
} busy;

typedef struct resource {
  busy all, passes;
  double *each;     /* per micro-batch: busy seconds of its passes on this resource */
  double through_s; /* seconds of the longest path through an operation of any micro-batch but the first */
} resource;

static void add_to(busy *to, double start_s, double seconds, double after_s) {
  if (!to->used) to->start_s = start_s;
  to->used = 1;
  to->seconds += seconds;
  to->after_s = after_s; /* operations are added in the order in which the resource executes them */
}

static void add_operation(const bounder *b, resource *r, const tws_op *o, double start_s, double seconds,
                          double from_start) {
  add_to(&r->all, start_s, seconds, from_start - seconds);
  if (o->phase == TWS_PHASE_STEP) return;
  add_to(&r->passes, start_s, seconds, from_start - seconds);
  if ((int64_t)o->micro_batch >= b->built) return;
  r->each[o->micro_batch] += seconds;
  if (o->micro_batch > 0) raise(&r->through_s, start_s + from_start);
}

/* Returns the lower bound of the step's time, in seconds, that follows from this resource alone. */
static double bound_of(const bounder *b, const resource *r) {
  double middle = b->built >= FEW ? r->each[1] : 0, bound = 0;
  for (int64_t i = 2; i < b->built - 1; i++)
    if (r->each[i] < middle) middle = r->each[i];
  const double more = (double)(b->wanted - b->built) * middle;
  if (r->all.used) raise(&bound, r->all.start_s + r->all.seconds + more + r->all.after_s);
  if (r->passes.used) raise(&bound, r->passes.start_s + r->passes.seconds + more + r->passes.after_s);
  if (b->stages == 1 && r->through_s > 0) raise(&bound, r->through_s + more);
  return bound;
}

static tws_code bound_stage(bounder *b, uint32_t stage, double *step_s, tws_error *err) {
  const stage_plan *p = &b->plans[stage];
  const tws_run_rank *rank = &b->run->ranks[stage];
  resource *r = tws_arena_alloc(b->arena, RESOURCES, sizeof *r);
  for (int i = 0; r && i < RESOURCES; i++) {
    r[i].each = tws_arena_alloc(b->arena, (size_t)b->built, sizeof *r[i].each);
    if (!r[i].each) r = NULL;
  }
  if (!r) return no_memory(err);
  for (uint32_t op = 0; op < p->plan->op_count; op++) {
    const tws_op *o = &p->plan->ops[op];
    const tws_op_times *t = &rank->times[op];
    const double seconds = t->end_s - t->met_s;
    add_operation(b, &r[b->serial ? 0 : o->stream], o, t->met_s, seconds, p->path_s[op]);
    if (!b->serial && o->channel != TWS_CHANNEL_NONE)
      add_operation(b, &r[TWS_STREAM_COUNT + o->channel], o, t->met_s, seconds, p->path_s[op]);
    if (b->built == b->wanted) raise(step_s, t->end_s);
  }
  for (int i = 0; i < RESOURCES && b->built < b->wanted; i++) raise(step_s, bound_of(b, &r[i]));
  return TWS_OK;
}

/* ---- memory ---- */

static int is_active(int category) {
  return category == TWS_CATEGORY_ACTIVATION || category == TWS_CATEGORY_CHECKPOINT ||
         category == TWS_CATEGORY_ACTIVATION_GRADIENT || category == TWS_CATEGORY_WORKSPACE ||
         category == TWS_CATEGORY_INPUT;
}

/* Returns the bytes of inputs of the micro-batches that were not planned, since inputs hold all micro-batches of a
 * step. */
static uint64_t further_inputs(const tws_plan *plan, int64_t wanted) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < TWS_NETWORK_INPUTS && wanted > plan->accumulation_steps; i++)
    if (plan->input[i] != TWS_NONE)
      bytes += plan->buffers[plan->input[i]].bytes / (uint64_t)plan->accumulation_steps *
               (uint64_t)(wanted - plan->accumulation_steps);
  return bytes;
}

static void keep_live(tws_ledger *ledger) {
  for (int t = 0; t < TWS_TIER_COUNT; t++) {
    ledger->tier[t].arena_bytes = ledger->tier[t].live_bytes;
    ledger->tier[t].gaps = 0;
  }
}

static tws_code read_live(const tws_plan *plan, int64_t wanted, tws_ledger *ledger, tws_error *err) {
  TWS_TRY(tws_ledger_read(plan, ledger, err));
  const uint64_t more = further_inputs(plan, wanted);
  tws_ledger_tier *device = &ledger->tier[TWS_TIER_DEVICE];
  device->live_bytes += more;
  device->category[TWS_CATEGORY_INPUT] += more;
  if (ledger->loss_bytes > 0) ledger->loss_bytes += more;
  keep_live(ledger);
  return TWS_OK;
}

/* ---- equality of plans ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ (hash >> 29);
}

/* Extends a hash by a plan's operations, with their order, works and buffers. Two plans with equal hashes have equal
 * costs. */
static uint64_t print_of(const tws_plan *plan, uint64_t hash) {
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *o = &plan->ops[i];
    hash = mix(hash, (uint64_t)o->kind << 40 | (uint64_t)o->stream << 32 | o->module);
    hash = mix(hash, (uint64_t)o->phase << 56 | (uint64_t)o->place << 48 | (uint64_t)o->micro_batch << 32 | o->work);
    for (uint32_t k = 0; k < o->operand_count; k++) {
      const tws_operand *operand = &plan->operands[o->operand_first + k];
      hash = mix(mix(hash, (uint64_t)operand->access << 32 | operand->buffer), operand->offset);
    }
  }
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const tws_work *work = &plan->works[i];
    hash = mix(hash, (uint64_t)work->kind << 48 | (uint64_t)work->code << 32 | work->flags);
    hash = mix(hash, (uint64_t)work->dtype << 48 | (uint64_t)work->dtype2 << 32 | (uint32_t)work->segments);
    for (int k = 0; k < TWS_WORK_DIMS; k++) hash = mix(hash, (uint64_t)work->d[k]);
  }
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const tws_buffer *b = &plan->buffers[i];
    hash = mix(mix(hash, (uint64_t)b->tier << 16 | (uint64_t)b->category << 8 | b->dtype), b->bytes);
  }
  return hash;
}

/* ---- the whole step ---- */

static int64_t micro_batches_of(const tws_pipeline_shape *shape, int64_t at_least) {
  const int64_t round = shape->stages > 1 && shape->virtual_stages > 1 ? shape->stages : 1;
  const int64_t few = (at_least + round - 1) / round * round;
  return few < shape->micro_batches ? few : shape->micro_batches;
}

static tws_code make_plans(bounder *b, tws_bound *out, tws_error *err) {
  b->plans = tws_arena_alloc(b->arena, (size_t)b->stages, sizeof *b->plans);
  if (!b->plans) return no_memory(err);
  for (int s = 0; s < b->stages; s++) {
    tws_plan_request r = *b->request;
    tws_ledger ledger;
    r.rank = tws_pipeline_grid_stage(&r.topology, 0, s);
    r.max_accumulation = b->built;
    TWS_TRY(tws_plan_depend(&r, &b->plans[s].plan, err));
    TWS_TRY(read_live(b->plans[s].plan, b->wanted, &ledger, err));
    if (s == 0 || ledger.tier[TWS_TIER_DEVICE].live_bytes > out->ledger.tier[TWS_TIER_DEVICE].live_bytes)
      out->ledger = ledger;
    TWS_TRY(find_costs(b, &b->plans[s], err));
    out->print = print_of(b->plans[s].plan, out->print);
  }
  return TWS_OK;
}

static tws_code bound_stages(bounder *b, tws_bound *out, tws_error *err) {
  TWS_TRY(make_plans(b, out, err));
  const tws_plan **plans = tws_arena_alloc(b->arena, (size_t)b->stages, sizeof *plans);
  if (!plans) return no_memory(err);
  for (int s = 0; s < b->stages; s++) plans[s] = b->plans[s].plan;
  const tws_run_request request = {.plans = plans,
                                   .count = b->stages,
                                   .mode = b->serial ? TWS_RUN_SERIAL : TWS_RUN_STREAMS,
                                   .absent = TWS_ABSENT_ANY};
  TWS_TRY(tws_run_create(&request, &b->run, err));
  TWS_TRY(run_forwards(b, err));
  TWS_TRY(run_backwards(b, err));
  for (int s = 0; s < b->stages; s++) TWS_TRY(bound_stage(b, (uint32_t)s, &out->step_s, err));
  if (b->machine) raise(&out->step_s, tws_loading_s(b->request, b->machine));
  return TWS_OK;
}

static tws_code bound_request(bounder b, tws_bound *out, tws_error *err) {
  const tws_plan_request *request = b.request;
  b.wanted = request->config->accumulation_steps;
  b.stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  const tws_pipeline_shape shape = tws_pipeline_shape_of(request->config, b.stages, b.wanted);
  memset(out, 0, sizeof *out);
  TWS_TRY(tws_pipeline_check(&shape, err));
  b.built = micro_batches_of(&shape, FEW);
  out->whole = b.built == b.wanted;
  b.arena = tws_arena_create();
  const tws_code code = b.arena ? bound_stages(&b, out, err) : no_memory(err);
  tws_run_destroy(b.run);
  for (int s = 0; b.plans && s < b.stages; s++) tws_plan_destroy(b.plans[s].plan);
  tws_arena_destroy(b.arena);
  return code;
}

tws_code tws_bound_step(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err) {
  const int serial = tws_profile_serial_streams(machine->profile);
  return bound_request((bounder){.request = request, .machine = machine, .serial = serial}, out, err);
}

tws_code tws_bound_step_at(const tws_plan_request *request, const tws_bound_costs *costs, tws_bound *out,
                           tws_error *err) {
  return bound_request((bounder){.request = request, .costs = costs, .serial = costs->serial}, out, err);
}

tws_code tws_bound_layers(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err) {
  const int serial = tws_profile_serial_streams(machine->profile);
  const bounder b = {.request = request, .machine = machine, .serial = serial, .layers_alone = 1};
  return bound_request(b, out, err);
}

/* ---- bounds of passes and of state ---- */

/* Returns the seconds on the compute stream of the layers for the fastest micro-batch; writes the seconds of every
 * micro-batch to each[]. */
static double passes_seconds(const tws_plan *plan, const tws_machine *machine, double *each) {
  double least = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    if (o->stream != TWS_STREAM_COMPUTE || o->micro_batch >= plan->accumulation_steps || !is_of_layers(plan, o))
      continue;
    each[o->micro_batch] += tws_plan_work_seconds(plan, o->work, machine, 1);
  }
  for (int64_t i = 0; i < plan->accumulation_steps; i++)
    if (i == 0 || each[i] < least) least = each[i];
  return least;
}

tws_code tws_bound_passes(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err) {
  const int64_t wanted = request->config->accumulation_steps;
  const int stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  const tws_pipeline_shape shape = tws_pipeline_shape_of(request->config, stages, wanted);
  tws_plan_request r = *request;
  tws_plan *plan;
  memset(out, 0, sizeof *out);
  TWS_TRY(tws_pipeline_check(&shape, err));
  r.rank = tws_pipeline_grid_stage(&r.topology, 0, 0);
  /* The plan has as many micro-batches as the first stage has in flight at the same time, and a second one, since the
   * first may compute what the others use again. */
  r.max_accumulation = micro_batches_of(&shape, stages);
  if (r.max_accumulation < 2) r.max_accumulation = 2;
  TWS_TRY(tws_plan_lower(&r, &plan, err));
  double *each = tws_calloc((size_t)plan->accumulation_steps, sizeof *each);
  tws_code code = each ? read_live(plan, wanted, &out->ledger, err) : no_memory(err);
  if (code == TWS_OK) out->step_s = (double)wanted * passes_seconds(plan, machine, each);
  for (int t = 0; t < TWS_TIER_COUNT && code == TWS_OK; t++) {
    tws_ledger_tier *tier = &out->ledger.tier[t];
    for (int c = 0; c < TWS_CATEGORY_COUNT; c++) {
      if (is_active(c)) continue;
      tier->live_bytes -= tier->category[c];
      tier->category[c] = 0;
    }
  }
  out->ledger.loss_bytes = 0;
  keep_live(&out->ledger);
  tws_free(each);
  tws_plan_destroy(plan);
  return code;
}

static void add_bytes(tws_ledger *ledger, int tier, int category, uint64_t bytes) {
  ledger->tier[tier].category[category] += bytes;
  ledger->tier[tier].live_bytes += bytes;
}

static void read_state(const tws_plan *plan, tws_bound_bytes *out) {
  uint32_t end = 0; /* index of the first operation of the optimizer phase */
  for (uint32_t i = 0; i < plan->state->count; i++) {
    const tws_state_entry *e = &plan->state->entries[i];
    if (is_active(e->category)) continue; /* the bound of passes has it, as the histories of delayed scales */
    add_bytes(&out->always, e->tier, e->category, e->bytes);
    add_bytes(&out->end, e->tier, e->category, e->bytes);
  }
  while (end < plan->op_count && !tws_op_in_optimizer_phase(plan, end)) end++;
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const tws_buffer *b = &plan->buffers[i];
    if (is_active(b->category) || b->category == TWS_CATEGORY_BUCKET || b->lifetime == TWS_LIFETIME_STATE) continue;
    const int always = b->lifetime == TWS_LIFETIME_PROGRAM;
    if (always) add_bytes(&out->always, b->tier, b->category, b->bytes);
    if (always || (b->first_op != TWS_NONE && b->first_op <= end && b->last_op >= end))
      add_bytes(&out->end, b->tier, b->category, b->bytes);
  }
  keep_live(&out->always);
  keep_live(&out->end);
}

tws_code tws_bound_state(const tws_plan_request *request, tws_bound_bytes *out, tws_error *err) {
  const int stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  const tws_pipeline_shape shape = tws_pipeline_shape_of(request->config, stages, request->config->accumulation_steps);
  tws_plan_request r = *request;
  tws_plan *plan;
  memset(out, 0, sizeof *out);
  TWS_TRY(tws_pipeline_check(&shape, err));
  r.rank = tws_pipeline_grid_stage(&r.topology, 0, 0);
  r.max_accumulation = micro_batches_of(&shape, 1);
  TWS_TRY(tws_plan_lower(&r, &plan, err));
  read_state(plan, out);
  tws_plan_destroy(plan);
  return TWS_OK;
}
