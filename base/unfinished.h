/* Registry of files and folders that must not outlive the process: unfinished outputs and scratch files. A signal
 * handler that ends the process removes the registered ones; all other code registers and releases. A process has
 * one registry, because signals are per process. */
#ifndef TWS_BASE_UNFINISHED_H
#define TWS_BASE_UNFINISHED_H

/* A loaded module has its own copy of this library. It uses the program's list, which is the only one that the
 * signal handlers read. */
typedef struct tws_unfinished tws_unfinished;
tws_unfinished *tws_unfinished_list(void);
void tws_unfinished_use(tws_unfinished *list);

/* Registers `name` in the open directory `folder`, which must stay open until the release. Returns a slot, or -1
 * where the registry is full: a signal then leaves the file, and nothing else is different. */
int tws_unfinished_add(int folder, const char *name);
int tws_unfinished_add_path(const char *path);
/* The same for a folder, which is removed with its contents. */
int tws_unfinished_add_folder(const char *path);
void tws_unfinished_release(int slot); /* -1 is allowed */
void tws_unfinished_release_path(const char *path);
/* Removes the registered files and folders of this process. Async-signal-safe. */
void tws_unfinished_remove(void);

/* Removes the folder `name` of the open directory `folder` with its contents; links are removed, never followed.
 * Async-signal-safe. Returns 0, or -1 with errno. */
int tws_remove_tree(int folder, const char *name);

#endif
