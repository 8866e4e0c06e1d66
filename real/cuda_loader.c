#include "real/cuda_loader.h"
#include <dlfcn.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/number.h"
#include "build_interface.h"
#include "real/mpi_comm.h"

#define MODULE "twinspeed_cuda.so"

static int readable(const char *folder, int length, char *path, size_t size) {
  int written = snprintf(path, size, "%.*s/%s", length, folder, MODULE);
  return written > 0 && (size_t)written < size && access(path, R_OK) == 0;
}

/* Finds the module: in $TWINSPEED_MODULES if it is set, else in the folder of the file that contains this code. */
static int find(char *path, size_t size) {
  const char *chosen = getenv("TWINSPEED_MODULES");
  if (chosen && *chosen && readable(chosen, (int)strlen(chosen), path, size)) return 1;
  static const char here = 0;
  Dl_info info;
  if (!dladdr(&here, &info) || !info.dli_fname) return 0;
  const char *slash = strrchr(info.dli_fname, '/');
  return slash && readable(info.dli_fname, (int)(slash - info.dli_fname), path, size);
}

tws_code tws_cuda_load(const tws_cuda_api **out, tws_error *err) {
  char path[PATH_MAX];
  *out = NULL;
  if (!find(path, sizeof path))
    return tws_fail(err, TWS_ENVIRONMENT, "train on the host, or build with nvcc, cuBLASLt and NCCL installed",
                    "this build has no CUDA backend");
  void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const char *reason = module ? NULL : dlerror();
  if (!module)
    return tws_fail(err, TWS_ENVIRONMENT, "install the CUDA libraries, or train on the host",
                    "the CUDA backend does not load: %.400s", reason ? reason : "?");
  void *symbol = dlsym(module, TWS_CUDA_MODULE_SYMBOL);
  const tws_cuda_api *(*entry)(void) = NULL;
  memcpy(&entry, &symbol, sizeof entry);
  const tws_cuda_api *api = entry ? entry() : NULL;
  if (!api || api->version != TWS_INTERFACE)
    return tws_fail(err, TWS_ENVIRONMENT, "build the whole program anew", "%.400s is of another version", path);
  *out = api;
  return TWS_OK;
}

/* Returns the number in the first of these variables that is set. Launchers set variables to the process's index on the
 * node, and to the number of processes there. */
static int first_number(const char *const *names, int count) {
  for (int i = 0; i < count; i++) {
    const char *text = getenv(names[i]);
    int number;
    if (text && tws_text_int(text, NULL, 0, INT32_MAX, &number)) return number;
  }
  return 0;
}

tws_code tws_cuda_choose_device(const tws_cuda_api *api, int *device, tws_error *err) {
  static const char *const rank_names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
  static const char *const size_names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};
  int count = 0;
  TWS_TRY(api->device_count(&count, err));
  const int rank = first_number(rank_names, 3), ranks = first_number(size_names, 2);
  *device = rank > 0 ? rank % count : 0;
  if (ranks <= count) return TWS_OK;
  /* NCCL refuses two ranks of one host on one device. With different host names they are accepted, and communicate
   * through sockets. */
  char name[48];
  snprintf(name, sizeof name, "twinspeed-rank-%d", tws_mpi_rank(NULL));
  if (setenv("NCCL_HOSTID", name, 0) != 0) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  return TWS_OK;
}

static tws_code broadcast(void *user, void *data, size_t bytes, tws_error *err) {
  const MPI_Comm ranks = user ? *(const MPI_Comm *)user : MPI_COMM_WORLD;
  if (MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, ranks) == MPI_SUCCESS) return TWS_OK;
  return tws_fail(err, TWS_RANK, NULL, "MPI does not deliver NCCL's identifier");
}

tws_code tws_cuda_connect(const tws_cuda_api *api, tws_backend *backend, const void *ranks, const tws_plan *plan,
                          tws_comm **out, tws_error *err) {
  tws_cuda_comm_setup setup = {.backend = backend,
                               .groups = plan->groups,
                               .group_count = plan->group_count,
                               .rank = tws_mpi_rank(ranks),
                               .world = tws_mpi_world(ranks),
                               .broadcast = broadcast,
                               .user = (void *)(uintptr_t)ranks};
  return api->comm_create(&setup, out, err);
}
