/* Files and folders that must not outlast the process: unfinished outputs, scratch files. A signal handler that ends
 * the process removes those that are registered; everything else registers and releases. The registry is the one list
 * of a process, because signals are the process's. */
#ifndef TWS_BASE_UNFINISHED_H
#define TWS_BASE_UNFINISHED_H

/* A loaded module has a copy of this library: it uses the list of the program, whose handlers know no other. */
typedef struct tws_unfinished tws_unfinished;
tws_unfinished *tws_unfinished_list(void);
void tws_unfinished_use(tws_unfinished *list);

/* Registers `name` in the open directory `folder`, which must stay open until the release. Returns a
 * slot, or -1 where there is no room: the file is then left by a signal, and nothing else is different. */
int tws_unfinished_add(int folder, const char *name);
int tws_unfinished_add_path(const char *path);
/* The same for a folder, which is removed with all that is in it. */
int tws_unfinished_add_folder(const char *path);
void tws_unfinished_release(int slot); /* -1 is allowed */
void tws_unfinished_release_path(const char *path);
/* Removes what this process registered. Calls only what a signal handler may call. */
void tws_unfinished_remove(void);

/* Removes the folder `name` of the open directory `folder` and all that is in it; links are removed, never followed.
 * Calls only what a signal handler may call. Returns 0, or -1 with errno. */
int tws_remove_tree(int folder, const char *name);

#endif
