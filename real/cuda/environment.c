/* Switches of the CUDA module in environment variables. */
#include <stdlib.h>
#include <string.h>

#include "real/cuda/internal.h"

int tws_cuda_env_is_set(const char *variable) {
  const char *value = getenv(variable);
  return value && *value && strcmp(value, "0") != 0;
}
