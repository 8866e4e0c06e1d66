/* What signals do to the program. A signal that was ignored at the start (nohup) stays ignored. */
#ifndef TWS_CLI_SIGNALS_H
#define TWS_CLI_SIGNALS_H

/* Those that end the process remove its unfinished files first (base/unfinished.h). A rank leaves the line that says
 * so to the process that started it. */
void tws_catch_signals(int is_rank);
/* SIGTERM asks to end; a second one ends at once. */
void tws_listen_for_end(void);
int tws_asked_to_end(void);

#endif
