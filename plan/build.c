#include <stdio.h>
#include <string.h>

#include "plan/lower.h"

static tws_code check_request(const tws_plan_request *r, tws_error *err) {
  const tws_config *c = r->config;
  int world = tws_topology_world(&r->topology);
  if (r->rank < 0 || r->rank >= world) {
    return tws_fail(err, TWS_INVALID, NULL, "rank %d is not in a topology of %d ranks", r->rank, world);
  }
  for (int i = 0; i < r->topology.axes; i++) {
    if (r->topology.dim[i] > 1 && strcmp(r->topology.name[i], "data") != 0 &&
        strcmp(r->topology.name[i], "pipe") != 0) {
      return tws_fail(err, TWS_UNSUPPORTED, "use pipeline stages, or data parallelism with a ZeRO stage",
                      "axis '%s' has %d ranks, but only 'pipe' and 'data' can be lowered to a plan",
                      r->topology.name[i], r->topology.dim[i]);
    }
  }
  if (c->micro_batch_size < 1 || c->accumulation_steps < 1) {
    return tws_fail(err, TWS_INVALID, "give train_micro_batch_size_per_gpu and gradient_accumulation_steps",
                    "the batch triple is not resolved");
  }
  if (c->sequence_length < 1) {
    return tws_fail(err, TWS_INVALID, "set twinspeed.sequence_length or --seq", "the sequence length is %lld",
                    (long long)c->sequence_length);
  }
  if (r->network->positions > 0 && c->sequence_length > r->network->positions) {
    return tws_fail(err, TWS_INVALID, "use a shorter sequence, or a model with more positions",
                    "sequence length %lld exceeds the model's %lld positions", (long long)c->sequence_length,
                    (long long)r->network->positions);
  }
  if (c->dtype == TWS_F16) {
    return tws_fail(err, TWS_UNSUPPORTED, "use bf16, or float32",
                    "fp16 training needs dynamic loss scaling, which plans do not have");
  }
  double tokens = (double)c->micro_batch_size * (double)c->sequence_length;
  if (tokens > 1e9 || tokens * (double)c->accumulation_steps > 4e9) {
    return tws_fail(err, TWS_INVALID, "use a smaller micro batch",
                    "a micro-batch of %lld x %lld tokens is beyond 10^9 tokens, or a step beyond 4 x 10^9",
                    (long long)c->micro_batch_size, (long long)c->sequence_length);
  }
  return TWS_OK;
}

/* Group 0: the ranks that share a model replica's parameters, along "data". */
static tws_code make_groups(tws_lower *l, tws_error *err) {
  tws_plan *plan = l->b.plan;
  int axis = tws_topology_axis(&plan->topology, "data");
  int size = axis < 0 ? 1 : plan->topology.dim[axis];
  int *ranks = tws_arena_alloc(plan->arena, (size_t)size, sizeof *ranks);
  plan->groups = tws_arena_alloc(plan->arena, 3, sizeof *plan->groups);
  if (!ranks || !plan->groups) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  ranks[0] = plan->rank;
  int index = 0;
  if (axis >= 0) {
    tws_topology_line(&plan->topology, plan->rank, axis, ranks);
    while (ranks[index] != plan->rank) index++;
  }
  plan->groups[0] = (tws_group){.axis = "data", .size = size, .index = index, .ranks = ranks};
  plan->group_count = 1;
  plan->data_parallel = size;
  l->zero.ranks = size;
  l->zero.index = index;
  l->zero.group = 0;
  l->zero.stage = l->config->zero.stage;
  return TWS_OK;
}

static tws_code prepare(tws_lower *l, tws_error *err) {
  tws_plan *plan = l->b.plan;
  const tws_config *c = l->config;
  uint32_t values = l->network->value_count;
  TWS_TRY(make_groups(l, err));
  l->tokens = c->micro_batch_size * c->sequence_length;
  l->accumulation = c->accumulation_steps;
  if (l->request->max_accumulation > 0 && l->accumulation > l->request->max_accumulation) {
    l->accumulation = l->request->max_accumulation;
  }
  plan->accumulation_steps = l->accumulation;
  l->overlap = c->zero.overlap_comm && tws_topology_dim(&plan->topology, "pipe") <= 1;
  /* Without overlap_comm DeepSpeed issues gathers and reductions on the stream that computes. */
  l->gather_stream = l->overlap ? TWS_STREAM_GATHER : TWS_STREAM_COMPUTE;
  l->reduce_stream = l->overlap ? TWS_STREAM_REDUCE : TWS_STREAM_COMPUTE;
  l->kept = tws_arena_alloc(l->scratch, values + 1u, 1);
  if (!l->kept) return tws_fail(err, TWS_MEMORY, NULL, "no memory");
  uint64_t step_tokens = (uint64_t)l->tokens * (uint64_t)l->accumulation;
  plan->hyper = tws_builder_buffer(&l->b, "hyperparameters", TWS_CATEGORY_INPUT, TWS_F32, TWS_HYPER_COUNT, 1);
  plan->metrics = tws_builder_buffer(&l->b, "metrics", TWS_CATEGORY_INPUT, TWS_F64, TWS_METRIC_COUNT, 1);
  plan->input_ids = tws_builder_buffer(&l->b, "input ids", TWS_CATEGORY_INPUT, TWS_I32, step_tokens, 1);
  plan->targets = tws_builder_buffer(&l->b, "targets", TWS_CATEGORY_INPUT, TWS_I32, step_tokens, 1);
  TWS_TRY(tws_pipeline_begin(l));
  return tws_zero_begin(l);
}

static tws_code lower(tws_lower *l, tws_error *err) {
  TWS_TRY(prepare(l, err));
  l->b.phase = TWS_PHASE_FORWARD;
  l->b.module = TWS_NONE;
  tws_zero_step_begin(l);
  tws_pipeline_run(l);
  tws_lower_step(l);
  return tws_builder_finish(&l->b);
}

tws_code tws_plan_topology(const tws_config *config, int ranks, tws_topology *topology, tws_error *err) {
  enum { AXES = 4 };
  static const char *const words[AXES] = {"pipe", "data", "sequence", "model"};
  int64_t replicas;
  TWS_TRY(tws_config_replicas(config, ranks, &replicas, err));
  const int64_t sizes[AXES] = {config->pipeline_stages, replicas, config->sequence_ranks, config->tensor_ranks};
  const char *names[AXES], *at = config->axis_order;
  int dims[AXES], count = 0;
  for (int i = 0; i < AXES; i++, at += strcspn(at, ","), at += *at == ',') {
    for (int k = 0; k < AXES; k++) {
      if (strncmp(at, words[k], strlen(words[k])) != 0 || (sizes[k] < 2 && strcmp(words[k], "data") != 0)) continue;
      names[count] = words[k];
      dims[count++] = (int)sizes[k];
    }
  }
  return tws_topology_make(topology, count, names, dims, err);
}

tws_code tws_plan_build(const tws_plan_request *request, tws_plan **out, tws_error *err) {
  *out = NULL;
  TWS_TRY(check_request(request, err));
  tws_plan *plan = tws_calloc(1, sizeof *plan);
  tws_arena *arena = tws_arena_create(), *scratch = tws_arena_create();
  if (!plan || !arena || !scratch) {
    tws_free(plan);
    tws_arena_destroy(arena);
    tws_arena_destroy(scratch);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  }
  const tws_config *c = request->config;
  *plan = (tws_plan){.arena = arena,
                     .network = request->network,
                     .topology = request->topology,
                     .rank = request->rank,
                     .world = tws_topology_world(&request->topology),
                     .zero = c->zero,
                     .dtype = c->dtype,
                     .micro_batch_size = c->micro_batch_size,
                     .sequence_length = c->sequence_length,
                     .parameters = TWS_NONE,
                     .master = TWS_NONE,
                     .moment1 = TWS_NONE,
                     .moment2 = TWS_NONE,
                     .gradients = TWS_NONE,
                     .input_ids = TWS_NONE,
                     .targets = TWS_NONE,
                     .hyper = TWS_NONE,
                     .metrics = TWS_NONE,
                     .backend = request->backend,
                     .threads = request->threads};
  tws_lower l = {.request = request,
                 .config = c,
                 .network = request->network,
                 .scratch = scratch,
                 .b = {.plan = plan, .err = err}};
  tws_code code = lower(&l, err);
  tws_free(l.b.work_table);
  tws_free(l.b.pieces);
  for (int i = 0; i < l.chunk_count; i++) tws_free(l.chunks[i].visits.items);
  tws_arena_destroy(scratch);
  if (code != TWS_OK) {
    tws_plan_destroy(plan);
    return code;
  }
  *out = plan;
  return TWS_OK;
}

void tws_plan_destroy(tws_plan *plan) {
  if (!plan) return;
  tws_free(plan->ops);
  tws_free(plan->operands);
  tws_free(plan->deps);
  tws_free(plan->buffers);
  tws_free(plan->works);
  tws_arena_destroy(plan->arena);
  tws_free(plan);
}
