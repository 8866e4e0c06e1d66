/* Optimizers with states of 8 bits: memory of their states in plans, and what the Trainer's words for them mean.
 * Kernels are tested in test_kernels.c, trainings in test_train_stages.c and test_checkpoint_shapes.c. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "members.h"
#include "plan/plan.h"
#include "tests/folder.h"
#include "tests/suite.h"

static tws_error err;

static tws_config config_of(int stage) {
  tws_config *base, c;
  ck_assert(tws_config_default(&base, &err) == TWS_OK);
  c = *base;
  tws_config_destroy(base);
  c.store = NULL;
  c.zero.stage = stage;
  c.micro_batch_size = 2;
  c.accumulation_steps = 1;
  c.sequence_length = 16;
  c.optimizer = TWS_OPTIMIZER_ADAMW_8BIT;
  return c;
}

static tws_plan *build(const tws_network *network, const tws_config *config, int ranks, int rank) {
  tws_plan_request request = {
      .network = network, .config = config, .rank = rank, .backend = TWS_BACKEND_HOST, .threads = 1};
  tws_plan *plan = NULL;
  ck_assert(tws_plan_topology(config, ranks, &request.topology, &err) == TWS_OK);
  ck_assert_msg(tws_plan_build(&request, &plan, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_plan_verify(plan, &err) == TWS_OK, "%s", err.message);
  return plan;
}

/* States of 8 bits: of large tensors two codes an element and two float32 scales a block of 256, of the others 8 bytes;
 * blocks begin where parameters and partitions do. */
START_TEST(bytes_of_eight_bit_states) {
  tws_network *network = NULL;
  ck_assert_msg(tws_network_load("tiny-gpt2", 1, &network, &err) == TWS_OK, "%s", err.message);
  uint64_t large = 0, small = 0;
  for (uint32_t p = 0; p < network->param_count; p++) {
    const uint64_t n = (uint64_t)tws_param_numel(&network->params[p]);
    *(n >= 4096 && n % 256 == 0 ? &large : &small) += n;
  }
  ck_assert(large > 50000 && small > 1000);
  for (int stage = 0; stage <= 3; stage++)
    for (int ranks = 1; ranks <= 4; ranks++) {
      uint64_t moments = 0, scales = 0;
      for (int r = 0; r < ranks; r++) {
        const tws_config c = config_of(stage);
        tws_plan *plan = build(network, &c, ranks, r);
        for (uint32_t b = 0; b < plan->buffer_count; b++)
          moments += plan->buffers[b].category == TWS_CATEGORY_MOMENT ? plan->buffers[b].bytes : 0;
        const uint32_t entry = tws_state_find(plan->state, "scales of second moments");
        scales += plan->state->entries[entry].elements;
        for (uint32_t i = 0; i < plan->state->shard_count; i++) {
          const tws_shard *s = &plan->state->shards[i];
          if (s->owned_offset == TWS_NO_OFFSET || s->owned_offset >= 256 * plan->state->entries[entry].elements)
            continue;
          ck_assert(s->owned_offset % 256 == 0 && s->param_first % 256 == 0 && s->count % 256 == 0);
        }
        tws_plan_destroy(plan);
      }
      const uint64_t copies = stage == 0 ? (uint64_t)ranks : 1,
                     exact = copies * (large * 2 + large / 256 * 8 + small * 8);
      /* partitions are padded: that of large tensors by less than a block for each rank and, at stage 3, tensor */
      const uint64_t padding = (uint64_t)ranks * (stage == 3 ? network->param_count : 2) * (256 * 2 + 8 + 16);
      ck_assert_uint_ge(scales, copies * large / 256);
      ck_assert_msg(moments >= exact && moments <= exact + (stage > 0 ? padding : 0),
                    "stage %d, %d ranks: %d bytes of %d", stage, ranks, (int)moments, (int)exact);
    }
  tws_network_destroy(network);
}
END_TEST

/* The Trainer's `optim`, which axolotl calls `optimizer`, sets the optimizer, and embeddings keep float32 states; a
 * word that this program has no optimizer for is named as not read. */
START_TEST(words_of_the_trainer) {
  static const struct {
    const char *key, *word, *type; /* type NULL: not read; "": read, and nothing is set */
  } cases[] = {{"optim", "adamw_bnb_8bit", "AdamW8bit"},
               {"optim", "paged_adamw_8bit", "PagedAdamW8bit"},
               {"optim", "adamw_torch_fused", ""},
               {"optim", "sgd", "SGD"},
               {"optim", "galore_adamw", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[400], known[64];
    snprintf(text, sizeof text,
             "{\"per_device_train_batch_size\": 2, \"bf16\": true, \"adam_epsilon\": 1e-7, \"%s\": \"%s\"}",
             cases[i].key, cases[i].word);
    write_text(in_folder("arguments.json"), text);
    command_result r = twinspeed("check -m tiny-gpt2 -c %s --seq 16 -n 1", in_folder("arguments.json"));
    ck_assert_msg(r.status == 0, "%s: %s", cases[i].word, r.err);
    ck_assert_int_eq(strstr(r.err, "these keys are not read: optim") != NULL, cases[i].type == NULL);
    snprintf(known, sizeof known, "\"type\": \"%s\"", cases[i].type && *cases[i].type ? cases[i].type : "AdamW");
    ck_assert_msg(strstr(r.out, known) != NULL, "%s: %s", cases[i].word, r.out);
    ck_assert_int_eq(strstr(r.out, "\"embeddings\"") != NULL, strstr(cases[i].word, "8bit") != NULL);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("eight_bit");
  TCase *tests = tcase_create("eight_bit");
  tcase_add_test(tests, bytes_of_eight_bit_states);
  tcase_add_test(tests, words_of_the_trainer);
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_set_timeout(tests, 60);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
