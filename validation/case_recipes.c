/* torchtune's table of Llama 3.1 and its table of flags (README.md of September and November 2024): its repository's
 * recipes of these days (recipes/configs/llama3_1 and llama3_2) and the command below the second table say what rows do
 * not: ranks and targets of adapters, 8 chunks of the loss, AdamW with moments in the parameters' 16 bits, no dropout,
 * no clipping. */
#include <string.h>

#include "validation/case_fields.h"

#define INNER "\"gate_proj\",\"up_proj\",\"down_proj\""
static const tws_case_recipe recipes[] = {
    {"8B", "lora", 8, "[\"q_proj\",\"v_proj\"]", 0, 1, 0, 0},
    {"8B", "qlora", 8, "[\"q_proj\",\"k_proj\",\"v_proj\",\"o_proj\"," INNER "]", 1, 1, 0, 0},
    {"70B", "lora", 16, "[\"q_proj\",\"k_proj\",\"v_proj\"]", 0, 1, 0, 0},
    {"3B", "+chunked CE", 0, NULL, 0, 0, 0, 1},
    {"3B", "+act ckpt", 0, NULL, 0, 1, 0, 1},
    {"3B", "lora", 64, "[\"q_proj\",\"v_proj\",\"o_proj\"," INNER "]", 0, 1, 1, 1},
    {"3B", "qlora", 64, "[\"q_proj\",\"v_proj\",\"o_proj\"," INNER "]", 1, 1, 1, 1},
};

int tws_case_is_torchtune(const cJSON *row) {
  return strstr(tws_case_text(row, "hardware", "framework"), "torchtune") != NULL;
}

static const char *method_of(const cJSON *row) {
  const char *flags = tws_case_text(row, "parallel", "flags");
  return *flags ? flags : tws_case_text(row, "parallel", "peft");
}

const tws_case_recipe *tws_case_recipe_of(const cJSON *row) {
  if (!tws_case_is_torchtune(row)) return NULL;
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
    if (strstr(tws_case_text(row, "model", "name"), recipes[i].model) && strcmp(method_of(row), recipes[i].method) == 0)
      return &recipes[i];
  return NULL;
}

const char *tws_case_recipe_lacks(const cJSON *row) {
  static const struct {
    const char *method, *why;
  } reasons[] = {{"baseline", "the lengths of the samples are not stated"},
                 {"+compile", "torchtune's loss of all logits at once"},
                 {"+opt in bwd", "an optimizer inside backward"},
                 {"+act offload", "an optimizer inside backward"},
                 {"full", "torchtune's paged optimizer, or its parameters on the host"}};
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
    if (strcmp(method_of(row), reasons[i].method) == 0) return reasons[i].why;
  return "a recipe of torchtune that is not known";
}
