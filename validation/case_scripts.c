/* What rows of measured runs leave out and the scripts say that their sources publish beside them. */
#include <string.h>

#include "validation/case_fields.h"

/* BigScience's runs of ZeRO-3 under Megatron 1.1.5 (its repository, experiments/gpt2-meg-ds-zero): every script of the
 * folder has --partition-activations and, but where experiments/gpt2.md says that it was taken out,
 * --checkpoint-in-cpu. */
int tws_case_partitions_checkpoints(const cJSON *row) {
  return strstr(tws_case_text(row, "source", "title"), "BigScience GPT2 experiments on Jean Zay") &&
         strstr(tws_case_text(row, "hardware", "framework"), "Megatron") &&
         tws_case_number(row, "parallel", "zero_stage") == 3;
}

int tws_case_offloads_checkpoints(const cJSON *row) {
  const char *stated = tws_case_text(row, "parallel", "partition_activations_cpu");
  const char *place = tws_case_text(row, "source", "locator");
  const int taken_out = strstr(place, "line 432 ") || strstr(place, "line 433 "); /* "removed --checkpoint-in-cpu" */
  return tws_case_partitions_checkpoints(row) && *stated != 'N' && !taken_out;
}
