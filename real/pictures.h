/* Pictures and their classes: a file of records of one size, in the format of CIFAR-10 and CIFAR-100 (Krizhevsky,
 * 2009): a byte with the class, or for each label a byte, then the pixels' bytes, channel by channel, each row by row.
 * A network that reads several pictures has them one after another in each record. */
#ifndef TWS_REAL_PICTURES_H
#define TWS_REAL_PICTURES_H

#include "models/network/network.h"
#include "real/data.h"

/* Opens pictures of the network's size. Fails with TWS_IO if the file does not exist or cannot be read, and with
 * TWS_INVALID if the file's size is no multiple of the size of a record (the message has this size), the file has fewer
 * records than a global batch has samples, or a class exceeds the network's classes (the message has its position). */
tws_code tws_pictures_open(const char *path, const tws_network *network, int64_t train_batch, uint64_t seed,
                           tws_data *data, tws_error *err);
/* Reads record `sample`, of which the following two return parts until the next one is read. */
tws_code tws_pictures_read(const tws_data *data, const tws_network *network, uint64_t sample, tws_error *err);
/* Returns the class of the record by a label. */
int32_t tws_pictures_label(const tws_data *data, int label);
/* Writes picture `index` of the record as a row of patches, each of them channel by channel, with values scaled from 0
 * .. 255 to -1 .. 1. */
void tws_pictures_patches(const tws_data *data, const tws_network *network, int index, float *patches);

#endif
