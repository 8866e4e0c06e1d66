/* Constants are fitted to half of the published runs; the other half is reported. */
#include <stdint.h>
#include <string.h>

#include "base/sha256.h"
#include "validation/cases.h"

int tws_case_is_for_fitting(const char *id) {
  uint8_t digest[32];
  tws_sha256(id, strlen(id), digest);
  return digest[0] % 2 == 0;
}
