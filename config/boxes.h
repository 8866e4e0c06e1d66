/* Boxes and cloud instances by their names, with published figures (config/boxes.def), and the classes of links that
 * join devices and nodes (config/fabrics.def). */
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
  double latency_s, reached; /* of a link; share of the nominal rate that collectives reach */
  const char *about;
} tws_fabric_row;
const tws_fabric_row *tws_fabric_of(int fabric);
/* TWS_FABRIC_NONE: no such word. */
int tws_fabric_find(const char *word);

typedef struct tws_box {
  const char *name, *title, *profile;
  int intra, nic;                    /* tws_fabric */
  int paired;                        /* as tws_cluster.paired */
  double host_GBps;                  /* of a device to the host, one way; 0: not known */
  double message_s;                  /* as tws_cluster.message_s */
  const char *topology, *nics, *cpu; /* "": not known */
  const tws_figure *figures;
} tws_box;

const tws_box *tws_box_nth(int i); /* NULL after the last */
const tws_box *tws_box_find(const char *name, size_t length);
/* One node of it: nominal rates times what collectives reach of them (tws_fabric_row). */
void tws_box_cluster(const tws_box *box, tws_cluster *out);

#endif
