/* Checks that all calls of an engine share, and the choice of a batch. */
#include "real/engine_internal.h"

/* ---- agreement of the ranks ---- */

tws_code tws_engine_ready(const tws_engine *e, tws_error *err) {
  if (!e->failed && (e->next > 0 || e->micro > 0))
    return tws_fail(err, TWS_USAGE, "call forward(), backward() and step() for its other micro-batches first",
                    "a step in parts has begun");
  if (!e->failed) return TWS_OK;
  return tws_fail(err, TWS_USAGE, "load a checkpoint, or close the engine",
                  "an earlier step of this engine failed, and its state is not that of a whole step");
}

tws_code tws_engine_together(tws_engine *e, tws_code code, const char *what, tws_error *err) {
  double failed = code != TWS_OK;
  const tws_code met = tws_comm_max(e->t.comm, &failed, code == TWS_OK ? err : NULL);
  if (code != TWS_OK) return code;
  TWS_TRY(met);
  return failed > 0 ? tws_fail(err, TWS_RANK, "its error says why", "another rank failed in %s", what) : TWS_OK;
}

/* ---- batches ---- */

tws_code tws_engine_choose_batch(tws_engine *e, const tws_engine_batch *batch, const char *path, tws_error *err) {
  e->t.batch = NULL;
  if (batch && !e->memory.row)
    return tws_fail(err, TWS_UNSUPPORTED, "name a file of them when the engine is opened, and give no batch",
                    "%s is trained on pictures or labelled texts, and a batch in memory has tokens alone",
                    e->options.plan.network->name);
  if (batch && !batch->tokens) return tws_fail(err, TWS_USAGE, NULL, "the batch has no tokens");
  if (batch && batch->targets && e->options.plan.network->objective != TWS_OBJECTIVE_NEXT_TOKEN)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out the targets: the engine makes them from the tokens",
                    "%s does not predict the next token, and takes no targets", e->options.plan.network->name);
  if (!batch && (!path || !*path))
    return tws_fail(err, TWS_USAGE, "give a batch, or name a file when the engine is opened",
                    "there is no batch, and the engine has no data");
  if (!batch) return TWS_OK;
  TWS_TRY(tws_data_set_batch(&e->memory, batch->tokens, batch->targets, err));
  e->t.batch = &e->memory;
  return TWS_OK;
}
