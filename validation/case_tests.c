/* Megatron-LM's functional tests in measured runs: what their published configurations say (its repository,
 * tests/functional_tests/test_cases/gpt and tests/test_utils/recipes) and rows leave out. */
#include <string.h>

#include "validation/case_fields.h"

static int is_test(const cJSON *row) {
  return strstr(tws_case_text(row, "hardware", "framework"), "Megatron-LM/Core CI") != NULL;
}

/* The small models, 12 layers 512 wide, of which most tests are. */
static int is_small(const cJSON *row) {
  const char *name = tws_case_text(row, "model", "name");
  static const char *const begins[] = {"gpt3_mcore", "gpt3_moe_mcore", "gpt3_weekly_mcore"};
  for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
    if (is_test(row) && strncmp(name, begins[i], strlen(begins[i])) == 0) return 1;
  return 0;
}

int tws_case_is_small_test(const cJSON *row) {
  return is_small(row) && tws_case_number(row, "model", "hidden") == 512;
}

/* BERT large with the loss of sentences, on one node. */
int tws_case_is_bert_test(const cJSON *row) {
  return is_test(row) && strncmp(tws_case_text(row, "model", "name"), "bert_mcore", 10) == 0;
}

/* Steps of 0.1 s are the host's: deterministic kernels of models that no GPU notices. */
int tws_case_times_a_host(const cJSON *row) {
  return is_small(row);
}

static int is_named(const cJSON *row, const char *word) {
  return strstr(tws_case_text(row, "model", "name"), word) != NULL;
}

double tws_case_vocabulary(const cJSON *row) {
  const double stated = tws_case_number(row, "model", "vocab");
  if (stated > 0) return stated;
  return is_small(row) ? 50257 : tws_case_is_bert_test(row) ? 30522 : 0; /* GPT-2's byte pairs, BERT's word pieces */
}

double tws_case_gpus(const cJSON *row) {
  const double stated = tws_case_number(row, "hardware", "n_gpus");
  if (stated > 0 || is_named(row, "_1node")) return stated;
  return is_small(row) || tws_case_is_bert_test(row) ? 8 : 0; /* nodes: 1, gpus: 8 */
}

/* Megatron's default of 0.1, which its tests leave and its release runs do not. */
int tws_case_drops(const cJSON *row) {
  return is_test(row) && !is_named(row, "release");
}

/* Of layers of Transformer Engine's ("te"), those that resume a checkpoint or fuse the loss say nothing of attention;
 * the others ask for unfused scores, which Megatron's own layers have. */
int tws_case_keeps_scores(const cJSON *row) {
  if (tws_case_is_bert_test(row)) return 1;
  return is_small(row) && (!is_named(row, "_te_") || (!is_named(row, "resume") && !is_named(row, "loss_fusion")));
}

/* Megatron's --expert-tensor-parallel-size is that of dense layers where nothing else is said. */
int tws_case_divides_experts(const cJSON *row) {
  const double tensor = tws_case_number(row, "parallel", "tp"),
               stated = tws_case_number(row, "all_args", "expert-tensor-parallel-size");
  return tws_case_is_small_test(row) && tensor > 1 && (!(stated > 0) || stated == tensor);
}

const char *tws_case_test_lacks(const cJSON *row) {
  static const struct {
    const char *word, *reason;
  } known[] = {{"loss_fusion", "a loss that is fused otherwise than ours"},
               {"_mla", "the sizes of latent attention are not stated"},
               {"_gdn", "neither a GPT nor a Llama"},
               {"_dsa", "neither a GPT nor a Llama"},
               {"_zp_z3", "Megatron's own FSDP"},
               {"_fsdp2_", "PyTorch's FSDP under Megatron"},
               {"dist_optimizer_instances", "sharding inside a part of the replicas"},
               {"modelopt_distill", "distillation"},
               {"dist_muon", "an optimizer that is shared out otherwise than ours"},
               {"defer_embedding", "gradients of the embedding that wait"}};
  for (size_t i = 0; is_small(row) && i < sizeof known / sizeof *known; i++)
    if (is_named(row, known[i].word)) return known[i].reason;
  if (tws_case_has_experts(row) && tws_case_is_small_test(row) && tws_case_number(row, "parallel", "tp") > 1 &&
      !tws_case_divides_experts(row))
    return "experts divided among other tensor ranks than dense layers";
  return NULL;
}
