#include "config/aio.h"

#include "config/store.h"

int tws_config_uses_gds(const tws_config *config) {
  return config->store && tws_given_true(tws_store_at(config->store, "aio.use_gds"));
}
