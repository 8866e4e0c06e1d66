/* Load shared modules of this program when a command needs them, from $TWINSPEED_MODULES, the program's folder, or the
 * library folder of the installation. Fail with TWS_ENVIRONMENT and a remedy if a module is missing or cannot be
 * loaded. The function tables live until the program ends. */
#ifndef TWS_JOB_MODULES_H
#define TWS_JOB_MODULES_H

#include "base/status.h"
#include "real/real.h"
#include "sim/sim.h"

tws_code tws_sim_load(const tws_sim_api **api, tws_error *err);
tws_code tws_real_load(const tws_real_api **api, tws_error *err);
/* Returns the path from which a module's file would be loaded, which it writes to `buffer`; "" if the file is in none
 * of the folders of modules. */
const char *tws_module_path(const char *file, char *buffer, int size);
/* Returns the path of a file or folder of the program's data, such as "plots", which it writes to `buffer`: in
 * scenarios/ of the source tree of the build, or in the folder of the installation; "" if neither has it. */
const char *tws_data_path(const char *name, char *buffer, int size);
/* Returns the folder of the scripts of figures: what the environment's TWINSPEED_PLOTS says, else that of the
 * program's data; "": it is not found. */
const char *tws_plots_path(char *buffer, int size);

#endif
