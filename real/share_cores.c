/* Divides the cores of a node among its ranks (twinspeed.bind_threads). */
#include <string.h>
#include <unistd.h>
#include "base/memory.h"
#include "real/host/bind.h"
#include "real/train_internal.h"

typedef struct presence {
  char host[64];
  tws_cpus cpus;
} presence;

/* Determines this rank's index among the ranks that may use the same cores of the same node, and their number. */
static tws_code find_place(tws_training *t, const presence *mine, int *index, int *count, tws_error *err) {
  void *data = NULL;
  unsigned char *all = NULL;
  uint64_t *offset = NULL, bytes = 0;
  *index = *count = 0;
  TWS_TRY(tws_comm_gather(t->comm, mine, sizeof *mine, &all, &offset, err));
  if (t->rank == 0) {
    data = all;
    bytes = offset[t->world];
  }
  const tws_code code = tws_mpi_broadcast(t->mpi, &data, &bytes, err);
  for (int r = 0; code == TWS_OK && r < t->world; r++) {
    if (memcmp((const presence *)data + r, mine, sizeof *mine) != 0) continue;
    *index += r < t->rank;
    ++*count;
  }
  if (t->rank != 0) tws_free(data);
  tws_free(all);
  tws_free(offset);
  return code;
}

tws_code tws_share_cores(tws_training *t, tws_error *err) {
  presence mine;
  tws_machine_parts parts;
  int index, count, bound, near;
  if (t->cuda || t->config->bind_threads == TWS_THREADS_FREE) return TWS_OK;
  if (t->is_library && t->config->bind_threads != TWS_THREADS_SHARE) return TWS_OK;
  memset(&mine, 0, sizeof mine);
  gethostname(mine.host, sizeof mine.host - 1);
  const int wanted = t->config->bind_threads == TWS_THREADS_SHARE;
  tws_error failure;
  const tws_code seen = tws_cpus_allowed(&mine.cpus, &failure);
  TWS_TRY(find_place(t, &mine, &index, &count, err)); /* called on all ranks, whatever cores they may use */
  if (seen != TWS_OK && wanted && err) *err = failure;
  if (seen != TWS_OK) return wanted ? seen : TWS_OK;
  TWS_TRY(tws_machine_look(NULL, &mine.cpus, &parts, err));
  if (!wanted && parts.numa_nodes == 1) return TWS_OK; /* all cores have equal access to all memory */
  TWS_TRY(tws_host_bind(t->backend, &mine.cpus, index, count, &bound, &near, err));
  if (wanted && !bound && t->rank == 0)
    tws_log_write(t->options->log, TWS_LOG_WARNING, "threads are not bound: %d ranks of %d threads share %d cores",
                  count, t->threads, parts.cores);
  tws_log_write(t->options->log, TWS_LOG_DEBUG, "rank %d: threads %s, share %d of %d; %d cores, %d NUMA node%s%s",
                t->rank, bound ? "bound" : "not bound", index + 1, count, parts.cores, parts.numa_nodes,
                parts.numa_nodes == 1 ? "" : "s", near ? ", memory near" : "");
  return TWS_OK;
}
