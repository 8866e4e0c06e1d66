/* Session directories of Open MPI's mpirun, which it removes with all that they hold when it ends. It follows symbolic
 * links as it does so: what a link in such a directory leads to is deleted, system directories included. */
#ifndef TWS_LAUNCH_SESSION_H
#define TWS_LAUNCH_SESSION_H

#include "base/status.h"

/* Before mpirun is started. TWS_ENVIRONMENT: a directory that the environment gives to mpirun as its own (variables of
 * Open MPI and of PRRTE) holds other entries than mpirun makes, or one that mpirun would use by itself, in TMPDIR or
 * /tmp, belongs to another user, may be written by others, or holds a symbolic link. What only mpirun could know of
 * (configuration files, directories of other machines) is not looked at. */
tws_code tws_session_check(tws_error *err);

#endif
