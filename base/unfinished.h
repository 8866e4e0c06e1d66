/* Registry of files and folders that must not outlive the process: unfinished outputs and scratch files. A signal
 * handler that ends the process removes the registered files; other code only registers and releases them. A process
 * has one registry, because signals are per process. */
#ifndef TWS_BASE_UNFINISHED_H
#define TWS_BASE_UNFINISHED_H

/* The list of registered files. A loaded module has its own copy of this library's code, but uses the program's list,
 * which is the only one that the signal handlers read. */
typedef struct tws_unfinished tws_unfinished;
tws_unfinished *tws_unfinished_list(void);
void tws_unfinished_use(tws_unfinished *list);

/* Registers `name` in the open directory `folder`, which must stay open until the release. Returns a slot, or -1 if the
 * registry is full, in which case a signal does not remove the file. */
int tws_unfinished_add(int folder, const char *name);
int tws_unfinished_add_path(const char *path);
/* Registers a folder, which a signal removes with its contents. Returns a slot, or -1. */
int tws_unfinished_add_folder(const char *path);
void tws_unfinished_release(int slot); /* -1 is allowed */
void tws_unfinished_release_path(const char *path);
/* Removes the registered files and folders of this process. Async-signal-safe. */
void tws_unfinished_remove(void);

/* Removes the folder `name` of the open directory `folder` with its contents; links are removed, never followed.
 * Async-signal-safe. Returns 0, or -1 with errno. */
int tws_remove_tree(int folder, const char *name);

#endif
