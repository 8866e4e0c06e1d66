/* Members of a measured run's row; private to validation/. section NULL: the row itself. */
#ifndef TWS_VALIDATION_CASE_FIELDS_H
#define TWS_VALIDATION_CASE_FIELDS_H

#include <cjson/cJSON.h>

#include "base/memory.h"

const cJSON *tws_case_member(const cJSON *row, const char *section, const char *key); /* NULL: absent or null */
double tws_case_number(const cJSON *row, const char *section, const char *key);       /* 0: absent, or above 1e15 */
int tws_case_int(const cJSON *row, const char *section, const char *key);             /* 0: the same, or above 1e9 */
const char *tws_case_text(const cJSON *row, const char *section, const char *key);    /* "": absent */
int tws_case_flag(const cJSON *row, const char *section, const char *key);

/* case_experts.c: whether a row is of a model of experts, and of one whose sizes are known; its config.json. */
int tws_case_has_experts(const cJSON *row);
int tws_case_knows_experts(const cJSON *row);
int tws_case_is_gpt_with_experts(const cJSON *row);
const char *tws_case_experts_runtime(const cJSON *row); /* of Megatron-Bridge's releases of 2026 */
int tws_case_issues_in_turns(const cJSON *row);         /* tws_profile_issue_in_turns() */
int tws_case_recomputes_experts(const cJSON *row);      /* norms and activations, which its recipes have */
void tws_case_write_experts(const cJSON *row, tws_text *text);

/* case_tests.c: what rows of Megatron-LM's functional tests leave out; of other rows what is stated, 0 where nothing.
 */
double tws_case_vocabulary(const cJSON *row);
double tws_case_gpus(const cJSON *row);
int tws_case_times_a_host(const cJSON *row); /* what was timed is no GPU */
int tws_case_is_bert_test(const cJSON *row);
int tws_case_is_small_test(const cJSON *row);      /* of Megatron's, 512 wide */
int tws_case_divides_experts(const cJSON *row);    /* such a test's tensor ranks divide experts, too */
int tws_case_drops(const cJSON *row);              /* layers drop what they hand on */
int tws_case_keeps_scores(const cJSON *row);       /* attention is not fused */
const char *tws_case_test_lacks(const cJSON *row); /* why a test cannot be planned; NULL */

/* case_recipes.c: torchtune's recipes, as the rows of its README were measured with them. */
typedef struct tws_case_recipe {
  const char *model, *method;          /* the row's: words of the model's name, "peft" or "flags" */
  int rank;                            /* of adapters; 0: all is trained */
  const char *targets;                 /* a JSON list */
  int quantizes, recomputes, offloads; /* frozen weights, layers, their inputs */
  int tied;                            /* the head is the embedding */
} tws_case_recipe;
int tws_case_is_torchtune(const cJSON *row);
const tws_case_recipe *tws_case_recipe_of(const cJSON *row); /* NULL: none, or one that is not planned */
const char *tws_case_recipe_lacks(const cJSON *row);         /* why */

/* case_scripts.c: what rows leave out and the scripts say that their source publishes. */
int tws_case_partitions_checkpoints(const cJSON *row); /* inputs of recomputed layers, over tensor ranks */
int tws_case_offloads_checkpoints(const cJSON *row);   /* to the host */
int tws_case_watches_first_node(const cJSON *row);     /* whose memory the row has */
int tws_case_reads_reserved(const cJSON *row);         /* what was read is what the allocator holds */
int tws_case_one_layer_chunks(const cJSON *row);       /* of a pipeline, embedding and head in chunks of their own */
int tws_case_is_rebased(const cJSON *row);             /* onto Megatron-LM of 2023 */
int tws_case_encoder(const cJSON *row);                /* an encoder whose task is known */
void tws_case_write_encoder(const cJSON *row, tws_text *text);

#endif
