/* Jobs for tests of bounds and estimates: legal jobs at random, and jobs of kinds that few random draws produce. The
 * seed of such a job is its kind's constant (CODED and so on, see below) plus a number. */
#ifndef TWS_TESTS_DRAWN_JOB_H
#define TWS_TESTS_DRAWN_JOB_H

#include "config/cluster.h"
#include "estimators/estimators.h"
#include "models/hardware/profile.h"
#include "tests/legal_job.h"

/* Returns 1 if all streams of a job at random costs share one queue, and 0 if each stream has its own. */
static inline int in_one_queue(uint64_t seed) {
  return seed % 8 == 5;
}

/* A legal job at random, with more layers, on four nodes. */
typedef struct drawn_job {
  tws_cluster cluster;
  tws_profile *profile;
  tws_machine machine;
  tws_config config;
  tws_network *network;
  tws_plan_request request;
} drawn_job;

/* Draws a job whose reductions overlap the last backward pass; the seed is this constant plus a number. Draws are
 * repeated until one fits. */
enum { BESIDE = 1 << 20 };
static tws_config draw_beside(uint64_t seed, shape *s, int *world) {
  tws_config c;
  for (uint64_t near = 0;; near++) {
    c = legal_job(seed + (near << 32), s, world);
    if (c.pipeline_stages == 1 && c.sequence_ranks == 1 && *world > c.tensor_ranks) break;
  }
  c.zero.stage = 1;
  c.zero.overlap_comm = 1;
  c.zero.secondary_ranks = c.zero.node_ranks = c.linear_tile_size = 0;
  c.tensor_overlap = 0;
  c.zero.reduce_scatter = (int)draw(seed, 600, 2);
  return c;
}

/* Draws a job of stage 3 with secondary partitions or quantized payloads, whose operations do not overlap; the seed is
 * CODED plus a number. */
enum { CODED = 1 << 21 };
static tws_config draw_coded(uint64_t seed, shape *s, int *world) {
  tws_config c;
  for (uint64_t near = 0;; near++) {
    c = legal_job(seed + (near << 32), s, world);
    const int coded = c.zero.secondary_ranks || c.zero.node_ranks || c.zero.quantized_weights;
    if (c.zero.stage == 3 && c.sequence_ranks == 1 && c.tensor_ranks == 1 && *world > 2 && coded) break;
  }
  c.zero.overlap_comm = 0;
  return c;
}

/* Draws for a job that the optimizer is on the host, or its states on the disk. draw_offloaded() gives such a job so
 * few ranks that one rank of each stage represents the others; its seed is OFFLOADED plus a number. */
enum { OFFLOADED = 1 << 22 };
static void put_on_host(uint64_t seed, tws_config *c) {
  c->zero.offload_optimizer = draw(seed, 610, 4) ? 1 : 2;
  c->zero.offload_optimizer_pinned = draw(seed, 611, 4) > 0;
  c->zero.pipeline_read = (int)draw(seed, 612, 2);
  c->zero.pipeline_write = (int)draw(seed, 613, 2);
  c->zero.reduce_scatter = (int)draw(seed, 614, 2);
}

/* Draws that the parameters are on the host, some of them on the disk, with the optimizer or without it. */
static void put_parameters_on_host(uint64_t seed, tws_config *c) {
  c->zero.offload_param = draw(seed, 630, 3) ? 1 : 2;
  c->zero.offload_param_pinned = draw(seed, 631, 4) > 0;
  c->zero.max_in_cpu = (int64_t)draw(seed, 632, 8000);
  c->zero.param_buffer_count = 1 + (int64_t)draw(seed, 633, 5);
  c->zero.param_buffer_size = 1 + (int64_t)draw(seed, 634, 8000);
  if (draw(seed, 635, 3) == 0) c->zero.offload_optimizer = 0;
}

/* Where that may be. */
static void update_in_two_parts(uint64_t seed, tws_config *c) {
  if (c->tensor_ranks > 1 || c->pipeline_stages > 1 || c->bf16_masters || !c->zero.offload_optimizer) return;
  c->zenflow.on = 1;
  c->zenflow.topk_ratio = 0.1 + (double)draw(seed, 637, 5) / 10;
  c->zenflow.update_interval = draw(seed, 638, 2) ? 2 : 0; /* 0: measured */
  c->zenflow.select_interval = 4;
  c->zenflow.warm_up = 1;
  c->zero.offload_optimizer = 1;
  c->zero.offload_param = c->delayed_update = 0;
}

static tws_config draw_offloaded(uint64_t seed, shape *s, int *world) {
  tws_config c;
  for (uint64_t near = 0;; near++) {
    c = legal_job(seed + (near << 32), s, world);
    if (c.sequence_ranks > 1) continue;
    const int without_replicas = c.tensor_ranks * c.pipeline_stages == *world;
    if (*world > 16 || (without_replicas && *world > 8 && draw(seed, 615, 2))) break;
  }
  if (*world <= 16) { /* twice as many */
    *world *= 2;
    c.tensor_ranks *= 2;
    c.micro_batch_size *= 2;
    s->heads *= 2;
    s->kv_heads *= 2;
    s->inner *= 2;
  }
  c.zero.stage = 1;
  c.zero.overlap_comm = c.tensor_overlap = 0;
  c.zero.secondary_ranks = c.zero.node_ranks = c.zero.shard_ranks = c.linear_tile_size = 0;
  put_on_host(seed, &c);
  return c;
}

/* Draws a job of stage 3 with tensor ranks, most of which have no bias that one of them adds alone; the seed is RANKED
 * plus a number. */
enum { RANKED = 1 << 23 };
static tws_config draw_ranked(uint64_t seed, shape *s, int *world) {
  tws_config c;
  for (uint64_t near = 0;; near++) {
    c = legal_job(seed + (near << 32), s, world);
    if (c.zero.stage == 3 && c.tensor_ranks > 1 && c.sequence_ranks == 1) break;
  }
  c.zero.overlap_comm = c.tensor_overlap = 0;
  s->llama |= draw(seed, 620, 8) > 0;
  if (draw(seed, 621, 4)) s->vocabulary += c.tensor_ranks - s->vocabulary % c.tensor_ranks;
  return c;
}

/* Draws a job of stage 2 or 3 whose gathers and reductions overlap the layers; the seed is IN_STEP plus a number. */
enum { IN_STEP = 1 << 24 };
static tws_config draw_in_step(uint64_t seed, shape *s, int *world) {
  tws_config c;
  for (uint64_t near = 0;; near++) {
    c = legal_job(seed + (near << 32), s, world);
    const int alone = c.sequence_ranks == 1 || draw(seed, 601, 8) == 0; /* sequence ranks would lie unevenly on nodes */
    const int sharded = c.zero.stage == 3 && (c.tensor_ranks == 1 || draw(seed, 602, 8) == 0);
    if (c.pipeline_stages == 1 && *world > c.tensor_ranks && alone && (seed % 2 == 0 || sharded)) break;
  }
  c.zero.overlap_comm = 1;
  c.linear_tile_size = 0;
  if (seed % 2 == 0) {
    c.zero.stage = 2;
    c.zero.secondary_ranks = c.zero.node_ranks = c.zero.shard_ranks = c.zero.hierarchical_gather = 0;
    c.zero.quantized_weights = c.zero.quantized_gradients = 0;
  }
  c.sequence_algorithm = 0;
  c.tensor_overlap = 0;
  c.zero.reduce_scatter = (int)draw(seed, 600, 2);
  return c;
}

/* Draws a job whose tensor ranks exchange during compute, with all ZeRO collectives that may overlap that; the seed is
 * EXCHANGED plus a number. */
enum { EXCHANGED = 1 << 25 };
static tws_config draw_exchanged(uint64_t seed, shape *s, int *world) {
  tws_config c;
  for (uint64_t near = 0;; near++) {
    c = legal_job(seed + (near << 32), s, world);
    if (c.tensor_ranks > 1 && c.sequence_ranks == 1 && (c.pipeline_stages > 1) == (seed % 2)) break;
  }
  c.tensor_overlap = 1;
  c.linear_tile_size = 0;
  c.zero.reduce_scatter = (int)draw(seed, 600, 2);
  if (c.zero.stage < 3) return c;
  s->llama = 1; /* without biases, so that ranks are alike */
  s->vocabulary += c.tensor_ranks - s->vocabulary % c.tensor_ranks;
  return c;
}

/* Draws a job whose sequences are divided by ring attention; the seed is RINGED plus a number, and where that is odd,
 * groups may lie unevenly on nodes. The job has few samples, because each is an operation of its own, and a plan's
 * seconds lose precision with every addition of an equal time. */
enum { RINGED = 1 << 26, FEW_SAMPLES = 16 };
static tws_config draw_ringed(uint64_t seed, shape *s, int *world) {
  tws_config c;
  for (uint64_t near = 0;; near++) {
    c = legal_job(seed + (near << 32), s, world);
    const int ring = c.sequence_ranks > 1 && c.sequence_algorithm == TWS_SEQUENCE_RING;
    if (ring && c.micro_batch_size <= FEW_SAMPLES && (c.pipeline_stages > 1) == (seed / 2 % 2)) break;
  }
  if (c.zero.stage > 1) c.zero.stage = (int)draw(seed, 602, 2);
  c.zero.overlap_comm = 0;
  c.zero.secondary_ranks = c.zero.node_ranks = c.zero.shard_ranks = c.zero.hierarchical_gather = 0;
  c.zero.quantized_weights = c.zero.quantized_gradients = c.linear_tile_size = 0;
  c.zero.reduce_scatter = (int)draw(seed, 600, 2);
  return c;
}

/* Draws a job whose optimizer is on the host, or its states on the disk, at all stages that allow it: also partly on
 * the device, one step late, or in two parts, and at stage 3 with parameters there. The seed is HOSTED plus a number;
 * where that is odd, groups may lie unevenly on nodes. */
enum { HOSTED = 1 << 27 };
static tws_config draw_hosted(uint64_t seed, shape *s, int *world) {
  tws_config c;
  for (uint64_t near = 0;; near++) {
    c = legal_job(seed + (near << 32), s, world);
    const int few = c.sequence_algorithm != TWS_SEQUENCE_RING || c.micro_batch_size <= FEW_SAMPLES;
    if (few && c.zero.shard_ranks < 1 && (c.zero.stage > 1 || seed % 3)) break;
  }
  if (c.zero.stage == 0) c.zero.stage = 1;
  put_on_host(seed, &c);
  if (c.zero.stage == 3 && draw(seed, 616, 3)) put_parameters_on_host(seed, &c);
  c.delayed_update = c.zero.offload_optimizer == 1 && c.zero.offload_param != 2 && c.pipeline_stages == 1 &&
                     draw(seed, 619, 3) == 0;
  if (!s->experts && draw(seed, 636, 4) == 0) update_in_two_parts(seed, &c);
  if (!c.delayed_update && !c.zenflow.on && draw(seed, 617, 4) == 0)
    c.zero.offload_optimizer_ratio = (double)draw(seed, 618, 10) / 10;
  return c;
}

/* Draws a job of any of these kinds whose activation checkpoints are kept on the host; the seed is CHECKPOINTED plus a
 * number. */
enum { CHECKPOINTED = 1 << 28 };
static tws_config draw_checkpointed(uint64_t seed, shape *s, int *world) {
  static tws_config (*const kinds[])(uint64_t, shape *, int *) = {
      legal_job, draw_beside, draw_in_step, draw_exchanged, draw_ringed, draw_ranked, draw_hosted};
  tws_config c = kinds[seed % (sizeof kinds / sizeof *kinds)](seed, s, world);
  c.recompute = TWS_RECOMPUTE_FULL;
  c.cpu_checkpointing = 1;
  c.partition_activations = draw(seed, 640, 3) == 0;
  return c;
}

static void draw_job(uint64_t seed, int64_t more_layers, int64_t longer, drawn_job *j) {
  tws_error err = {0};
  ck_assert(tws_profile_load("a100-80gb", &j->profile, &err) == TWS_OK);
  ck_assert(tws_cluster_load("dgx-a100", &j->cluster, &err) == TWS_OK);
  j->cluster.nodes = 4;
  if (seed >= OFFLOADED && !(seed >= RINGED && seed % 2))
    j->cluster.devices_per_node = 32; /* all ranks of a group are on one node */
  j->machine = (tws_machine){&j->cluster, j->profile};
  shape s;
  int world;
  j->config = seed >= CHECKPOINTED ? draw_checkpointed(seed, &s, &world)
              : seed >= HOSTED     ? draw_hosted(seed, &s, &world)
              : seed >= RINGED     ? draw_ringed(seed, &s, &world)
              : seed >= EXCHANGED  ? draw_exchanged(seed, &s, &world)
              : seed >= IN_STEP    ? draw_in_step(seed, &s, &world)
              : seed >= RANKED     ? draw_ranked(seed, &s, &world)
              : seed >= OFFLOADED  ? draw_offloaded(seed, &s, &world)
              : seed >= CODED      ? draw_coded(seed, &s, &world)
              : seed >= BESIDE     ? draw_beside(seed, &s, &world)
                                   : legal_job(seed, &s, &world);
  s.layers += more_layers;
  j->config.train_batch_size *= longer;
  j->config.accumulation_steps *= longer;
  j->network = network_of(&s, j->config.tensor_ranks);
  j->request =
      (tws_plan_request){.network = j->network, .config = &j->config, .backend = TWS_BACKEND_CUDA, .threads = 1};
  ck_assert(tws_plan_topology(&j->config, world, &j->request.topology, &err) == TWS_OK);
}

static void drop_job(drawn_job *j) {
  tws_network_destroy(j->network);
  tws_profile_destroy(j->profile);
}

#endif
