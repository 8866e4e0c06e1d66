/* Signal handling of the program. A signal that was ignored at the start (nohup) stays ignored. */
#ifndef TWS_CLI_SIGNALS_H
#define TWS_CLI_SIGNALS_H

/* Installs handlers: a signal that terminates the process first removes its unfinished files (base/unfinished.h). In a
 * rank the message is printed by the process that started it. */
void tws_catch_signals(int is_rank);
/* Makes SIGTERM request a stop, which tws_asked_to_end() returns; a second SIGTERM terminates the process at once. */
void tws_listen_for_end(void);
int tws_asked_to_end(void);

#endif
