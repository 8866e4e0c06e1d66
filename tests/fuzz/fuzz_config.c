/* ds_config.json: any bytes give one error, or a configuration that resolves to one error or to consistent numbers, and
 * whose print-out reads back as the same configuration. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/ds_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 8 };

static void require(int condition) {
  if (!condition) abort();
}

static int resolves(tws_config *config) {
  tws_error err = {0};
  tws_code code = tws_config_resolve(config, RANKS, &(tws_auto_context){.hidden_size = 64}, &err);
  require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0]));
  return code == TWS_OK;
}

static void check_numbers(const tws_config *c) {
  int64_t model = 1, replicas = 0;
  const int64_t axes[] = {c->pipeline_stages, c->tensor_ranks, c->sequence_ranks};
  for (int i = 0; i < 3; i++) model *= axes[i] > 1 ? axes[i] : 1;
  require(RANKS % model == 0 && tws_config_replicas(c, RANKS, &replicas, NULL) == TWS_OK && replicas == RANKS / model);
  require(tws_config_vocabulary_multiple(c) % c->vocabulary_multiple == 0 && c->attention_chunks >= 1);
  require(c->tensor_chunks >= 1 && c->loss_tiles >= 1 && c->mlp_tiles >= 1 && c->ignored_token >= -1);
  char order[TWS_AXIS_ORDER_TEXT];
  tws_axis_order again;
  require(tws_axis_order_parse(tws_axis_order_text(&c->axis_order, order), &again));
  require(c->train_batch_size == c->micro_batch_size * c->accumulation_steps * replicas && c->train_batch_size > 0);
  require(c->zero.stage >= 0 && c->zero.stage <= 3 && (c->zero.overlap_comm == 0 || c->zero.overlap_comm == 1));
  require(c->zero.reduce_bucket_size > 0 && c->zero.prefetch_bucket_size >= 0 && c->zero.sub_group_size >= 0);
  require(!tws_config_bf16_masters(c) || (c->zero.stage > 0 && c->accumulation_dtype == TWS_BF16));
  require(!c->bf16_moments || c->bf16_masters);
  require(c->gradient_clipping >= 0 && c->vocabulary_multiple >= 1 && c->threads >= 0 && c->ranks >= 0);
  static const int64_t steps[] = {0, 1, 2, 7, 1000, 1000000};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    double lr = tws_config_lr(c, steps[i]), beta1, beta2;
    tws_config_betas(c, steps[i], &beta1, &beta2);
    require(isfinite(lr) && isfinite(beta1) && isfinite(beta2));
  }
}

static void check_print(const tws_config *config, int all_keys) {
  tws_text text = {0};
  tws_json *json = NULL;
  tws_config *again = NULL;
  require(tws_config_print(config, all_keys, &text, NULL) == TWS_OK);
  require(tws_json_parse(text.data, text.length, "printed", &json, NULL) == TWS_OK);
  require(tws_config_from_json(json, &again, NULL) == TWS_OK);
  require(resolves(again));
  require(memcmp(config, again, offsetof(tws_config, store)) == 0);
  tws_config_destroy(again);
  tws_json_destroy(json);
  tws_text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tws_json *json = NULL;
  tws_config *config = NULL, *copy = NULL;
  tws_error err = {0};
  tws_text text = {0};
  int count;
  tws_code code = tws_json_parse_hjson((const char *)data, size, "fuzz", &json, &err);
  require(code == TWS_OK || (code == TWS_INVALID && !json && err.message[0]));
  if (code != TWS_OK) return 0;
  code = tws_config_from_json(json, &config, &err);
  tws_json_destroy(json);
  require(code == TWS_OK || (code == TWS_INVALID && !config && err.message[0]));
  if (code != TWS_OK) return 0;
  require(tws_config_no_effect(config, &text, &count, NULL) == TWS_OK);
  tws_text_free(&text);
  require(tws_config_clone(config, &copy, NULL) == TWS_OK);
  if (resolves(config)) {
    check_numbers(config);
    check_print(config, 0);
    check_print(config, 1);
    require(resolves(config)); /* again, to the same */
  }
  require(tws_config_set(copy, "zero_optimization.stage", "1", NULL) == TWS_OK && copy->zero.stage == 1);
  tws_config_destroy(copy);
  tws_config_destroy(config);
  return 0;
}
