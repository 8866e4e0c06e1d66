#include "estimators/rank_kinds.h"

#include "estimators/piece_keys.h"

int tws_topology_is_same(const tws_topology *a, const tws_topology *b) {
  if (a->axes != b->axes) return 0;
  for (int i = 0; i < a->axes; i++)
    if (a->axis[i] != b->axis[i] || a->dim[i] != b->dim[i]) return 0;
  return 1;
}

void tws_rank_spread(const tws_machine *machine, const tws_topology *t, int rank, int *spread) {
  const tws_node_mapping m = tws_machine_mapping(machine, tws_topology_world(t));
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++) {
    const tws_axes axes = 1u << axis;
    const int size = tws_topology_size(t, axes), node = tws_mapping_node(&m, tws_topology_member(t, rank, axes, 0));
    spread[axis] = 0;
    for (int i = 0; i < size; i++) spread[axis] += tws_mapping_node(&m, tws_topology_member(t, rank, axes, i)) == node;
  }
}

enum { MOST_LINES = 24 }; /* each is lowered */

static int begins_line(const tws_topology *t, const uint8_t *like_before, int rank) {
  return tws_topology_index(t, rank, TWS_AXES_PIPE) == 0 &&
         !like_before[tws_topology_index(t, rank, 1u << TWS_AXIS_MODEL)];
}

/* Other things that go to the host beside the passes are not known of ranks that differ. */
static int offloads_beside(const tws_plan_request *request) {
  return tws_config_offloads(request->config) && !tws_offloads_behind(request) && !tws_offloads_in_step(request);
}

/* One of each part of the sequence, and of stage 3 of each run of tensor ranks that do the same. What ranks of stage 2
 * keep of every bucket would take more. */
static void find_lines(const tws_plan_request *request, unsigned how, const uint8_t *like_before,
                       const tws_rank_set *every, tws_rank_kind *kind) {
  const tws_topology *t = &request->topology;
  const int stage = request->config->zero.stage;
  int lines = 0;
  for (int i = 0; i < every->count; i++) lines += begins_line(t, like_before, every->ranks[i]);
  kind->alone = !how;
  if (!how || offloads_beside(request) || lines > MOST_LINES) return;
  kind->alone = 1;
  kind->line_count = 0;
  kind->apart = 1u << TWS_AXIS_SEQUENCE | (stage == 3 ? 1u << TWS_AXIS_MODEL : 0);
  kind->pass_apart = (how & ~(unsigned)TWS_RANKS_END_APART) != 0;
  for (int i = 0; i < every->count; i++)
    if (begins_line(t, like_before, every->ranks[i])) kind->lines[kind->line_count++] = every->ranks[i];
}

/* All of them. alike: tensor ranks pass so; uneven: groups lie unevenly on nodes. */
static void find_every_line(const tws_plan_request *request, unsigned how, int alike, int uneven, tws_rank_kind *kind) {
  const tws_topology *t = &request->topology;
  const int stages = tws_topology_size(t, TWS_AXES_PIPE), world = tws_topology_world(t);
  if (offloads_beside(request) || world / stages > MOST_LINES) return;
  kind->alone = kind->every = 1;
  kind->uneven = uneven;
  kind->pass_apart = uneven || !alike || (how & ~(unsigned)TWS_RANKS_END_APART) != 0;
  kind->line_count = 0;
  kind->apart = (tws_axes)-1;
  for (int rank = 0; rank < world; rank++)
    if (tws_topology_index(t, rank, TWS_AXES_PIPE) == 0) kind->lines[kind->line_count++] = rank;
}

/* Where several count, one stands for them if the others are like it. */
static tws_code stand_alone(const tws_plan_request *request, const tws_machine *machine,
                            const tws_node_mapping *mapping, tws_sample_memory *memory, tws_rank_kind *kind,
                            tws_error *err) {
  tws_plan_request whole = *request;
  tws_rank_set every = {NULL, 0}, some = {NULL, 0};
  unsigned how = 0;
  int alike = 1;
  uint8_t *like_before = tws_calloc((size_t)tws_topology_size(&request->topology, 1u << TWS_AXIS_MODEL), 1);
  if (!like_before) return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
  whole.max_accumulation = 0;
  tws_code code = tws_estimate_ranks(&whole, machine, &every, err);
  kind->alone = kind->single = every.count == tws_topology_size(&request->topology, TWS_AXES_PIPE);
  if (code == TWS_OK && !kind->single) {
    code = tws_representatives(&request->topology, mapping, request->config->zero.stage, &some, err);
    const int even = tws_mapping_is_even(mapping, &request->topology);
    if (code == TWS_OK && even) code = tws_plan_ranks_differ(request, memory, &how, like_before, err);
    if (code == TWS_OK && every.count > some.count && tws_topology_size(&request->topology, 1u << TWS_AXIS_MODEL) > 1)
      code = tws_plan_tensor_ranks_alike(request, memory, like_before, &alike, err);
    if (code == TWS_OK && (!even || every.count > some.count)) find_every_line(request, how, alike, !even, kind);
    if (code == TWS_OK && even && every.count == some.count) find_lines(request, how, like_before, &every, kind);
  }
  tws_rank_set_free(&every);
  tws_rank_set_free(&some);
  tws_free(like_before);
  return code;
}

tws_code tws_rank_kind_find(tws_rank_kind **kinds, const tws_plan_request *request, const tws_machine *machine,
                            tws_sample_memory *memory, tws_arena *arena, const tws_rank_kind **out, tws_error *err) {
  const tws_config *config = request->config;
  const tws_topology *t = &request->topology;
  const int offloads = config->zero.stage > 0 && config->zero.offload_optimizer != 0;
  const int stage = offloads || config->zero.stage == 3 ? config->zero.stage : 0;
  const int knobs = (config->tensor_sequence_parallel != 0) + 2 * (config->expert_tensor_parallel != 0) +
                    4 * (tws_config_bf16_masters(config) && config->stochastic_rounding) + 8 * config->zero.stage +
                    32 * (config->zero.overlap_comm != 0) + 64 * tws_config_is_ring(config) + 128 * config->zenflow.on;
  for (tws_rank_kind *r = *kinds; r; r = r->next)
    if (r->stage == stage && r->offloads == offloads && tws_topology_is_same(&r->topology, t) &&
        (r->single || (r->knobs == knobs && r->network == request->network))) {
      *out = r;
      return TWS_OK;
    }
  const tws_node_mapping mapping = tws_machine_mapping(machine, tws_topology_world(t));
  tws_rank_kind *r = tws_arena_alloc(arena, 1, sizeof *r);
  int *lines = tws_arena_alloc(arena, MOST_LINES, sizeof *lines);
  if (!r || !lines) return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
  *r = (tws_rank_kind){.topology = *t,
                       .network = request->network,
                       .stage = stage,
                       .offloads = offloads,
                       .knobs = knobs,
                       .line_count = 1,
                       .lines = lines,
                       .next = *kinds};
  TWS_TRY(stand_alone(request, machine, &mapping, memory, r, err));
  tws_rank_spread(machine, t, 0, r->spread);
  *out = *kinds = r;
  return TWS_OK;
}
