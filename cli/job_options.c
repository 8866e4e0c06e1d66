#include "cli/job_options.h"
#include <string.h>

tws_code tws_job_choose_program(tws_job *job, const char *name, tws_error *err) {
  for (int i = 0; name && i < TWS_PROGRAM_COUNT; i++) {
    if (strcmp(name, tws_program_name((tws_program)i)) != 0) continue;
    job->program = (tws_program)i;
    return TWS_OK;
  }
  return name ? tws_fail(err, TWS_USAGE, "--program train, evaluate, apply, select or sync",
                         "--program: no program \"%.80s\"", name)
              : TWS_OK;
}
