/* Checks the session directories of Open MPI's mpirun, which it removes recursively when it ends. The removal
 * follows symbolic links: the target of a link in such a directory is deleted, system directories included. */
#ifndef TWS_LAUNCH_SESSION_H
#define TWS_LAUNCH_SESSION_H

#include "base/status.h"

/* To be called before mpirun is started. TWS_ENVIRONMENT: a directory that the environment assigns to mpirun
 * (variables of Open MPI and of PRRTE) has other entries than mpirun creates, or mpirun's default directory, in
 * TMPDIR or /tmp, belongs to another user, is writable by others, or has a symbolic link. Settings that only mpirun
 * reads (configuration files, directories of other machines) are not checked. */
tws_code tws_session_check(tws_error *err);

#endif
