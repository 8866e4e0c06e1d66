/* What signals do to the program. Whoever was told to ignore them (nohup) goes on ignoring them. */
#ifndef TWS_CLI_SIGNALS_H
#define TWS_CLI_SIGNALS_H

/* Those that end the process remove its unfinished files first (base/unfinished.h). A rank leaves the line that says
 * so to the process that started it. */
void tws_catch_signals(int is_rank);
/* SIGTERM asks to end; a second one ends at once. */
void tws_listen_for_end(void);
int tws_asked_to_end(void);

#endif
