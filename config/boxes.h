/* Finds server models ("boxes") and cloud instances by name, with their published figures (config/boxes.def), and the
 * classes of links between devices and between nodes (config/fabrics.def). */
#ifndef TWS_CONFIG_BOXES_H
#define TWS_CONFIG_BOXES_H

#include "config/cluster.h"
#include "config/figures.h"

typedef enum tws_fabric {
#define FABRIC(name, word, latency, reached, about) TWS_FABRIC_##name,
#include "config/fabrics.def"
#undef FABRIC
  TWS_FABRIC_COUNT
} tws_fabric;

typedef struct tws_fabric_row {
  const char *word;
  double latency_s, reached; /* latency of a link in seconds; share of the nominal rate that is reached */
  const char *about;
} tws_fabric_row;
const tws_fabric_row *tws_fabric_of(int fabric);
/* Returns the class of links (tws_fabric) that the word names, or TWS_FABRIC_NONE if no fabric has that name. */
int tws_fabric_find(const char *word);

typedef struct tws_box {
  const char *name, *title, *profile;
  int intra, nic;                    /* tws_fabric between the devices of a node, and of the NICs */
  int paired;                        /* as tws_cluster.paired: pairs of devices have links of their own */
  double host_GBps;                  /* GB/s between a device and the host, one direction; 0: not known */
  double message_s;                  /* seconds to post one message, as tws_cluster.message_s */
  const char *topology, *nics, *cpu; /* "": not known */
  const tws_figure *figures;
} tws_box;

const tws_box *tws_box_nth(int i); /* NULL after the last */
const tws_box *tws_box_find(const char *name, size_t length);
/* Fills *out with a cluster of one node of this model. Its bandwidths are nominal rates, multiplied by the share that
 * collectives reach (tws_fabric_row.reached). */
void tws_box_cluster(const tws_box *box, tws_cluster *out);

#endif
