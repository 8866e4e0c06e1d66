#include "cli/version.h"
#include <gsl/gsl_version.h>
#include "cli/cli.h"
#include "job/modules.h"

static void print_feature(const char *name, tws_code code, const char *text, const tws_error *err) {
  tws_out("  %-10s %s %s\n", name, code == TWS_OK ? "yes " : "no  ", code == TWS_OK ? text : err->message);
}

void tws_print_version(void) {
  tws_out("twinspeed %s\n", TWS_VERSION);
  tws_out("  %-10s yes  cJSON %s, GSL %s\n", "planning", cJSON_Version(), GSL_VERSION);
  tws_error err = {0};
  const tws_sim_api *sim = NULL;
  tws_code code = tws_sim_load(&sim, &err);
  print_feature("simulator", code, sim ? sim->description() : "", &err);
  const tws_real_api *real = NULL;
  code = tws_real_load(&real, &err);
  print_feature("engine", code, real ? real->description() : "", &err);
  tws_out("  %-10s %s\n", "cuda",
          real && real->backend("cuda") ? "yes  measured on one H100" : "no   this build has no CUDA backend");
  tws_out("Licence: Apache-2.0; a binary linked with GSL falls under GPL-3.\n");
}
