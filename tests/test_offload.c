/* ctest: engine */
/* Optimizers on the host: which data moves where, and the costs (test_train_offload.c compares losses). */
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "config/cluster.h"
#include "draw.h"
#include "estimators/estimators.h"
#include "job_seconds.h"
#include "real/host/numa.h"
#include "sanitized.h"
#include "suite.h"

static tws_error err;

/* ---- plans ---- */

typedef struct job {
  tws_network *network;
  tws_config *config;
  tws_plan *plans[8];
  int ranks;
} job;

static job lower(const char *model, const char *text, int ranks) {
  job j = {.ranks = ranks};
  tws_json *json;
  tws_plan_request request = {.backend = TWS_BACKEND_CUDA, .threads = 1};
  ck_assert_msg(tws_json_parse(text, strlen(text), "job", &json, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_config_from_json(json, &j.config, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  ck_assert(tws_network_load(model, 1, &j.network, &err) == TWS_OK);
  const tws_auto_context context = {.hidden_size = j.network->hidden};
  ck_assert_msg(tws_config_resolve(j.config, ranks, &context, &err) == TWS_OK, "%s: %s", text, err.message);
  ck_assert(tws_plan_topology(j.config, ranks, &request.topology, &err) == TWS_OK);
  request.network = j.network;
  request.config = j.config;
  for (int r = 0; r < ranks; r++) {
    request.rank = r;
    ck_assert_msg(tws_plan_build(&request, &j.plans[r], &err) == TWS_OK, "%s: %s", text, err.message);
    ck_assert_msg(tws_plan_verify(j.plans[r], &err) == TWS_OK, "%s: %s", text, err.message);
  }
  ck_assert_msg(tws_plans_verify((const tws_plan *const *)j.plans, ranks, &err) == TWS_OK, "%s: %s", text, err.message);
  return j;
}

static void release(job *j) {
  for (int r = 0; r < j->ranks; r++) tws_plan_destroy(j->plans[r]);
  tws_config_destroy(j->config);
  tws_network_destroy(j->network);
}

static int pick(uint64_t seed, uint64_t index, int n) {
  return draw(seed, index, 0, n - 1);
}

/* Draws a configuration with random precision, optimizer, axes and so on; *tier: where the optimizer has to update,
 * *state_tier: where its states have to be. Returns the number of ranks. */
static int draw_job(uint64_t seed, char *text, size_t size, tws_tier *tier, tws_tier *state_tier, int *early) {
  static const char *const precision[] = {
      "", ",\"bf16\":{\"enabled\":true}", ",\"fp16\":{\"enabled\":true}",
      ",\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true,\"bf16_optimizer_states\":true}",
      ",\"bf16\":{\"enabled\":true},\"data_types\":{\"grad_accum_dtype\":\"fp32\"}"};
  static const char *const optimizer[] = {"AdamW", "Lion", "Adagrad"};
  static const struct {
    const char *text;
    int ranks;
  } axes[] = {{"", 1},
              {",\"tensor_parallel\":{\"autotp_size\":2}", 2},
              {",\"pipeline\":{\"stages\":2}", 2},
              {",\"sequence_parallel_size\":2", 2}};
  const int axis = pick(seed, 1, 2) ? 0 : pick(seed, 2, 4), replicas = 1 + pick(seed, 3, 4);
  const int stage = axis == 2 ? 1 : 1 + pick(seed, 4, 3), pinned = pick(seed, 5, 2);
  const int steps = 2 + pick(seed, 6, 2), kind = pick(seed, 7, 5);
  const char *rule = optimizer[kind == 3 ? 0 : pick(seed, 8, 3)];
  const int disk = pick(seed, 15, 3) == 0, parameters = stage == 3 ? pick(seed, 18, 4) : 0;
  static const char *const param_device[] = {"none", "cpu", "nvme", "nvme"};
  static const int in_cpu[] = {0, 0, 20000, 0};
  const int late = !disk && parameters < 2 && axis != 2 && pick(seed, 21, 2);
  *tier = pinned ? TWS_TIER_PINNED : TWS_TIER_HOST;
  *state_tier = disk ? TWS_TIER_DISK : *tier;
  *early = axis == 0 || axis == 3;
  snprintf(text, size,
           "{\"train_micro_batch_size_per_gpu\":2,\"gradient_accumulation_steps\":%d,\"gradient_clipping\":%d,"
           "\"optimizer\":{\"type\":\"%s\",\"params\":{\"lr\":1e-3}},\"zero_optimization\":{\"stage\":%d,"
           "\"overlap_comm\":%s,\"reduce_bucket_size\":%d,\"sub_group_size\":%d,\"reduce_scatter\":%s,"
           "\"round_robin_gradients\":%s,\"stage3_param_persistence_threshold\":100,\"offload_optimizer\":{\"device\":"
           "\"%s\",\"pin_memory\":%s,\"pipeline_read\":%s,\"pipeline_write\":%s},\"offload_param\":{\"device\":\"%s\","
           "\"pin_memory\":%s,\"max_in_cpu\":%d,\"buffer_count\":%d,\"buffer_size\":%d}}%s%s,\"twinspeed\":{\"sequence_"
           "length\":16,\"delayed_update\":%s,\"linear_tile_size\":%d}}",
           steps, pick(seed, 9, 2), rule, stage, pick(seed, 10, 2) ? "true" : "false", 1 + pick(seed, 11, 60000),
           1 + pick(seed, 12, 60000), pick(seed, 13, 3) ? "true" : "false", pick(seed, 14, 2) ? "true" : "false",
           disk ? "nvme" : "cpu", pinned ? "true" : "false", pick(seed, 16, 2) ? "true" : "false",
           pick(seed, 17, 2) ? "true" : "false", param_device[parameters], pinned ? "true" : "false",
           in_cpu[parameters], pick(seed, 19, 6), 1 + pick(seed, 20, 9000), precision[kind], axes[axis].text,
           late ? "true" : "false", stage == 3 && pick(seed, 22, 2) ? 400 + pick(seed, 23, 9000) : 0);
  return replicas * axes[axis].ranks;
}

/* Returns 1 for buffers that receive updated weights: parameters, and weights collected for the disk. */
static int is_weights(const tws_buffer *buffer) {
  return buffer->category == TWS_CATEGORY_PARAMETER || strcmp(buffer->name, "weights for the disk") == 0;
}

/* Asserts that masters, states and updates are on the host only, that every updated element is copied back once, and
 * that gradients of stages 2 and 3 are not kept on the device for the optimizer phase. */
static void check_places(const tws_plan *p, tws_tier tier, tws_tier state_tier, int early, const char *text) {
  uint64_t back = 0, read = 0, written = 0, weights = 0, on_disk = 0,
           owned = p->buffers[p->optimizer_state[0]].elements, updated = 0;
  for (uint32_t i = 0; i < p->state->shard_count; i++)
    if (p->state->shards[i].owned_offset != TWS_NO_OFFSET) updated += p->state->shards[i].count;
  for (uint32_t b = 0; b < p->buffer_count; b++) {
    const tws_buffer *buffer = &p->buffers[b];
    const int host = buffer->category == TWS_CATEGORY_MASTER || buffer->category == TWS_CATEGORY_MOMENT;
    if (host && buffer->lifetime == TWS_LIFETIME_STATE)
      ck_assert_msg(buffer->tier == state_tier && buffer->elements == owned, "%s: %s", text, buffer->name);
    if (buffer->tier == TWS_TIER_DISK && buffer->category == TWS_CATEGORY_PARAMETER) on_disk += buffer->elements;
    if (buffer->category == TWS_CATEGORY_PARAMETER && p->zero.stage == 3)
      ck_assert_msg((buffer->tier == TWS_TIER_DEVICE) == (p->zero.offload_param == 0), "%s", text);
    if (buffer->tier == TWS_TIER_DEVICE && buffer->category == TWS_CATEGORY_GRADIENT)
      ck_assert_msg(p->zero.stage == 1 || !early, "%s: %s", text, buffer->name);
    ck_assert(buffer->tier == TWS_TIER_DEVICE || buffer->tier == tier || buffer->tier == state_tier ||
              buffer->category == TWS_CATEGORY_PARAMETER);
  }
  for (uint32_t i = 0; i < p->op_count; i++) {
    const tws_op *op = &p->ops[i];
    const tws_operand *o = &p->operands[op->operand_first];
    if (op->kind == TWS_OP_COPY && op->place != TWS_PLACE_DISK && is_weights(&p->buffers[o[1].buffer]))
      back += o[1].count;
    if (op->kind == TWS_OP_COMPUTE && op->phase == TWS_PHASE_STEP)
      for (int k = 1; k < op->operand_count; k++)
        if (is_weights(&p->buffers[o[k].buffer]) && op->place == TWS_PLACE_HOST &&
            p->works[op->work].code != TWS_KERNEL_FILL)
          back += o[k].count; /* updated in place, or in the buffer for the disk */
    if (op->place == TWS_PLACE_DISK) {
      const int reads = p->buffers[o[0].buffer].tier == TWS_TIER_DISK;
      const int states = p->buffers[o[!reads].buffer].category != TWS_CATEGORY_PARAMETER;
      if (states)
        *(reads ? &read : &written) += o[0].count;
      else if (!reads)
        weights += o[0].count;
      ck_assert(op->stream == TWS_STREAM_DISK && p->buffers[o[reads].buffer].tier == tier);
      for (int k = 0; k < 2; k++) /* offsets are multiples of a block, on the disk and in memory */
        ck_assert_msg((p->buffers[o[k].buffer].offset + o[k].offset * tws_dtype_bytes(p->buffers[o[k].buffer].dtype)) %
                              TWS_DISK_ALIGNMENT ==
                          0,
                      "%s: operation %u", text, i);
      ck_assert_uint_eq((uint64_t)p->works[op->work].d[0] % TWS_DISK_ALIGNMENT, 0);
    }
    if (op->kind == TWS_OP_COMPUTE && (o->buffer == p->master || op->stream == TWS_STREAM_HOST))
      ck_assert_msg(op->place == TWS_PLACE_HOST && op->stream == TWS_STREAM_HOST, "%s: operation %u", text, i);
    if (op->kind == TWS_OP_COLLECTIVE)
      for (int k = 0; k < op->operand_count; k++) ck_assert(p->buffers[o[k].buffer].tier == TWS_TIER_DEVICE);
  }
  const uint64_t moved = state_tier == TWS_TIER_DISK ? owned * (1 + (uint64_t)p->optimizer_states) : 0;
  ck_assert_msg(read == moved && written == moved, "%s: %llu and %llu of %llu elements go and come", text,
                (unsigned long long)written, (unsigned long long)read, (unsigned long long)moved);
  ck_assert_msg(weights == on_disk, "%s: %llu weights go to the disk of %llu", text, (unsigned long long)weights,
                (unsigned long long)on_disk);
  ck_assert_msg(back >= updated && back <= owned, "%s: %llu elements come back of %llu", text, (unsigned long long)back,
                (unsigned long long)owned);
}

START_TEST(random_jobs) {
  int stages[4] = {0};
  for (uint64_t seed = 1; seed <= (TWS_SANITIZED ? 40 : 160); seed++) {
    char text[2048];
    tws_tier tier, state_tier;
    int early;
    const int ranks = draw_job(seed, text, sizeof text, &tier, &state_tier, &early);
    job j = lower(seed & 1 ? "tiny-gpt2" : "tiny-llama", text, ranks);
    for (int r = 0; r < ranks; r++) {
      tws_ledger ledger;
      check_places(j.plans[r], tier, state_tier, early, text);
      ck_assert(tws_ledger_read(j.plans[r], &ledger, &err) == TWS_OK);
      for (int t = 0; t < TWS_TIER_COUNT; t++) {
        ck_assert_uint_eq(ledger.tier[t].arena_bytes, tws_plan_bytes(j.plans[r], (tws_tier)t));
        ck_assert_uint_ge(ledger.tier[t].arena_bytes, ledger.tier[t].live_bytes);
      }
      stages[j.plans[r]->zero.stage]++;
    }
    if (seed <= 8)
      job_seconds((const tws_plan *const *)j.plans, ranks); /* asserts that the simulator agrees with the longest
                                                             * path */
    release(&j);
  }
  for (int s = 1; s < 4; s++) ck_assert_int_gt(stages[s], 20);
}
END_TEST

/* With offload_optimizer.ratio the first sub-groups stay on the device: their states, gradients and updates are there,
 * and those of all others on the host, with states in its memory or on a disk. */
START_TEST(shares) {
  for (uint64_t seed = 1; seed <= (TWS_SANITIZED ? 12 : 40); seed++) {
    static const char *const axes[] = {"", ",\"tensor_parallel\":{\"autotp_size\":2}"};
    static const char *const parameters[] = {"none", "cpu", "nvme"};
    const int axis = pick(seed, 1, 4) == 0, ranks = (1 + pick(seed, 2, 3)) * (1 + axis), disk = pick(seed, 9, 3) == 0;
    const int percent = pick(seed, 3, 101), stored = pick(seed, 8, disk ? 2 : 3);
    char text[1024];
    snprintf(text, sizeof text,
             "{\"train_micro_batch_size_per_gpu\":2,\"gradient_accumulation_steps\":%d%s,\"optimizer\":{\"type\":"
             "\"AdamW\"},\"zero_optimization\":{\"stage\":3,\"reduce_bucket_size\":%d,\"sub_group_size\":%d,"
             "\"stage3_param_persistence_threshold\":100,\"offload_optimizer\":{\"device\":\"%s\",\"ratio\":%.2f},"
             "\"offload_param\":{\"device\":\"%s\",\"max_in_cpu\":9000}}%s,\"twinspeed\":{\"sequence_length\":16}}",
             1 + pick(seed, 4, 3), pick(seed, 5, 2) ? ",\"bf16\":{\"enabled\":true}" : "", 1 + pick(seed, 6, 60000),
             1 + pick(seed, 7, 30000), disk ? "nvme" : "cpu", percent * 0.01, parameters[stored], axes[axis]);
    job j = lower(seed & 1 ? "tiny-gpt2" : "tiny-llama", text, ranks);
    for (int r = 0; r < ranks; r++) {
      const tws_plan *p = j.plans[r];
      uint64_t updated[2] = {0, 0}, states[2] = {0, 0};
      for (uint32_t i = 0; i < p->op_count; i++) {
        const tws_op *op = &p->ops[i];
        const tws_operand *o = &p->operands[op->operand_first];
        const tws_buffer *first = op->operand_count ? &p->buffers[o->buffer] : NULL;
        if (op->kind != TWS_OP_COMPUTE || op->phase != TWS_PHASE_STEP || first->category != TWS_CATEGORY_MASTER)
          continue;
        const int host = op->place == TWS_PLACE_HOST;
        updated[host] += o->count;
        for (int k = 0; k < op->operand_count; k++) /* an update's operands are all on the device or all on the host,
                                                     * except for weights */
          ck_assert_msg((p->buffers[o[k].buffer].tier != TWS_TIER_DEVICE) == host, "%s: operation %u", text, i);
      }
      for (uint32_t e = 0; e < p->state->count; e++)
        if (p->state->entries[e].category == TWS_CATEGORY_MASTER)
          states[p->state->entries[e].tier != TWS_TIER_DEVICE] += p->state->entries[e].elements;
      const double all = (double)(updated[0] + updated[1]);
      const uint64_t padding = disk && updated[1] > 0 ? states[1] - updated[1] : 0; /* of the last block of the disk */
      if (percent > 0)
        ck_assert_msg(
            updated[0] == states[0] && updated[1] + padding == states[1] && padding < TWS_DISK_ALIGNMENT / 2, "%s",
            text);
      if (percent > 0) ck_assert_msg((double)updated[1] > percent * 0.01 * all - 0.5 * all, "%s", text);
      if (percent == 100) ck_assert_uint_eq(updated[0], 0);
      if (percent == 0) ck_assert_uint_eq(updated[1], 0);
      tws_ledger ledger;
      ck_assert(tws_ledger_read(p, &ledger, &err) == TWS_OK);
      for (int t = 0; t < TWS_TIER_COUNT; t++)
        ck_assert_uint_eq(ledger.tier[t].arena_bytes, tws_plan_bytes(p, (tws_tier)t));
    }
    release(&j);
  }
}
END_TEST

/* Activation checkpoints in the host's memory, partitioned among tensor-parallel ranks, or both: each is copied back
 * whole and once, the device needs less, and kernels and collectives use memory of the device only. */
START_TEST(checkpoints_elsewhere) {
  static const char *const axes[] = {"", ",\"tensor_parallel\":{\"autotp_size\":2}", ",\"pipeline\":{\"stages\":2}",
                                     ",\"sequence_parallel_size\":2"};
  for (uint64_t seed = 1; seed <= (TWS_SANITIZED ? 12 : 40); seed++) {
    const int axis = pick(seed, 1, 4), ranks = (1 + pick(seed, 2, 2)) * (axis ? 2 : 1);
    const int host = axis == 1 ? pick(seed, 3, 2) : 1, parts = axis == 1 && (!host || pick(seed, 4, 2));
    uint64_t device[2];
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
      char text[1024];
      snprintf(
          text, sizeof text,
          "{\"train_micro_batch_size_per_gpu\":4,\"gradient_accumulation_steps\":2,\"optimizer\":{\"type\":\"AdamW\"},"
          "\"zero_optimization\":{\"stage\":%d},\"activation_checkpointing\":{\"cpu_checkpointing\":%s,"
          "\"partition_activations\":%s}%s,\"twinspeed\":{\"sequence_length\":64,\"recompute\":\"full\","
          "\"tensor_sequence_parallel\":%s,\"pipeline_schedule\":\"%s\"}}",
          axis == 2 ? pick(seed, 5, 2) : pick(seed, 5, 4), host && elsewhere ? "true" : "false",
          parts && elsewhere ? "true" : "false", axes[axis],
          parts              ? "false"
          : pick(seed, 6, 2) ? "true"
                             : "false",
          pick(seed, 7, 2) ? "1f1b" : "gpipe");
      job j = lower(seed & 1 ? "tiny-gpt2" : "tiny-llama", text, ranks);
      const tws_plan *p = j.plans[0];
      uint64_t out = 0, in = 0;
      for (uint32_t i = 0; i < p->op_count; i++) {
        const tws_op *op = &p->ops[i];
        const tws_operand *o = &p->operands[op->operand_first];
        if (op->stream == TWS_STREAM_COPY_OUT) out += o->count;
        if (op->stream == TWS_STREAM_COPY_IN) in += o->count;
        for (int k = 0; k < op->operand_count && op->kind != TWS_OP_COPY; k++)
          ck_assert_msg(p->buffers[o[k].buffer].tier == TWS_TIER_DEVICE, "%s: operation %u", text, i);
      }
      ck_assert_msg(out == in && (out > 0) == (host && elsewhere), "%s: %llu out, %llu in", text,
                    (unsigned long long)out, (unsigned long long)in);
      device[elsewhere] = tws_plan_bytes(p, TWS_TIER_DEVICE);
      release(&j);
    }
    ck_assert_uint_le(device[1], device[0] + device[0] / 20); /* the checkpoints of two layers may be on the device at
                                                               * once */
  }
}
END_TEST

/* Only two of 24 layers have their checkpoints on the device. */
START_TEST(deep_checkpoints) {
  static const char text[] =
      "{\"train_micro_batch_size_per_gpu\":4,\"gradient_accumulation_steps\":1,\"bf16\":{\"enabled\":true},"
      "\"optimizer\":{\"type\":\"AdamW\"},\"activation_checkpointing\":{\"cpu_checkpointing\":%s},"
      "\"twinspeed\":{\"sequence_length\":1024,\"recompute\":\"full\"}}";
  const uint64_t checkpoint = UINT64_C(4) * 1024 * 1024 * 2;
  uint64_t device[2], host[2];
  for (int away = 0; away < 2; away++) {
    char job_text[512];
    snprintf(job_text, sizeof job_text, text, away ? "true" : "false");
    job j = lower("gpt2-medium", job_text, 1);
    device[away] = tws_plan_bytes(j.plans[0], TWS_TIER_DEVICE);
    host[away] = tws_plan_bytes(j.plans[0], TWS_TIER_PINNED);
    release(&j);
  }
  ck_assert_uint_ge(device[0] - device[1], 21 * checkpoint);
  ck_assert(host[0] == 0 && host[1] >= 23 * checkpoint && host[1] <= 26 * checkpoint);
}
END_TEST

/* A plan waits only where DeepSpeed does or where memory requires it. The copies of a single rank to the host have
 * buffers of their own, so that the next micro-batch computes meanwhile; several ranks wait for them, as their two
 * buckets are double-buffered. Checkpoints and the working buffers of the optimizer phase share the host's memory.
 * Without a bucket, at stage 0, gradients are reduced on the stream that computes. */
START_TEST(no_needless_waits) {
  static const char text[] =
      "{\"train_micro_batch_size_per_gpu\":4,\"gradient_accumulation_steps\":3,\"bf16\":{\"enabled\":true},"
      "\"optimizer\":{\"type\":\"AdamW\"},\"activation_checkpointing\":{\"cpu_checkpointing\":%s},"
      "\"zero_optimization\":{\"stage\":%d,\"overlap_comm\":true,\"reduce_bucket_size\":30000000,"
      "\"offload_optimizer\":{\"device\":\"%s\"}},\"twinspeed\":{\"sequence_length\":1024,\"recompute\":\"full\"}}";
  static const struct {
    int ranks, stage;
    const char *away, *optimizer;
  } cases[] = {{1, 2, "false", "cpu"}, {2, 2, "false", "cpu"}, {2, 2, "true", "cpu"}, {2, 0, "false", "none"}};
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    char job_text[640];
    snprintf(job_text, sizeof job_text, text, cases[k].away, cases[k].stage, cases[k].optimizer);
    job j = lower("gpt2", job_text, cases[k].ranks);
    const tws_plan *p = j.plans[0];
    uint32_t on_reduce = 0, between = 0, micro_batch = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
      const tws_op *op = &p->ops[i];
      on_reduce += op->stream == TWS_STREAM_REDUCE;
      if (op->stream != TWS_STREAM_COMPUTE || op->phase == TWS_PHASE_STEP || op->micro_batch == micro_batch) continue;
      micro_batch = op->micro_batch; /* the micro-batch's first operation on the compute stream */
      for (uint32_t d = 0; d < op->dep_count; d++)
        between += p->ops[p->deps[op->dep_first + d]].stream == TWS_STREAM_COPY_OUT;
    }
    ck_assert_uint_eq(between, k == 1 || k == 2 ? 2 : 0);
    ck_assert_int_eq(on_reduce > 0, k == 1 || k == 2);
    tws_ledger ledger;
    ck_assert(tws_ledger_read(p, &ledger, &err) == TWS_OK);
    ck_assert_uint_le(ledger.tier[TWS_TIER_PINNED].gaps,
                      ledger.tier[TWS_TIER_PINNED].live_bytes / 20); /* the layout stops searching when gaps are below 5
                                                                      * % */
    release(&j);
  }
}
END_TEST

/* ---- costs ---- */

static double seconds_with(const tws_cluster *cluster, const job *j) {
  double step_s = 0;
  const tws_machine machine = {cluster, job_machine()->profile};
  ck_assert(tws_job_path((const tws_plan *const *)j->plans, j->ranks, &machine, NULL, &step_s, &err) == TWS_OK);
  return step_s;
}

#define LARGE(more)                                                                                      \
  "{\"train_micro_batch_size_per_gpu\":1,\"gradient_accumulation_steps\":1,\"bf16\":{\"enabled\":true}," \
  "\"optimizer\":{\"type\":\"AdamW\"},\"zero_optimization\":{\"stage\":2,\"overlap_comm\":true,"         \
  "\"reduce_bucket_size\":5000000,\"sub_group_size\":10000000" more "},\"twinspeed\":{\"sequence_length\":1024}}"

/* The costs of transfers: gradients are copied out during the backward pass, and weights are copied in while others are
 * updated. */
START_TEST(costs) {
  job with = lower("gpt2-medium", LARGE(",\"offload_optimizer\":{\"device\":\"cpu\"}"), 2);
  job pageable = lower("gpt2-medium", LARGE(",\"offload_optimizer\":{\"device\":\"cpu\",\"pin_memory\":false}"), 2);
  job without = lower("gpt2-medium", LARGE(""), 2);
  tws_cluster cluster = *job_machine()->cluster, slow = cluster, shared = cluster;
  const double step = seconds_with(&cluster, &with);
  const double updated = (double)with.plans[0]->buffers[with.plans[0]->optimizer_state[0]].elements;
  const double host = 2 * updated * 30 / cluster.host_bandwidth; /* two ranks; 28 bytes per updated element, and 2 for
                                                                  * the norm */
  ck_assert_double_gt(step, seconds_with(&cluster, &without));
  ck_assert_double_gt(step, host);
  job alone = lower("gpt2-medium", LARGE(",\"offload_optimizer\":{\"device\":\"cpu\"}"), 1);
  double serial = 0;
  for (uint32_t i = 0; i < alone.plans[0]->op_count; i++)
    serial += tws_plan_work_seconds(alone.plans[0], alone.plans[0]->ops[i].work, job_machine(), 0);
  /* more than a third of the copies in both directions is hidden */
  ck_assert_double_lt(seconds_with(&cluster, &alone), serial - 3 * updated / cluster.host_link.bandwidth);
  release(&alone);
  ck_assert_double_gt(seconds_with(&cluster, &pageable), step);
  slow.host_bandwidth /= 2;
  ck_assert_double_eq_tol(seconds_with(&slow, &with) - step, host, 0.15 * host);
  shared.host_link.bandwidth /= 40; /* a link so slow that it limits the step; two devices share it */
  const double narrow = seconds_with(&shared, &with);
  shared.devices_per_host_link = 4;
  ck_assert_double_gt(seconds_with(&shared, &with), narrow + 3 * updated / shared.host_link.bandwidth);
  /* with updates one step late the host overlaps the device: the step takes the longer of the two, and the copies at
   * its end */
  job late =
      lower("gpt2-medium",
            "{\"train_micro_batch_size_per_gpu\":8,\"gradient_accumulation_steps\":4,\"bf16\":{\"enabled\":true},"
            "\"optimizer\":{\"type\":\"AdamW\"},\"zero_optimization\":{\"stage\":2,\"overlap_comm\":true,"
            "\"offload_optimizer\":{\"device\":\"cpu\"}},\"twinspeed\":{\"sequence_length\":1024,"
            "\"delayed_update\":true}}",
            2);
  job prompt =
      lower("gpt2-medium",
            "{\"train_micro_batch_size_per_gpu\":8,\"gradient_accumulation_steps\":4,\"bf16\":{\"enabled\":true},"
            "\"optimizer\":{\"type\":\"AdamW\"},\"zero_optimization\":{\"stage\":2,\"overlap_comm\":true,"
            "\"offload_optimizer\":{\"device\":\"cpu\"}},\"twinspeed\":{\"sequence_length\":1024}}",
            2);
  const double usual = seconds_with(&cluster, &prompt), beside = seconds_with(&cluster, &late);
  const double update = 2 * updated * 28 / cluster.host_bandwidth;
  printf("late updates: %.4f s a step, %.4f in time, %.4f s of updates\n", beside, usual, update);
  ck_assert_double_lt(beside, usual - 0.8 * update);
  ck_assert_double_eq_tol(job_seconds((const tws_plan *const *)late.plans, 2), beside, 1e-9 * beside);
  release(&late);
  release(&prompt);
  release(&with);
  release(&pageable);
  release(&without);
}
END_TEST

/* A node's memory in two NUMA nodes: both ranks are on the first, and do not use the second one's bandwidth. Eight
 * ranks use the bandwidth of both. */
START_TEST(numa_costs) {
  job two = lower("gpt2-medium", LARGE(",\"offload_optimizer\":{\"device\":\"cpu\"}"), 2);
  tws_cluster cluster = *job_machine()->cluster;
  tws_node_mapping mapping = tws_node_mapping_of(&cluster, 0, 2);
  const int devices = cluster.devices_per_node;
  const double usual = seconds_with(&cluster, &two);
  cluster.numa_nodes = 2;
  ck_assert_int_eq(tws_mapping_most_on_numa(&mapping, &cluster), devices >= 4 ? 2 : 1);
  ck_assert_int_eq(tws_mapping_numa(&mapping, &cluster, 1), devices >= 4 ? 0 : 1);
  const double near = seconds_with(&cluster, &two);
  cluster.numa_nodes = 1;
  if (devices >= 4) cluster.host_bandwidth /= 2;
  ck_assert_double_eq(near, seconds_with(&cluster, &two));
  ck_assert(devices < 4 || near > usual);
  cluster.numa_nodes = 2;
  mapping = tws_node_mapping_of(&cluster, 0, devices);
  ck_assert_int_eq(tws_mapping_most_on_numa(&mapping, &cluster), (devices + 1) / 2);
  ck_assert_int_eq(tws_mapping_numa(&mapping, &cluster, devices - 1), devices > 1);
  release(&two);
}
END_TEST

/* ---- shares of cores ---- */

static tws_cpus cpus(uint64_t word) {
  return (tws_cpus){.word = {word}};
}

/* The processors that each rank may use, on a machine with two NUMA nodes of four cores with two threads: processors 0
 * to 7 and 8 to 15. */
START_TEST(shares_of_cores) {
  static const char machine[] = "numa:2 core:4 pu:2";
  static const struct {
    uint64_t allowed;
    int index, count, threads, bound;
    uint64_t first, last; /* processors of the rank's first thread and of its last */
  } rows[] =
      {
          {0xffff, 0, 2, 4, 1, 0x00ff, 0x00ff}, {0xffff, 1, 2, 4, 1, 0xff00, 0xff00},
          {0xffff, 0, 1, 8, 1, 0x00ff, 0xff00}, {0xffff, 3, 8, 1, 1, 0x00c0, 0x00c0},
          {0xffff, 1, 3, 3, 1, 0x00f0, 0x0300},                             /* cores 2 to 4, over both NUMA nodes */
          {0x020c, 0, 2, 1, 1, 0x000c, 0x000c},                             /* a container's processors: 2, 3 and 9 */
          {0x020c, 1, 2, 1, 1, 0x0200, 0x0200}, {0x020c, 0, 3, 1, 0, 0, 0}, /* more ranks than cores */
          {0x020c, 1, 2, 2, 0, 0, 0},                                       /* more threads than processors */
          {0x0001, 0, 1, 1, 1, 1, 1},
      };
  tws_machine_parts parts;
  tws_cpus own;
  if (tws_cpus_allowed(&own, &err) == TWS_UNSUPPORTED) return; /* built without hwloc */
  ck_assert(tws_machine_count_parts(machine, NULL, &parts, &err) == TWS_OK && parts.cores == 8 &&
            parts.numa_nodes == 2);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const tws_cpus allowed = cpus(rows[i].allowed);
    tws_cpus each[8];
    int bound;
    ck_assert(tws_cpus_share(machine, &allowed, rows[i].index, rows[i].count, rows[i].threads, each, &bound, &err) ==
              TWS_OK);
    ck_assert_int_eq(bound, rows[i].bound);
    if (!bound) continue;
    ck_assert_msg(each[0].word[0] == rows[i].first, "row %d: %llx", (int)i, (unsigned long long)each[0].word[0]);
    ck_assert_msg(each[rows[i].threads - 1].word[0] == rows[i].last, "row %d: %llx", (int)i,
                  (unsigned long long)each[rows[i].threads - 1].word[0]);
  }
  const tws_cpus some = cpus(0x000c);
  ck_assert(tws_machine_count_parts(machine, &some, &parts, &err) == TWS_OK && parts.cores == 1 &&
            parts.numa_nodes == 1);
  ck_assert(parts.second_cache_bytes == 0 && parts.last_cache_bytes == 0); /* the notation above names no caches */
  ck_assert(tws_machine_count_parts("numa:2 l3:2(size=33554432) l2:4(size=524288) core:1 pu:2", NULL, &parts, &err) ==
            TWS_OK);
  ck_assert(parts.second_cache_bytes == 512u << 10 && parts.last_cache_bytes == 32u << 20);
}
END_TEST

/* ---- NUMA nodes ---- */

static void write_in(const char *folder, const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = '\0';
    mkdir(path, 0700);
    *at = '/';
  }
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fputs(text, file);
  fclose(file);
}

/* A folder in place of /sys that describes a machine of three NUMA nodes, of which one has memory alone, and of three
 * devices: one at each of the other nodes, and one of which Linux does not know the node. */
START_TEST(nodes_of_a_described_machine) {
  char sysfs[] = "/tmp/tws-sysfs-XXXXXX", command[64];
  const tws_cpus all = cpus(UINT64_MAX), some = cpus(0x0f00);
  tws_numa_nodes nodes;
  ck_assert_ptr_nonnull(mkdtemp(sysfs));
  write_in(sysfs, "devices/system/node/online", "0,2-3\n");
  write_in(sysfs, "devices/system/node/node0/cpulist", "0-3,8-11\n");
  write_in(sysfs, "devices/system/node/node2/cpulist", "4-7,12\n");
  write_in(sysfs, "devices/system/node/node3/cpulist", "\n");
  write_in(sysfs, "bus/pci/devices/0000:3b:00.0/numa_node", "0\n");
  write_in(sysfs, "bus/pci/devices/0000:d8:00.0/numa_node", "2\n");
  write_in(sysfs, "bus/pci/devices/0000:01:00.0/numa_node", "-1\n");
  tws_numa_read(sysfs, &all, &nodes);
  ck_assert(nodes.count == 2 && nodes.number[0] == 0 && nodes.number[1] == 2);
  ck_assert(nodes.cpus[0].word[0] == 0x0f0f && nodes.cpus[1].word[0] == 0x10f0);
  ck_assert_int_eq(tws_numa_index(&nodes, tws_numa_of_device(sysfs, "0000:3b:00.0")), 0);
  ck_assert_int_eq(tws_numa_index(&nodes, tws_numa_of_device(sysfs, "0000:d8:00.0")), 1);
  ck_assert_int_eq(tws_numa_of_device(sysfs, "0000:01:00.0"), -1);
  ck_assert_int_eq(tws_numa_of_device(sysfs, "0000:02:00.0"), -1);
  tws_numa_read(sysfs, &some, &nodes); /* a container has processors of the first node alone */
  ck_assert(nodes.count == 1 && nodes.number[0] == 0 && nodes.cpus[0].word[0] == 0x0f00);
  write_in(sysfs, "devices/system/node/online", "three\n");
  tws_numa_read(sysfs, &all, &nodes);
  ck_assert_int_eq(nodes.count, 0);
  snprintf(command, sizeof command, "rm -rf %s", sysfs);
  ck_assert_int_eq(system(command), 0);
}
END_TEST

/* A thread that is bound to one processor runs there, and afterwards wherever it did before. */
START_TEST(a_thread_is_bound_and_released) {
  tws_cpus allowed, first = {0}, now;
  tws_thread_place *before;
  int memory, cpu = 0;
  if (tws_cpus_allowed(&allowed, &err) == TWS_UNSUPPORTED) return; /* built without hwloc */
  while (!(allowed.word[cpu / 64] >> cpu % 64 & 1)) cpu++;
  first.word[cpu / 64] = UINT64_C(1) << cpu % 64;
  ck_assert_int_eq(tws_thread_bind(&first, 0, &before, &memory, &err), TWS_OK);
  if (!before) return; /* the system binds no threads */
  ck_assert_int_eq(sched_getcpu(), cpu);
  tws_thread_back(before);
  ck_assert_int_eq(tws_cpus_allowed(&now, &err), TWS_OK);
  ck_assert_mem_eq(&now, &allowed, sizeof now);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("offload");
  TCase *tests = tcase_create("offload");
  tcase_add_test(tests, random_jobs);
  tcase_add_test(tests, shares);
  tcase_add_test(tests, checkpoints_elsewhere);
  tcase_add_test(tests, deep_checkpoints);
  tcase_add_test(tests, no_needless_waits);
  tcase_add_test(tests, costs);
  tcase_add_test(tests, numa_costs);
  tcase_add_test(tests, shares_of_cores);
  tcase_add_test(tests, nodes_of_a_described_machine);
  tcase_add_test(tests, a_thread_is_bound_and_released);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
