/* ctest: sampled */
/* Attention in chunks with keys and values in host memory (twinspeed.attention_chunks): what it saves on a device, what
 * the host has for it, and what is refused. Trainings with it are in the suites train_divisions and emulated_offload. */
#include <check.h>

#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/sample.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

/* Estimates a job of long sequences in chunks of attention. Writes the bytes of one rank's arenas. */
static void estimate(int chunks, double *device, double *host) {
  tws_error err = {0};
  tws_json *json;
  command_result r = twinspeed(
      "estimate --json -m llama-3-8b --cluster dgx-a100 -n 4 --sp 4 --stage 3 --recompute full --micro-batch 1 "
      "--seq 524288 --set twinspeed.mlp_tiles=64 --set twinspeed.loss_tiles=64 "
      "--set activation_checkpointing.cpu_checkpointing=true --set zero_optimization.offload_optimizer.device=cpu "
      "--set twinspeed.attention_chunks=%d",
      chunks);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert(tws_json_parse(r.out, strlen(r.out), "estimate", &json, &err) == TWS_OK);
  const cJSON *memory = member(json->root, "memory");
  *device = number(member(memory, "device"), "arena_bytes");
  *host = number(member(memory, "pinned host"), "arena_bytes");
  tws_json_destroy(json);
  command_free(&r);
}

/* The host has the keys and values, attention's output with its sums of one layer, and the gradients of keys and
 * values: a quarter of the heads for all tokens. The device needs a quarter less at least. */
START_TEST(memory_is_saved) {
  const double tokens = 524288, keys = 2 * 2 * 128 * 2, output = 8 * 128 * 2, sums = 8 * 4;
  double device[2], host[2];
  estimate(1, &device[0], &host[0]);
  estimate(8, &device[1], &host[1]);
  ck_assert_double_eq(host[1] - host[0], tokens * (2 * keys + output + sums));
  ck_assert_msg(device[1] < 0.75 * device[0], "%.3g bytes with chunks, %.3g without", device[1], device[0]);
}
END_TEST

/* Returns 1 if llama-3-8b with a sequence of `tokens` tokens fits four GPUs of a DGX A100 and their host. ZeRO-3,
 * full recomputation, the optimizer and activation checkpoints on the host. */
static int fits(const char *runtime, int tokens, const char *flags) {
  command_result r = twinspeed(
      "estimate -m llama-3-8b --cluster dgx-a100 -n 4 --sp 4 --stage 3 --recompute full --micro-batch 1 --seq %d "
      "--set activation_checkpointing.cpu_checkpointing=true --set zero_optimization.offload_optimizer.device=cpu "
      "--runtime %s %s",
      tokens, runtime, flags);
  ck_assert_msg(r.status == 0 || r.status == 1, "%s %d: %s", runtime, tokens, r.err);
  ck_assert_msg(!strstr(r.out, "Missing "), "%s %d: %s", runtime, tokens, r.out);
  const int both = r.status == 0;
  command_free(&r);
  return both;
}

/* FPDT's authors state that four A100s train an 8B model with 2,097,152 tokens, 16 times as many as Ulysses without
 * chunks (Yao et al. 2024; blogs/ulysses-offload of DeepSpeed). Their software is Megatron-DeepSpeed: of a sequence in
 * c chunks of 65,536 tokens a rank computes MLPs in 2 c and the loss in 32 c tiles (megatron/model/transformer.py and
 * gpt_model.py of 4efb479). Without chunks its float32 logits of all tokens fill the device. This program's own engine
 * fuses the loss, so that without chunks and tiles a sequence of 786,432 tokens fits, and with all of them one of
 * 4,194,304. */
START_TEST(longest_sequences) {
  enum { CHUNK = 65536, LONG = 2097152 };
  char chunked[2][160];
  for (int i = 0; i < 2; i++) {
    const int chunks = (1 + i) * LONG / CHUNK;
    snprintf(chunked[i], sizeof chunked[i],
             "--set twinspeed.attention_chunks=%d --set twinspeed.mlp_tiles=%d --set twinspeed.loss_tiles=%d", chunks,
             2 * chunks, 32 * chunks);
  }
  const struct {
    const char *runtime, *flags;
    int tokens, fits;
  } cases[] = {{"megatron-deepspeed", chunked[0], LONG, 1},
               {"megatron-deepspeed", "", LONG / 16, 1},
               {"megatron-deepspeed", "", LONG / 8, 0},
               {"twinspeed", chunked[1], 2 * LONG, 1},
               {"twinspeed", "", 786432, 1},
               {"twinspeed", "", LONG / 2, 0}};
  for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (!TWS_SANITIZED || takes(i, 6)) /* they run the same code */
      ck_assert_msg(fits(cases[i].runtime, cases[i].tokens, cases[i].flags) == cases[i].fits, "%s: %d tokens %s",
                    cases[i].runtime, cases[i].tokens, cases[i].fits ? "do not fit" : "fit");
}
END_TEST

START_TEST(refusals) {
  write_text(in_folder("bloom.json"),
             "{\"model_type\":\"bloom\",\"vocab_size\":96,\"hidden_size\":32,\"n_layer\":2,\"n_head\":4}");
  const struct {
    const char *model, *flags, *says;
    int status;
  } cases[] = {
      {"tiny-llama", "-n 2 --sp 2 --sequence-algorithm ring", "to \"ulysses\"", 3},
      {"tiny-llama", "-n 2 --pp 2", "pipeline stages", 3},
      {"tiny-llama", "-n 2 --tp 2 --sequence-parallel", "tokens that tensor-parallel ranks divide", 3},
      {"tiny-llama", "--set twinspeed.attention_chunks=7", "use a sequence of 70 tokens", 3},
      {"tiny-llama", "--set twinspeed.lora.r=2 --set twinspeed.lora.target_modules=all-linear",
       "needs a layer directly before it", 3},
      {in_folder("bloom.json"), "", "linear biases", 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r =
        twinspeed("estimate -m %s --seq 64 --micro-batch 1 --cluster dgx-a100 --set twinspeed.attention_chunks=4 %s",
                  cases[i].model, cases[i].flags);
    assert_one_error(&r, cases[i].status, cases[i].flags);
    ck_assert_msg(strstr(r.err, cases[i].says) != NULL, "%s: no \"%s\" in %s", cases[i].flags, cases[i].says, r.err);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("attention_chunks");
  TCase *tests = tcase_create("attention_chunks");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, memory_is_saved);
  tcase_add_test(tests, longest_sequences);
  tcase_add_test(tests, refusals);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
