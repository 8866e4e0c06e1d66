#include "real/fault.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/number.h"

tws_code tws_fault_parse(const char *text, int rank, tws_fault *fault, tws_error *err) {
  static const char *const kinds[] = {"none", "kill", "hang", "slow", "nan", "hold", "allocate"};
  *fault = (tws_fault){.kind = TWS_FAULT_NONE};
  if (!text || !*text) return TWS_OK;
  int who = -1;
  int64_t step = 1;
  const char *at = text;
  if (strncmp(at, "rank=", 5) == 0 && tws_text_int(at + 5, &at, 0, INT32_MAX, &who) && strncmp(at, ",step=", 6) == 0 &&
      tws_text_integer(at + 6, &at, 0, INT32_MAX, &step) && strncmp(at, ",kind=", 6) == 0)
    for (int k = 1; k < (int)(sizeof kinds / sizeof *kinds); k++)
      if (strcmp(at + 6, kinds[k]) == 0) {
        if (who == rank) *fault = (tws_fault){.kind = (tws_fault_kind)k, .step = step};
        return TWS_OK;
      }
  return tws_fail(err, TWS_USAGE,
                  "for example rank=1,step=3,kind=kill; kinds are kill, hang, slow, nan, hold and allocate",
                  "TWINSPEED_FAULT is \"%.80s\"", text);
}

void tws_fault_strike(tws_fault_kind kind) {
  if (kind == TWS_FAULT_KILL) raise(SIGKILL);
  if (kind == TWS_FAULT_SLOW) usleep(100000);
  while (kind == TWS_FAULT_HANG) pause();
}
