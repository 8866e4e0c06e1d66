#include "real/mpi_wait.h"

#include <time.h>

#include "base/log.h"

/* A wait polls for `poll_s` without sleeping. A sleep lasts `share` of the time waited so far, by which it may lengthen
 * the wait, but at least `least_s` and at most `most_s`. */
static const double poll_s = 50e-6, share = 0.125, least_s = 20e-6, most_s = 1e-3;

static void sleep_after(double waited_s) {
  double nap_s = share * waited_s;
  if (nap_s < least_s) nap_s = least_s;
  if (nap_s > most_s) nap_s = most_s;
  const struct timespec nap = {.tv_nsec = (long)(nap_s * 1e9)};
  nanosleep(&nap, NULL);
}

int tws_mpi_wait(MPI_Request *requests, int count) {
  int done = 0, code = MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
  if (code != MPI_SUCCESS || done) return code;
  const double began_s = tws_clock_s();
  for (;;) {
    code = MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS || done) return code;
    const double waited_s = tws_clock_s() - began_s;
    if (waited_s > poll_s) sleep_after(waited_s);
  }
}

/* Waits for a collective whose call returned `code`. */
static int finish(int code, MPI_Request *request) {
  return code == MPI_SUCCESS ? tws_mpi_wait(request, 1) : code;
}

int tws_mpi_meet(MPI_Comm ranks) {
  MPI_Request request;
  return finish(MPI_Ibarrier(ranks, &request), &request);
}

int tws_mpi_bcast(void *data, int count, MPI_Datatype type, MPI_Comm ranks) {
  MPI_Request request;
  return finish(MPI_Ibcast(data, count, type, 0, ranks, &request), &request);
}

int tws_mpi_gather(const void *send, void *receive, int count, MPI_Datatype type, MPI_Comm ranks) {
  MPI_Request request;
  return finish(MPI_Igather(send, count, type, receive, count, type, 0, ranks, &request), &request);
}

int tws_mpi_allgather(const void *send, void *receive, int count, MPI_Datatype type, MPI_Comm ranks) {
  MPI_Request request;
  return finish(MPI_Iallgather(send, count, type, receive, count, type, ranks, &request), &request);
}

int tws_mpi_allreduce(const void *send, void *receive, MPI_Datatype type, MPI_Op operation, MPI_Comm ranks) {
  MPI_Request request;
  return finish(MPI_Iallreduce(send, receive, 1, type, operation, ranks, &request), &request);
}
