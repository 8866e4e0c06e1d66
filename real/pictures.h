/* Pictures and their classes: a file of records of one size, in the format of CIFAR-10 (Krizhevsky, 2009): a byte
 * with the class, then the pixels' bytes, channel by channel, each row by row. */
#ifndef TWS_REAL_PICTURES_H
#define TWS_REAL_PICTURES_H

#include "models/network/network.h"
#include "real/data.h"

/* Opens pictures of the network's size. Fails with TWS_IO if the file does not exist or cannot be read, and with
 * TWS_INVALID if the file's size is no multiple of the size of a record (the message has this size), the file has fewer
 * records than a global batch has samples, or a class exceeds the network's classes (the message has its position). */
tws_code tws_pictures_open(const char *path, const tws_network *network, int64_t train_batch, uint64_t seed,
                           tws_data *data, tws_error *err);
/* Reads picture `sample` as a row of patches, each of them channel by channel, with values scaled from 0 .. 255 to -1
 * .. 1, and reads its class. */
tws_code tws_pictures_read(const tws_data *data, const tws_picture *picture, uint64_t sample, float *patches,
                           int32_t *class_of, tws_error *err);

#endif
