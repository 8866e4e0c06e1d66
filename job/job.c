/* Builds a job from a specification: reads the configuration, the model, the cluster and the profile, and resolves the
 * configuration for the number of ranks. */
#include "job/job.h"
#include "job/serving.h"

#include <math.h>
#include <string.h>

#include "job/cluster_name.h"
#include "models/hardware/runtime.h"
#include "models/network/adapt.h"
#include "models/network/packing.h"
#include "plan/fold.h"
#include "plan/pipeline_grid.h"

/* A copy of the model whose vocabulary is padded further, so that tensor ranks can divide it. */
typedef struct padded_network {
  int64_t multiple;
  tws_network *network;
} padded_network;

struct tws_job_parts {
  tws_network *network;
  tws_profile *profile;
  char *model; /* name to load the model again; NULL: it was not loaded from a name */
  padded_network *padded;
  size_t padded_count, padded_capacity;
};

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the job");
}

static tws_job *make_blank(void) {
  tws_job *job = tws_calloc(1, sizeof *job);
  if (job) job->parts = tws_calloc(1, sizeof *job->parts);
  if (job && !job->parts) {
    tws_free(job);
    job = NULL;
  }
  return job;
}

void tws_job_destroy(tws_job *job) {
  if (!job) return;
  for (size_t i = 0; i < job->parts->padded_count; i++) tws_network_destroy(job->parts->padded[i].network);
  tws_free(job->parts->padded);
  tws_free(job->parts->model);
  tws_profile_destroy(job->parts->profile);
  tws_network_destroy(job->parts->network);
  tws_free(job->parts);
  tws_config_destroy(job->config);
  tws_free(job);
}

/* Combines cluster and profile. If the cluster file states no disk, the profile's measured disk is used, and if it
 * states neither host_link nor host_copies, the profile's measured rates of copies. */
static void use_machine(tws_job *job, const tws_profile *profile) {
  if (!(job->cluster.disk_read > 0)) job->cluster.disk_read = tws_profile_disk_read(profile);
  if (!(job->cluster.disk_write > 0)) job->cluster.disk_write = tws_profile_disk_write(profile);
  if (!job->cluster.copies_given) {
    job->cluster.host_copies = tws_profile_copies(profile, 0);
    job->cluster.node_copies = tws_profile_copies(profile, 1);
  }
  job->profile = profile;
  job->backend = tws_profile_backend(profile);
  job->machine = (tws_machine){&job->cluster, profile};
}

void tws_job_set_profile(tws_job *job, tws_profile *profile) {
  tws_profile_destroy(job->parts->profile);
  job->parts->profile = profile;
  /* the machine on which the job runs has rates of its own */
  tws_profile_set_matmul(profile, job->config->matmul_dtype, NULL);
  job->config->casts_assumed = !tws_profile_plans_casts(profile);
  use_machine(job, profile);
}

tws_code tws_job_set_server(tws_job *job, const tws_server *server, tws_error *err) {
  if (job->parts->profile) return tws_profile_set_server(job->parts->profile, server, err);
  return tws_fail(err, TWS_INTERNAL, NULL, "the job does not own its profile");
}

void tws_job_correct_profile(tws_job *job, const tws_profile_correction *correction) {
  if (job->parts->profile) tws_profile_correct(job->parts->profile, correction);
}

void tws_job_rescale_profile(tws_job *job, const double factor[TWS_SCALE_COUNT]) {
  if (job->parts->profile) tws_profile_rescale(job->parts->profile, factor);
}

/* ---- loading ---- */

/* Sets the type of the model's file if neither the configuration nor a flag states one. */
static tws_code assume_dtype(tws_job *job, tws_error *err) {
  const tws_dtype dtype = job->network->dtype;
  if (tws_config_states_dtype(job->config, dtype)) return TWS_OK;
  job->assumed_dtype = 1;
  if (dtype == TWS_F32) return TWS_OK;
  return tws_config_set(job->config, dtype == TWS_BF16 ? "bf16.enabled" : "fp16.enabled", "true", err);
}

/* Applies the configuration's changes to the network. */
static tws_code configure_network(tws_network *network, const tws_config *config, tws_error *err) {
  TWS_TRY(tws_network_pack(network, config, err));
  return tws_network_adapt(network, config, err);
}

static tws_code load_parts(const tws_job_spec *spec, tws_job *job, tws_error *err) {
  struct tws_job_parts *own = job->parts;
  if (!spec->model)
    return tws_fail(err, TWS_USAGE, "give -m MODEL: a Hugging Face config.json or a built-in name such as gpt2",
                    "no model was given");
  TWS_TRY(tws_job_spec_config(spec, &job->config, err));
  TWS_TRY(tws_network_load(spec->model, tws_config_vocabulary_multiple(job->config), &own->network, err));
  TWS_TRY(configure_network(own->network, job->config, err));
  job->network = own->network;
  own->model = tws_calloc(strlen(spec->model) + 1, 1);
  if (!own->model) return no_memory(err);
  memcpy(own->model, spec->model, strlen(spec->model));
  TWS_TRY(assume_dtype(job, err));
  TWS_TRY(tws_cluster_named(spec->cluster ? spec->cluster : "host", &job->cluster, err));
  if (spec->nodes > 0 && spec->nodes < job->cluster.nodes) job->cluster.nodes = spec->nodes;
  if (spec->collectives) TWS_TRY(tws_cluster_collectives(spec->collectives, &job->cluster, err));
  TWS_TRY(tws_profile_load(spec->profile ? spec->profile : job->cluster.profile, &own->profile, err));
  tws_runtime_choice choice;
  TWS_TRY(tws_runtime_choose(spec, job->config, own->profile, &choice, err));
  job->assumed_runtime = !choice.given;
  memcpy(job->runtime_why, choice.why, sizeof job->runtime_why);
  const tws_runtime *runtime = choice.runtime;
  const tws_objective objective = job->network->objective;
  if (runtime->masked && (objective == TWS_OBJECTIVE_MASKED || objective == TWS_OBJECTIVE_SENTENCES))
    runtime = tws_runtime_find(runtime->masked);
  TWS_TRY(tws_profile_set_runtime(own->profile, runtime, err));
  if (spec->allocator) TWS_TRY(tws_profile_set_allocator(own->profile, spec->allocator, err));
  use_machine(job, own->profile);
  /* A GPU's profile without a cluster: the cluster has as many of these GPUs as ranks are requested. Devices of a host
   * are its cores. */
  if (!spec->cluster && job->backend != TWS_BACKEND_HOST) {
    const int64_t asked = spec->ranks ? spec->ranks : job->config->ranks;
    job->cluster.devices_per_node = asked < 1 ? 1 : asked > 1 << 20 ? 1 << 20 : (int)asked;
  }
  return TWS_OK;
}

static tws_code choose_ranks(int64_t asked, tws_job *job, tws_error *err) {
  const int64_t devices = (int64_t)job->cluster.nodes * job->cluster.devices_per_node;
  const int host = job->backend == TWS_BACKEND_HOST;
  int64_t ranks = asked ? asked : job->config->ranks;
  if (!ranks) ranks = host ? job->cluster.nodes : devices;
  if (!host && ranks > devices)
    return tws_fail(err, TWS_INVALID, "use fewer ranks, or more nodes: --cluster NAME:NODES",
                    "%lld ranks were asked for and cluster %s has %lld devices", (long long)ranks, job->cluster.name,
                    (long long)devices);
  job->ranks = (int)ranks;
  return TWS_OK;
}

static void choose_threads(tws_job *job) {
  const int cores = job->cluster.cores_per_node > 0 ? job->cluster.cores_per_node : 1;
  job->threads = 1;
  if (job->backend != TWS_BACKEND_HOST) return;
  job->threads = job->config->threads ? job->config->threads : cores / tws_mapping_most_on_node(&job->mapping);
  if (job->threads < 1) job->threads = 1;
}

/* Fails with TWS_INVALID if the job offloads to the host and the cluster does not state the bandwidths of the host and
 * its link, which determine the time of offloading. */
static tws_code check_offload(const tws_job *job, tws_error *err) {
  const tws_cluster *c = &job->cluster;
  const int links = tws_cluster_copy_rate(c, 0) > 0 && tws_cluster_copy_rate(c, 1) > 0 && c->host_bandwidth > 0;
  if ((!job->config->zero.offload_optimizer && !job->config->zero.offload_param &&
       !tws_config_checkpoints_on_host(job->config)) ||
      job->backend == TWS_BACKEND_HOST || links)
    return TWS_OK;
  return tws_fail(err, TWS_INVALID,
                  "give \"host_link\": {\"bandwidth\": ..., \"latency_s\": ...} and \"host_bandwidth\" in its file",
                  "the job offloads, and cluster %s says not how fast its host's memory is reached", c->name);
}

/* Returns the parts of a micro-batch's tokens whose logits the runtime computes one after another: a power of two that
 * divides the sequence, 1 if it computes all at once. */
static int64_t loss_tiles_of(const tws_job *job, tws_loss_chunks chunks) {
  const tws_config *c = job->config;
  const tws_network *network = job->network;
  const double tokens = (double)(c->micro_batch_size * c->sequence_length) / tws_config_division(c).sequence;
  const double parts =
      chunks == TWS_LOSS_BY_WIDTH ? ceil((double)network->vocabulary / (double)network->hidden) : ceil(tokens / 256);
  const double most = ceil(tokens / exp2(ceil(log2(ceil(tokens / parts)))));
  int64_t tiles = 1;
  if (chunks == TWS_LOSS_WHOLE) return 1;
  while (2 * (double)tiles <= most && c->sequence_length / tws_config_division(c).sequence % (2 * tiles) == 0)
    tiles *= 2;
  return tiles;
}

/* Resolves the configuration, topology and mapping of a job whose number of ranks is known. */
static tws_code settle_job(tws_job *job, tws_error *err) {
  job->mapping = tws_machine_mapping(&job->machine, job->ranks);
  choose_threads(job);
  if (job->config->ignored_token >= job->network->vocabulary)
    return tws_fail(err, TWS_INVALID, "its ids start at 0; -1 ignores none",
                    "twinspeed.ignored_token is %lld, and %s has a vocabulary of %lld",
                    (long long)job->config->ignored_token, job->network->name, (long long)job->network->vocabulary);
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  if (job->parts->profile) TWS_TRY(tws_profile_set_matmul(job->parts->profile, job->config->matmul_dtype, err));
  job->config->casts_assumed = !tws_profile_plans_casts(job->profile);
  if (runtime->by_block) job->config->zero.by_block = 1;
  if (runtime->keeps_wide) job->config->matmul_keeps_wide = 1;
  if (runtime->whole_gradients) job->config->grad_partitioned = 0;
  if (runtime->recomputes_whole && tws_config_recomputes_blocks(job->config)) job->config->recompute_whole = 1;
  tws_auto_context context = {.hidden_size = job->network->hidden};
  job->assumed_sequence = !job->config->sequence_length;
  if (job->assumed_sequence) job->config->sequence_length = tws_network_usual_sequence(job->network);
  TWS_TRY(tws_config_resolve(job->config, job->ranks, &context, err));
  if (runtime->loss_chunks && !tws_config_has_key(job->config, "twinspeed.loss_tiles"))
    job->config->loss_tiles = loss_tiles_of(job, runtime->loss_chunks);
  TWS_TRY(check_offload(job, err));
  return tws_plan_topology(job->config, job->ranks, &job->topology, err);
}

static tws_code keep_or_destroy(tws_job *job, tws_code code, tws_job **out) {
  *out = code == TWS_OK ? job : NULL;
  if (code != TWS_OK) tws_job_destroy(job);
  return code;
}

tws_code tws_job_open(const tws_job_spec *spec, tws_job **out, tws_error *err) {
  tws_job *job = make_blank();
  *out = NULL;
  return job ? keep_or_destroy(job, load_parts(spec, job, err), out) : no_memory(err);
}

tws_code tws_job_load(const tws_job_spec *spec, tws_job **out, tws_error *err) {
  tws_job *job;
  *out = NULL;
  TWS_TRY(tws_job_open(spec, &job, err));
  tws_code code = choose_ranks(spec->ranks, job, err);
  if (code == TWS_OK) code = settle_job(job, err);
  return keep_or_destroy(job, code, out);
}

tws_code tws_job_assemble(const tws_job_parts_given *parts, tws_job **out, tws_error *err) {
  tws_job *job = make_blank();
  *out = NULL;
  if (!job) {
    tws_network_destroy(parts->network);
    tws_config_destroy(parts->config);
    tws_profile_destroy(parts->profile);
    return no_memory(err);
  }
  job->network = job->parts->network = parts->network;
  job->config = parts->config;
  job->parts->profile = parts->profile;
  job->cluster = parts->cluster;
  use_machine(job, parts->profile);
  job->ranks = parts->ranks;
  tws_code code = configure_network(parts->network, parts->config, err);
  if (code == TWS_OK && parts->ranks > 0) code = settle_job(job, err);
  return keep_or_destroy(job, code, out);
}

/* ---- variants ---- */

/* Returns the network for a configuration: the job's, or a copy whose vocabulary is padded further for tensor ranks. */
static tws_code find_network(tws_job *base, const tws_config *config, const tws_network **network, tws_error *err) {
  struct tws_job_parts *own = base->parts;
  const int64_t multiple = tws_config_vocabulary_multiple(config);
  *network = base->network;
  if (multiple == tws_config_vocabulary_multiple(base->config) || !own->model) return TWS_OK;
  size_t at = 0;
  while (at < own->padded_count && own->padded[at].multiple != multiple) at++;
  if (at == own->padded_count) {
    if (tws_reserve(&own->padded, &own->padded_capacity, at + 1, sizeof *own->padded)) return no_memory(err);
    TWS_TRY(tws_network_load(own->model, multiple, &own->padded[at].network, err));
    own->padded[at].multiple = multiple;
    own->padded_count++;
    TWS_TRY(configure_network(own->padded[at].network, config, err));
  }
  *network = own->padded[at].network;
  return TWS_OK;
}

static tws_code fill_derived(tws_job *base, const tws_variant *variant, tws_job *job, tws_error *err) {
  job->cluster = base->cluster;
  job->program = base->program;
  job->assumed_dtype = base->assumed_dtype;
  job->assumed_runtime = base->assumed_runtime;
  job->rescaling = base->rescaling;
  memcpy(job->runtime_why, base->runtime_why, sizeof job->runtime_why);
  job->assumed_sequence = base->assumed_sequence || !base->config->sequence_length;
  use_machine(job, base->profile);
  TWS_TRY(tws_variant_config(base->config, base->network, variant, &job->config, err));
  TWS_TRY(find_network(base, job->config, &job->network, err));
  TWS_TRY(check_offload(job, err));
  job->ranks = variant->ranks;
  job->mapping = tws_machine_mapping(&job->machine, job->ranks);
  job->threads = variant->threads > 0 ? variant->threads : 1;
  return tws_plan_topology(job->config, job->ranks, &job->topology, err);
}

tws_code tws_job_derive(tws_job *base, const tws_variant *variant, tws_job **out, tws_error *err) {
  tws_job *job = make_blank();
  *out = NULL;
  return job ? keep_or_destroy(job, fill_derived(base, variant, job, err), out) : no_memory(err);
}

/* ---- ranks ---- */

int tws_job_ranks_along(const tws_job *job, tws_axis axis) {
  return tws_topology_size(&job->topology, 1u << axis);
}

int tws_job_stages(const tws_job *job) {
  return tws_job_ranks_along(job, TWS_AXIS_PIPE);
}

int tws_job_stage_rank(const tws_job *job, int stage) {
  return tws_pipeline_grid_stage(&job->topology, 0, stage);
}

tws_code tws_job_representatives(const tws_job *job, int every_up_to, tws_rank_set *out, tws_error *err) {
  enum { FEW = 16 };
  if (!tws_replicas_are_synchronous(job->config) && every_up_to < FEW) every_up_to = FEW;
  if (job->ranks <= every_up_to) return tws_every_rank(job->ranks, out, err);
  return tws_representatives(&job->topology, &job->mapping, job->config, out, err);
}

tws_variant tws_job_variant(const tws_job *job) {
  const tws_config *c = job->config;
  tws_variant v = tws_variant_given(c);
  v.stage = c->zero.stage;
  v.recompute = c->recompute;
  v.ranks = job->ranks;
  v.threads = job->backend == TWS_BACKEND_HOST ? job->threads : 0;
  v.micro = c->micro_batch_size;
  v.accumulation = c->accumulation_steps;
  return v;
}

int64_t tws_job_sequence(const tws_job *job) {
  return job->config->sequence_length > 0 ? job->config->sequence_length : tws_network_usual_sequence(job->network);
}

double tws_job_samples_per_s(const tws_job *job, double step_s) {
  return (double)job->config->train_batch_size / step_s;
}

double tws_job_tokens_per_s(const tws_job *job, double step_s) {
  return (double)(job->config->train_batch_size * job->config->sequence_length) / step_s;
}

/* ---- plans ---- */

tws_plan_request tws_job_request(const tws_job *job, int rank) {
  return (tws_plan_request){.network = job->network,
                            .config = job->config,
                            .topology = job->topology,
                            .rank = rank,
                            .program = job->program,
                            .parameters_only = job->program == TWS_PROGRAM_EVALUATE,
                            .backend = job->backend,
                            .threads = job->threads};
}

tws_code tws_job_plan(const tws_job *job, int rank, tws_plan **out, tws_error *err) {
  return tws_job_program(job, rank, job->program, NULL, out, err);
}

tws_code tws_job_part_plan(const tws_job *job, int rank, int64_t micro_batches, tws_plan **out, tws_error *err) {
  tws_plan_request request = tws_job_request(job, rank);
  request.max_accumulation = micro_batches;
  return tws_plan_build(&request, out, err);
}

tws_code tws_job_choose_program(tws_job *job, const char *name, tws_error *err) {
  for (int i = 0; name && i < TWS_PROGRAM_COUNT; i++) {
    if (strcmp(name, tws_program_name((tws_program)i)) != 0) continue;
    if (tws_program_serves((tws_program)i))
      return tws_fail(err, TWS_USAGE, "estimate --serve predicts both programs of inference",
                      "--program %s: it needs the lengths of prompts and texts", name);
    job->program = (tws_program)i;
    return TWS_OK;
  }
  return name ? tws_fail(err, TWS_USAGE,
                         "--program train, evaluate, apply, select, sync, compressed, local, merge, freeze, overlap or "
                         "overlap-select",
                         "--program: no program \"%.80s\"", name)
              : TWS_OK;
}

tws_code tws_job_program(const tws_job *job, int rank, tws_program program, tws_state *state, tws_plan **out,
                         tws_error *err) {
  tws_plan_request request = tws_job_request(job, rank);
  request.program = program;
  request.parameters_only = program == TWS_PROGRAM_EVALUATE && !state;
  request.state = state;
  return tws_plan_build(&request, out, err);
}

/* ---- predictions ---- */

tws_code tws_job_fingerprint(const tws_job *job, tws_fingerprint *out, tws_error *err) {
  const tws_plan_request request = tws_job_request(job, 0);
  return tws_fingerprint_read(&request, out, err);
}

tws_code tws_job_estimate(const tws_job *job, tws_estimate *out, tws_stage_estimate *stages, tws_error *err) {
  const tws_plan_request request = tws_job_request(job, 0);
  return tws_estimate_job(&request, &job->machine, out, stages, err);
}

tws_code tws_job_live(const tws_job *job, tws_ledger *out, tws_error *err) {
  const tws_plan_request request = tws_job_request(job, 0);
  return tws_estimate_live(&request, &job->machine, out, err);
}

enum { VERIFIED_OPERATIONS = 1500000, VERIFIED_RANKS = 512, VERIFIED_GROUPS = 1 << 24 };

/* Computes a number of micro-batches whose plans determine those of the whole step: large enough to show the layouts'
 * period. */
static tws_code verified_micro_batches(const tws_job *job, int64_t *micro_batches, tws_error *err) {
  const int64_t wanted = job->config->accumulation_steps;
  const int stages = tws_job_stages(job);
  const tws_pipeline_shape shape = tws_pipeline_shape_of(job->config, stages, wanted);
  *micro_batches = wanted;
  if (!tws_fold_applies(&shape, wanted)) return TWS_OK;
  if (stages > 1) TWS_TRY(tws_pipeline_check(&shape, err));
  int64_t few = 0;
  for (int stage = 0; stage < stages; stage++) {
    const tws_plan_request request = tws_job_request(job, tws_job_stage_rank(job, stage));
    tws_plan *plan;
    TWS_TRY(tws_fold_plan(&request, &plan, err));
    if (plan->accumulation_steps > few) few = plan->accumulation_steps;
    tws_plan_destroy(plan);
  }
  /* the number of micro-batches has to be legal for the pipeline schedule */
  const int64_t step = tws_fold_step(&shape);
  *micro_batches = few + (wanted - few) % step;
  return TWS_OK;
}

/* Chooses as many ranks as are verified in a few seconds. The lists of group members in each plan are limited too. */
static tws_code choose_verified(const tws_job *job, int64_t micro_batches, int64_t *max_ranks, tws_error *err) {
  tws_plan *plan;
  TWS_TRY(tws_job_part_plan(job, 0, micro_batches, &plan, err));
  *max_ranks = VERIFIED_OPERATIONS / ((int64_t)plan->op_count + 1);
  *max_ranks = *max_ranks < 4 ? 4 : *max_ranks > VERIFIED_RANKS ? VERIFIED_RANKS : *max_ranks;
  const int64_t listed = VERIFIED_GROUPS / job->ranks;
  if (*max_ranks > listed) *max_ranks = listed < 2 ? 2 : listed;
  tws_plan_destroy(plan);
  return TWS_OK;
}

static tws_code verify_ranks(const tws_job *job, const tws_rank_set *set, int bounded, tws_progress *progress,
                             tws_plan **plans, tws_verification *seen, tws_error *err) {
  tws_code code = TWS_OK;
  for (int i = 0; i < set->count && code == TWS_OK; i++) {
    code = tws_job_part_plan(job, set->ranks[i], seen->micro_batches, &plans[i], err);
    if (code == TWS_OK) code = tws_plan_verify(plans[i], err);
    if (code == TWS_OK) seen->operations += plans[i]->op_count;
    if (code == TWS_OK && bounded) code = tws_plans_check_length(seen->operations, err);
    seen->checked += code == TWS_OK;
    tws_progress_update(progress, seen->checked);
  }
  const tws_plan *const *all = (const tws_plan *const *)plans;
  if (code == TWS_OK)
    code = seen->together ? tws_plans_verify(all, set->count, err) : tws_plans_verify_part(all, set->count, err);
  return code;
}

tws_code tws_job_verify(const tws_job *job, int64_t max_ranks, tws_progress *progress, tws_verification *seen,
                        tws_error *err) {
  tws_verified_set chosen = {0};
  const int bounded = max_ranks == 0; /* an explicit max_ranks is not lowered */
  int64_t micro_batches;
  TWS_TRY(verified_micro_batches(job, &micro_batches, err));
  if (max_ranks == 0) TWS_TRY(choose_verified(job, micro_batches, &max_ranks, err));
  tws_code code = tws_ranks_to_verify(&job->topology, max_ranks, &chosen, err);
  tws_plan **plans = code == TWS_OK ? tws_calloc((size_t)chosen.set.count, sizeof *plans) : NULL;
  if (code == TWS_OK && !plans) code = no_memory(err);
  *seen = (tws_verification){.ranks = job->ranks,
                             .together = chosen.set.count == job->ranks,
                             .replicas = chosen.whole_replicas,
                             .micro_batches = micro_batches};
  tws_progress_begin(progress, "verifying ranks", chosen.set.count);
  if (code == TWS_OK) code = verify_ranks(job, &chosen.set, bounded, progress, plans, seen, err);
  tws_progress_end(progress);
  for (int i = 0; plans && i < chosen.set.count; i++) tws_plan_destroy(plans[i]);
  tws_free(plans);
  tws_rank_set_free(&chosen.set);
  return code;
}
