/* Waits between streams in plans that offload. When all waits of any one kind are removed, the verifier finds an
 * operation that reads data not yet written, or overwrites data still to be read. An engine on a GPU makes these waits
 * from events between the device's streams, the copies, the host's cores and the disk. */
#include "suite.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

static tws_error err;

#define START                                                                                                  \
  "{\"train_micro_batch_size_per_gpu\":1,\"gradient_accumulation_steps\":2,\"gradient_clipping\":1,\"bf16\":{" \
  "\"enabled\":"                                                                                               \
  "true},\"zero_optimization\":{\"reduce_bucket_size\":20000,\"sub_group_size\":15000,"
#define DISK(more) "{\"device\":\"nvme\",\"nvme_path\":\"/tmp\"" more "}"
static const char *const jobs[] = {
    START "\"stage\":2,\"overlap_comm\":true,\"offload_optimizer\":{\"device\":\"cpu\"}}}",
    START
    "\"stage\":3,\"offload_optimizer\":{\"device\":\"cpu\"},\"offload_param\":{\"device\":\"cpu\"}},"
    "\"twinspeed\":{\"delayed_update\":true}}",
    START "\"stage\":3,\"offload_optimizer\":" DISK(
        ",\"pipeline_read\":true,\"pipeline_write\":true") ",\"offload_param\":" DISK(",\"max_in_cpu\":9000,"
                                                                                      "\"buffer_count\":3,\"buffer_"
                                                                                      "size\":5000") "}}",
    START
    "\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\"},\"zenflow\":{\"topk_ratio\":0.2,\"update_interval\":2,"
    "\"overlap_step\":true}}}",
    START
    "\"stage\":1,\"offload_optimizer\":{\"device\":\"cpu\"}},\"activation_checkpointing\":{\"cpu_checkpointing\":"
    "true},\"twinspeed\":{\"recompute\":\"full\"}}"};
enum { JOBS = sizeof jobs / sizeof *jobs };

/* A kind of wait: an operation of stream `later` waits for one of stream `earlier`. */
static const struct {
  const char *what;
  tws_stream earlier, later;
} kinds[] = {
    {"gradients are computed before they are copied out", TWS_STREAM_COMPUTE, TWS_STREAM_COPY_OUT},
    {"gradients are reduced before they are copied out", TWS_STREAM_REDUCE, TWS_STREAM_COPY_OUT},
    {"gradients arrive before the host adds them", TWS_STREAM_COPY_OUT, TWS_STREAM_HOST},
    {"the host has added gradients before others arrive in their place", TWS_STREAM_HOST, TWS_STREAM_COPY_OUT},
    {"weights are updated before they are copied in", TWS_STREAM_HOST, TWS_STREAM_COPY_IN},
    {"updated weights are copied in before others are written in their place", TWS_STREAM_COPY_IN, TWS_STREAM_HOST},
    {"what is copied in has arrived before the device reads it", TWS_STREAM_COPY_IN, TWS_STREAM_COMPUTE},
    {"the device has read what is copied over", TWS_STREAM_COMPUTE, TWS_STREAM_COPY_IN},
    {"parameters are copied in before they are gathered", TWS_STREAM_COPY_IN, TWS_STREAM_GATHER},
    {"states are read from the disk before they are updated", TWS_STREAM_DISK, TWS_STREAM_HOST},
    {"states are updated before they are written to the disk", TWS_STREAM_HOST, TWS_STREAM_DISK},
    {"parameters are read from the disk before they are copied in", TWS_STREAM_DISK, TWS_STREAM_COPY_IN},
    {"parameters are copied in before others are read in their place", TWS_STREAM_COPY_IN, TWS_STREAM_DISK},
    {"what was copied out may be overwritten", TWS_STREAM_COPY_OUT, TWS_STREAM_COMPUTE}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static tws_config *config_of(const char *text, const tws_network *network) {
  tws_json *json;
  tws_config *config;
  ck_assert_msg(tws_json_parse(text, strlen(text), "job", &json, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_config_from_json(json, &config, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  config->sequence_length = 32;
  ck_assert_msg(tws_config_resolve(config, 2, &(tws_auto_context){network->hidden}, &err) == TWS_OK, "%s: %s", text,
                err.message);
  return config;
}

/* Removes from an operation the waits for operations of a stream; returns their number. */
static int drop(tws_plan *plan, tws_op *op, tws_stream earlier) {
  int dropped = 0;
  for (uint32_t k = 0; k < op->dep_count;) {
    uint32_t *dep = &plan->deps[op->dep_first + k];
    if (plan->ops[*dep].stream != earlier) {
      k++;
      continue;
    }
    *dep = plan->deps[op->dep_first + --op->dep_count];
    dropped++;
  }
  return dropped;
}

/* Builds the program without the waits of a kind. Returns 1 if the verifier finds an error, 0 if it finds none, -1 if
 * the program has no such waits. */
static int without(const tws_plan_request *request, int kind) {
  tws_plan *plan;
  int dropped = 0;
  ck_assert_msg(tws_plan_build(request, &plan, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_plan_verify(plan, &err) == TWS_OK, "%s", err.message);
  for (uint32_t i = 0; i < plan->op_count; i++)
    if (plan->ops[i].stream == kinds[kind].later) dropped += drop(plan, &plan->ops[i], kinds[kind].earlier);
  const int noticed = dropped == 0 ? -1 : tws_plan_verify(plan, &err) != TWS_OK;
  tws_plan_destroy(plan);
  return noticed;
}

START_TEST(every_kind_of_wait_is_needed) {
  int found[KINDS] = {0}, noticed[KINDS] = {0};
  tws_network *network;
  ck_assert(tws_network_load("tiny-llama", 1, &network, &err) == TWS_OK);
  for (int j = 0; j < JOBS; j++) {
    tws_config *config = config_of(jobs[j], network);
    tws_plan_request request = {.network = network, .config = config, .backend = TWS_BACKEND_CUDA, .threads = 1};
    ck_assert(tws_plan_topology(config, 2, &request.topology, &err) == TWS_OK);
    for (int program = 0; program < TWS_PROGRAM_COUNT; program++) {
      request.program = (tws_program)program;
      if (program == TWS_PROGRAM_EVALUATE || !tws_plan_has_program(config, request.program)) continue;
      for (int kind = 0; kind < KINDS; kind++) {
        const int result = without(&request, kind);
        found[kind] += result >= 0;
        noticed[kind] += result > 0;
      }
    }
    tws_config_destroy(config);
  }
  for (int kind = 0; kind < KINDS; kind++)
    printf("%s: %d of %d programs\n", kinds[kind].what, noticed[kind], found[kind]);
  for (int kind = 0; kind < KINDS; kind++)
    ck_assert_msg(found[kind] > 0 && noticed[kind] == found[kind], "%s: only %d of %d programs need the wait",
                  kinds[kind].what, noticed[kind], found[kind]);
  tws_network_destroy(network);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("offload_waits");
  TCase *tests = tcase_create("waits");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, every_kind_of_wait_is_needed);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
