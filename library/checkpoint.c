/* Saved checkpoints through the library. */
#include <stdio.h>
#include <string.h>

#include "checkpoint/folder.h"
#include "checkpoint/inspect.h"
#include "library/status.h"
#include "library/twinspeed.h"

struct twinspeed_checkpoint {
  char path[TWS_FOLDER_SIZE];
  tws_arena *arena;
  tws_saved_index *index;
  tws_saved_reader reader;
  tws_saved_tensor *tensors;
  uint32_t count;
};

static tws_code open_checkpoint(const char *folder, const char *tag, twinspeed_checkpoint *c, tws_error *why) {
  c->arena = tws_arena_create();
  if (!c->arena) return tws_fail(why, TWS_MEMORY, NULL, "no memory for a checkpoint");
  TWS_TRY(tws_folder_find(folder, tag, c->path, sizeof c->path, why));
  TWS_TRY(tws_saved_open(c->path, &c->index, why));
  TWS_TRY(tws_saved_reader_open(c->index, &c->reader, why));
  return tws_saved_tensors(c->index, c->arena, &c->tensors, &c->count, why);
}

twinspeed_status twinspeed_checkpoint_open(const char *folder, const char *tag, twinspeed_checkpoint **out,
                                           twinspeed_error *error) {
  tws_error why = {0};
  twinspeed_checkpoint *c = tws_calloc(1, sizeof *c);
  *out = NULL;
  const tws_code code =
      c ? open_checkpoint(folder, tag, c, &why) : tws_fail(&why, TWS_MEMORY, NULL, "no memory for a checkpoint");
  if (code == TWS_OK)
    *out = c;
  else
    twinspeed_checkpoint_close(c);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

void twinspeed_checkpoint_close(twinspeed_checkpoint *c) {
  if (!c) return;
  if (c->reader.index) tws_saved_reader_close(&c->reader);
  tws_saved_close(c->index);
  tws_arena_destroy(c->arena);
  tws_free(c);
}

void twinspeed_checkpoint_describe(const twinspeed_checkpoint *c, twinspeed_checkpoint_facts *facts) {
  const tws_saved_index *x = c->index;
  *facts = (twinspeed_checkpoint_facts){.steps = x->counters.steps,
                                        .skipped = x->counters.skipped,
                                        .samples = x->samples,
                                        .ranks = x->ranks,
                                        .train_batch = x->train_batch,
                                        .sequence_length = x->sequence_length,
                                        .zero_stage = (int)x->zero_stage,
                                        .tensors = (int)c->count};
  snprintf(facts->path, sizeof facts->path, "%s", c->path);
  snprintf(facts->architecture, sizeof facts->architecture, "%s", x->architecture);
  snprintf(facts->dtype, sizeof facts->dtype, "%s", x->dtype);
}

const char *twinspeed_checkpoint_client_state(const twinspeed_checkpoint *c) {
  return c->index->client_state;
}

int twinspeed_checkpoint_tensor(const twinspeed_checkpoint *c, int index, twinspeed_tensor *out) {
  if (index < 0 || (uint32_t)index >= c->count) return 0;
  const tws_saved_tensor *t = &c->tensors[index];
  const tws_param *param = &c->index->params[t->param];
  const tws_saved_entry *entry = &c->index->entries[t->entry];
  *out = (twinspeed_tensor){.rows = param->rows * t->copies, .columns = param->columns, .elements = t->elements};
  snprintf(out->name, sizeof out->name, "%s", param->name);
  snprintf(out->state, sizeof out->state, "%s", entry->name);
  snprintf(out->dtype, sizeof out->dtype, "%s", tws_dtype_name((tws_dtype)entry->dtype));
  return 1;
}

twinspeed_status twinspeed_checkpoint_read(twinspeed_checkpoint *c, int index, uint64_t first, uint64_t count,
                                           float *values, twinspeed_error *error) {
  tws_error why = {0};
  tws_code code = TWS_OK;
  if (index < 0 || (uint32_t)index >= c->count)
    code = tws_fail(&why, TWS_USAGE, NULL, "there is no tensor %d: the checkpoint has %u", index, c->count);
  else if (first > c->tensors[index].elements || count > c->tensors[index].elements - first)
    code =
        tws_fail(&why, TWS_USAGE, NULL, "the tensor has %llu elements", (unsigned long long)c->tensors[index].elements);
  else
    code = tws_saved_tensor_read(&c->reader, &c->tensors[index], first, count, values, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}
