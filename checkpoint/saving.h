/* Saves checkpoints into a folder (checkpoint/folder.h) and removes old ones. The caller must hold the folder's
 * lock.\n\nPaths are relative to the open folder, and symbolic links in it are never followed: a link itself is
 * removed, and its target stays. To remove a checkpoint means to remove the files that its index lists, and then the
 * index; other files in its folder are the user's and stay. If a file cannot be removed, a line in `remarks` names it.
 * Such a remark is no failure: the save has succeeded, or has not begun. */
#ifndef TWS_CHECKPOINT_SAVING_H
#define TWS_CHECKPOINT_SAVING_H

#include "base/memory.h"
#include "checkpoint/folder.h"

/* Examines the folder before the first step: removes leftovers of unfinished saves, and adds remarks about files that
 * later saves with `keep` (number of checkpoints kept; 0: all) will not be able to remove. Fails with TWS_IO if
 * checkpoints cannot be saved into the folder. */
tws_code tws_folder_look(const char *folder, int64_t keep, tws_text *remarks, tws_error *err);
/* tws_folder_begin() removes leftovers and creates the temporary folder for the tag. tws_folder_publish() is called
 * when the files of the temporary folder are on the disk: it removes an earlier DIR/<tag>, renames the temporary folder
 * to DIR/<tag>, writes the tag into DIR/latest, and removes all earlier checkpoints except the newest `keep`, this one
 * included (0: removes none). A failure after `latest` was written becomes a remark. */
tws_code tws_folder_begin(const char *folder, const char *tag, tws_text *remarks, tws_error *err);
tws_code tws_folder_publish(const char *folder, const char *tag, int64_t keep, tws_text *remarks, tws_error *err);

#endif
