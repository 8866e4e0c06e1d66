/* Saving into a folder of checkpoints (checkpoint/folder.h), for those who hold its lock.
 *
 * Everything works relative to the open folder and follows no link in it: a link is removed itself, and what it leads
 * to is left alone. Of a checkpoint that is removed those files go that its index lists, and then the index; what else
 * is in its folder is the user's and stays where it is. What cannot be removed is a remark: a line in `remarks`, which
 * names it. Remarks come after the save has succeeded, or before it begins, and are no failures. */
#ifndef TWS_CHECKPOINT_SAVING_H
#define TWS_CHECKPOINT_SAVING_H

#include "base/memory.h"
#include "checkpoint/folder.h"

/* Looks the folder over before the first step: removes leftovers, and remarks on what a later save or `keep` (0: all
 * stay) will leave. TWS_IO: nothing can be saved there. */
tws_code tws_folder_look(const char *folder, int64_t keep, tws_text *remarks, tws_error *err);
/* begin: removes leftovers and makes the temporary folder for the tag. publish: the temporary folder, whose files are
 * on the disk, becomes DIR/<tag> (what had that name before is removed), then DIR/latest names it; then all but the
 * `keep` newest up to it go (0: all stay). What goes wrong after `latest` was written is a remark. */
tws_code tws_folder_begin(const char *folder, const char *tag, tws_text *remarks, tws_error *err);
tws_code tws_folder_publish(const char *folder, const char *tag, int64_t keep, tws_text *remarks, tws_error *err);

#endif
