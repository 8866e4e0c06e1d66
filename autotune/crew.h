/* Processes that share work on one machine: forked, so that they begin with all that the search knows, and answering in
 * memory that they share. They end with their parent. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_CREW_H
#define TWS_AUTOTUNE_CREW_H

#include <sys/types.h>

#include "base/status.h"

enum { TWS_CREW_MOST = 64 };

/* wanted, or where that is 0 one for each core of this machine. */
int tws_crew_size(int wanted);

/* Memory of zeros that forked processes share; pages that nobody touches cost nothing. NULL when there is none. */
void *tws_crew_memory(size_t bytes);
void tws_crew_memory_free(void *memory, size_t bytes);

typedef struct tws_crew {
  pid_t pids[TWS_CREW_MOST];
  int count;
} tws_crew;
/* body(user, index) runs in process number index. */
tws_code tws_crew_start(tws_crew *crew, int count, void (*body)(void *user, int index), void *user, tws_error *err);
int tws_crew_left(const tws_crew *crew); /* how many are still at work */
/* Waits for all of them; stop: ends them first. *cpu_s grows by what they took. TWS_ENVIRONMENT for one that ended
 * before its work, unless it was stopped. */
tws_code tws_crew_end(tws_crew *crew, int stop, double *cpu_s, tws_error *err);

/* A list whose items are done by whoever is free. Answers are read in the order of the list, so that what comes of them
 * does not depend on who was. */
typedef struct tws_crew_list {
  int items;
  size_t answer_bytes;
  tws_code (*work)(void *user, int item, void *answer, tws_error *err); /* in a worker; *answer is zero before */
  /* In the caller's process; *stop: no further item is wanted. */
  tws_code (*read)(void *user, int item, const void *answer, int *stop, tws_error *err);
  void *user;
  int large; /* items need so much memory that what one needed is given back at once */
} tws_crew_list;
/* With one worker or one item everything happens in the caller's process. *cpu_s grows by what all took. */
tws_code tws_crew_do(const tws_crew_list *list, int workers, double *cpu_s, tws_error *err);

#endif
