/* What signals do to a process that trains. */
#ifndef TWS_CLI_SIGNALS_H
#define TWS_CLI_SIGNALS_H

/* SIGTERM asks to end; a second one ends at once. */
void tws_listen_for_end(void);
int tws_asked_to_end(void);
/* While a file is there, a signal that ends the process removes it first. Fits tws_train_options. */
void tws_remove_on_signal(void *user, const char *path, int there);

#endif
