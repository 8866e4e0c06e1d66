#include "config/optimizer.h"

#include <stdio.h>
#include <string.h>

#include "config/keys.h"

#define STATE(name, title, content) title,
#define STATES(...) __VA_ARGS__
#define UPDATE_RULE(id, name, summary, n, parameters, flops, states) \
  enum { id##_IS_BY_TENSOR = 0, id##_IS_FACTORED = 0 };              \
  static const char *const states_of_##id[] = {states NULL};
#define TENSOR_UPDATE_RULE(id, name, summary, n, parameters, flops, states) \
  enum { id##_IS_BY_TENSOR = 1, id##_IS_FACTORED = 0 };                     \
  static const char *const states_of_##id[] = {states NULL};
#define FACTORED_RULE(id)                               \
  enum { id##_IS_BY_TENSOR = 0, id##_IS_FACTORED = 1 }; \
  static const char *const states_of_##id[] = {NULL};
#include "config/optimizers.def"

#define TAKES(...) .takes = __VA_ARGS__
#define BETAS(first, second) .beta1 = first, .beta2 = second, .epsilon = 1e-8
#define EPSILON(value) .epsilon = value
#define MOMENTUM(value) .momentum = value, .epsilon = 1e-8
#define MATRICES(first, second, epsilon_, momentum_) \
  .beta1 = first, .beta2 = second, .epsilon = epsilon_, .momentum = momentum_, .matrices = 1
#define DECOUPLED .decoupled = 1
#define WITHOUT_ZERO .without_zero = 1
#define ADAPTED_SCALE .adapted_scale = 1
#define EIGHT_BITS .eight_bits = 1
#define PAGED .paged = 1
#define PHASES(kind) .phases = TWS_PHASES_##kind
#define TRAITS(...) __VA_ARGS__

static const tws_optimizer_row rows[] = {
#define OPTIMIZER(id, type_, aliases_, rule_, defaults_, takes_, traits_) \
  {.optimizer = TWS_OPTIMIZER_##id,                                       \
   .type = type_,                                                         \
   .aliases = aliases_,                                                   \
   .rule = TWS_UPDATE_##rule_,                                            \
   .state = states_of_##rule_,                                            \
   .states = sizeof states_of_##rule_ / sizeof *states_of_##rule_ - 1,    \
   .by_tensor = rule_##_IS_BY_TENSOR,                                     \
   .factored = rule_##_IS_FACTORED,                                       \
   defaults_,                                                             \
   takes_,                                                                \
   traits_},
#include "config/optimizers.def"
#define ABSENT_OPTIMIZER(type_, takes_, traits_) {.optimizer = -1, .type = type_, .aliases = "", takes_, traits_},
#include "config/optimizers.def"
};
enum { ROWS = sizeof rows / sizeof *rows };

const tws_optimizer_row *tws_optimizer_of(tws_optimizer optimizer) {
  return (unsigned)optimizer < TWS_OPTIMIZER_COUNT ? &rows[optimizer] : NULL;
}

const tws_optimizer_row *tws_optimizer_find(const char *type) {
  for (int i = 0; i < ROWS; i++)
    if (tws_key_word(rows[i].type, type, 1) == 0 || tws_key_word(rows[i].aliases, type, 1) >= 0) return &rows[i];
  return NULL;
}

int tws_optimizer_has_argument(const tws_optimizer_row *row, const char *argument) {
  return tws_key_word("lr|weight_decay", argument, 0) >= 0 || tws_key_word(row->takes, argument, 0) >= 0;
}

void tws_optimizer_types_with_argument(const char *argument, char *text, size_t size) {
  size_t length = 0;
  text[0] = 0;
  for (int i = 0; i < ROWS; i++)
    if (tws_optimizer_has_argument(&rows[i], argument) && length < size)
      length += (size_t)snprintf(text + length, size - length, "%s%s", length ? "|" : "", rows[i].type);
}

void tws_optimizer_list(char *text, size_t size) {
  size_t length = 0;
  text[0] = 0;
  for (int i = 0; i < TWS_OPTIMIZER_COUNT && length < size; i++) {
    const char *between = i == 0 ? "" : i == TWS_OPTIMIZER_COUNT - 1 ? " or " : ", ";
    length += (size_t)snprintf(text + length, size - length, "%s%s", between, rows[i].type);
  }
}
