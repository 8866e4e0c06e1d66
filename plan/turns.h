/* Networks that are trained alternately (tws_network.turns). Internal to plan/. */
#ifndef TWS_PLAN_TURNS_H
#define TWS_PLAN_TURNS_H

#include "plan/lower.h"

/* Fails with TWS_UNSUPPORTED if the configuration has what networks that are trained alternately do not go with. Called
 * when the position of this rank is known. */
tws_code tws_turns_check(const tws_lower *l, tws_error *err);
/* Returns the number of turns of a step. */
static inline int tws_turns(const tws_lower *l) {
  return l->network->turns > 1 ? (int)l->network->turns : 1;
}
/* Returns 1 if the backward pass of a module computes the gradient of its parameter. */
static inline int tws_trains(const tws_lower *l, const tws_module *m, uint32_t param) {
  return !m->held && !tws_is_frozen(l, param);
}
/* Returns 1 if the turn that is being lowered updates the parameters of a ZeRO class. */
static inline int tws_zero_has_turn(const tws_lower *l, const tws_zero_class *c) {
  return c->turn == l->pipeline.turn;
}

#endif
