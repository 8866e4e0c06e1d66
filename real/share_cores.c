/* Divides the cores of a node among its ranks (twinspeed.bind_threads). */
#include <stdio.h>
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

/* Returns 1 if any program of this rank has operations on the host's cores or on a disk. */
static int works_on_host(const tws_training *t) {
  for (int i = 0; i < TWS_PROGRAM_COUNT; i++)
    for (uint32_t op = 0; t->programs[i] && op < t->programs[i]->op_count; op++)
      if (t->programs[i]->ops[op].place != TWS_PLACE_DEVICE) return 1;
  return 0;
}

/* Starts the host's threads of a rank on a GPU: as many as twinspeed.threads says, or its share of the cores. */
static tws_code start_host_work(tws_training *t, int ranks, tws_error *err) {
  const int share = (int)sysconf(_SC_NPROCESSORS_ONLN) / ranks;
  t->threads = t->config->threads > 0 ? t->config->threads : share > 1 ? share : 1;
  return tws_host_work_create(t->threads, &t->host, err);
}

static tws_code bind(tws_training *t, const tws_cpus *allowed, int index, int count, int *bound, int *near,
                     tws_error *err) {
  if (t->host) return tws_host_work_bind(t->host, allowed, index, count, bound, near, err);
  return tws_host_bind(t->backend, allowed, index, count, bound, near, err);
}

/* Returns 1 if Linux says that this machine has one NUMA node; then all cores have equal access to all memory. */
static int has_one_numa_node(void) {
  char line[8] = "";
  FILE *file = fopen("/sys/devices/system/node/online", "re");
  const int one = file && fgets(line, sizeof line, file) && strcmp(line, "0\n") == 0;
  if (file) fclose(file);
  return one;
}

tws_code tws_share_cores(tws_training *t, tws_error *err) {
  presence mine;
  tws_machine_parts parts;
  int index, count, bound, near;
  if (!t->cuda && t->config->bind_threads == TWS_THREADS_FREE) return TWS_OK;
  if (t->is_library && t->config->bind_threads != TWS_THREADS_SHARE) return TWS_OK;
  memset(&mine, 0, sizeof mine);
  gethostname(mine.host, sizeof mine.host - 1);
  const int wanted = t->config->bind_threads == TWS_THREADS_SHARE;
  tws_error failure;
  /* hwloc takes longer to read the machine than a small model to train a step, and need not where threads stay free */
  const int stays_free = !wanted && !t->cuda && has_one_numa_node();
  const tws_code seen = stays_free ? TWS_OK : tws_cpus_allowed(&mine.cpus, &failure);
  TWS_TRY(find_place(t, &mine, &index, &count, err)); /* called on all ranks, whatever cores they may use */
  if (stays_free || (t->cuda && !works_on_host(t))) return TWS_OK;
  if (t->cuda) TWS_TRY(start_host_work(t, count, err));
  if (t->config->bind_threads == TWS_THREADS_FREE) return TWS_OK;
  if (seen != TWS_OK && wanted && err) *err = failure;
  if (seen != TWS_OK) return wanted ? seen : TWS_OK;
  TWS_TRY(tws_machine_count_parts(NULL, &mine.cpus, &parts, err));
  if (!wanted && parts.numa_nodes == 1) return TWS_OK; /* all cores have equal access to all memory */
  TWS_TRY(bind(t, &mine.cpus, index, count, &bound, &near, err));
  if (wanted && !bound && t->rank == 0)
    tws_log_write(t->options->log, TWS_LOG_WARNING, "threads are not bound: %d ranks of %d threads share %d cores",
                  count, t->threads, parts.cores);
  tws_log_write(t->options->log, TWS_LOG_DEBUG, "rank %d: threads %s, share %d of %d; %d cores, %d NUMA node%s%s",
                t->rank, bound ? "bound" : "not bound", index + 1, count, parts.cores, parts.numa_nodes,
                parts.numa_nodes == 1 ? "" : "s", near ? ", memory near" : "");
  return TWS_OK;
}
