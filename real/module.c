/* Defines the table of the real engine that the program loads. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/unfinished.h"
#include "build_interface.h"
#include "real/disk.h"
#include "real/engine.h"
#include "real/swap.h"
#include "real/calibrate.h"
#include "real/cuda_loader.h"
#include "real/host/host.h"
#include "real/train_internal.h"

static void clear_swap_files(const char *folder) {
  tws_swap_clear(folder);
}

static void end_all(int exit_code) {
  tws_unfinished_remove();
  /* mpirun ends the other ranks when one exits without MPI_Finalize. MPI_Abort would print. */
  _exit(exit_code);
}

__attribute__((visibility("default"))) const tws_real_api *tws_real_module(void);
const tws_real_api *tws_real_module(void) {
  static const tws_real_api api = {.version = TWS_INTERFACE,
                                   .start = tws_mpi_start,
                                   .stop = tws_mpi_stop,
                                   .abort = end_all,
                                   .train = tws_real_train,
                                   .generate = tws_real_generate,
                                   .predict = tws_real_predict,
                                   .calibrate = tws_real_calibrate,
                                   .backend = tws_real_backend,
                                   .engine = &tws_engine_calls,
                                   .virtual_ranks = &tws_virtual_ranks,
                                   .clear_swap_files = clear_swap_files,
                                   .measure_disk = tws_disk_measure,
                                   .use_unfinished = tws_unfinished_use,
                                   .description = tws_real_description};
  return &api;
}
