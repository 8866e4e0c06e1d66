/* Adds the modules of latent attention (models/latent.h). */
#include "models/network/build.h"

uint32_t tws_build_part(tws_network_builder *b, int layer, const char *name, uint32_t x, int64_t blocks, int64_t kept) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_PART, layer, name);
  const tws_value like = b->net->values[x];
  tws_module *m = &b->net->modules[module];
  m->in[0] = x;
  m->heads = (int32_t)blocks;
  m->in_features = like.per_row / blocks;
  m->out_features = blocks * kept;
  return tws_build_value(b, module, 0, "y", like.row, like.row_dims, blocks * kept, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_latent(tws_network_builder *b, int layer, const char *name, uint32_t q, uint32_t compressed,
                          uint32_t kv, const tws_latent *latent) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_LATENT, layer, name);
  const tws_value like = b->net->values[q];
  tws_latent *copy = tws_arena_alloc(b->net->arena, 1, sizeof *copy);
  tws_module *m = &b->net->modules[module];
  b->failed |= copy == NULL;
  if (copy != NULL) *copy = *latent;
  m->latent = copy;
  m->in[0] = q;
  m->in[1] = compressed;
  m->in[2] = kv;
  m->heads = (int32_t)b->net->heads;
  m->out_features = 3 * b->net->heads * (latent->nope + latent->rope);
  return tws_build_value(b, module, 0, "qkv", like.row, like.row_dims, m->out_features, TWS_VALUE_ACTIVATION);
}
