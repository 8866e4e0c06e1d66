/* Pictures and their classes: a file of records of one size, as those of CIFAR-10 (Krizhevsky, 2009): a byte with the
 * class, then the pixels' bytes, channel by channel, of each row by row. */
#ifndef TWS_REAL_PICTURES_H
#define TWS_REAL_PICTURES_H

#include "models/network/network.h"
#include "real/data.h"

/* Of pictures of the network's size, and of its classes. TWS_IO: no such file, unreadable; TWS_INVALID: it is no number
 * of such records (the message says how long they are), has fewer of them than a global batch, or a class that the
 * network lacks (the message says where). */
tws_code tws_pictures_open(const char *path, const tws_network *network, int64_t train_batch, uint64_t seed,
                           tws_data *data, tws_error *err);
/* Picture `sample` as a row of patches, the numbers of one channel by channel, from -1 (0) to 1 (255); its class. */
tws_code tws_pictures_read(const tws_data *data, const tws_picture *picture, uint64_t sample, float *patches,
                           int32_t *class_of, tws_error *err);

#endif
