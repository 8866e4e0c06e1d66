#include "launch/cores.h"
#include <ctype.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include "base/number.h"

static const char list_hint[] = "a list is: 0-3,8,10-11";

static void own_cores(tws_cores *out) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  for (size_t i = 0; i < TWS_MAX_CORES; i++)
    if (CPU_ISSET(i, &set)) out->core[out->count++] = (short)i;
}

tws_code tws_cores_parse(const char *text, tws_cores *out, tws_error *err) {
  *out = (tws_cores){0};
  if (!text) {
    own_cores(out);
    return TWS_OK;
  }
  for (const char *at = text;; at++) {
    int first = 0, last = 0;
    int good = isdigit((unsigned char)*at) && tws_text_int(at, &at, 0, TWS_MAX_CORES - 1, &first);
    last = first;
    if (good && *at == '-')
      good = isdigit((unsigned char)at[1]) && tws_text_int(at + 1, &at, first, TWS_MAX_CORES - 1, &last);
    if (!good || (*at && *at != ','))
      return tws_fail(err, TWS_USAGE, list_hint, "--bind-core-list: \"%.100s\" is not a list of cores below %d", text,
                      TWS_MAX_CORES);
    if (out->count && first <= out->core[out->count - 1])
      return tws_fail(err, TWS_USAGE, list_hint, "--bind-core-list: core %d of \"%.100s\" does not follow core %d",
                      first, text, out->core[out->count - 1]);
    for (int i = first; i <= last; i++) out->core[out->count++] = (short)i;
    if (!*at) return TWS_OK;
  }
}

tws_code tws_cores_of_rank(const tws_cores *all, int rank, int ranks, tws_cores *out, tws_error *err) {
  const int each = ranks > 0 ? all->count / ranks : 0;
  *out = (tws_cores){0};
  if (each < 1)
    return tws_fail(err, TWS_INVALID, "name more cores with --bind-core-list, or use fewer ranks",
                    "--bind-cores-to-rank: %d cores for the %d ranks of a node", all->count, ranks);
  out->count = each;
  memcpy(out->core, all->core + rank * each, (size_t)each * sizeof *out->core);
  return TWS_OK;
}

tws_code tws_cores_bind(const tws_cores *cores, tws_error *err) {
  cpu_set_t set, got;
  CPU_ZERO(&set);
  for (int i = 0; i < cores->count; i++) CPU_SET((size_t)cores->core[i], &set);
  /* The kernel ignores cores that the machine does not have, so the result is read back and compared. */
  if (sched_setaffinity(0, sizeof set, &set) == 0 && sched_getaffinity(0, sizeof got, &got) == 0 &&
      CPU_EQUAL(&set, &got))
    return TWS_OK;
  return tws_fail(err, TWS_ENVIRONMENT, "`taskset -p $$` prints the cores that a process may use",
                  "cannot bind to cores %d to %d: this machine does not have them all", cores->core[0],
                  cores->core[cores->count - 1]);
}
