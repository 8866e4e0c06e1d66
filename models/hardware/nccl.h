/* NCCL's choice of algorithm for a collective, and its predicted time: its own model (NVIDIA/nccl, src/graph/tuning.cc,
 * of June 2026: ncclTopoTuneModel(), ncclTopoGetAlgoTime()), with its constants and without any of ours. A cluster asks
 * for it by "collectives": "nccl"; others run rings of the Simple protocol. */
#ifndef TWS_MODELS_NCCL_H
#define TWS_MODELS_NCCL_H

#include "config/cluster.h"
#include "models/hardware/runtime.h"
#include "models/kernel.h"

typedef enum tws_nccl_algorithm {
  TWS_NCCL_TREE, /* double binary trees between nodes, chains inside */
  TWS_NCCL_RING,
  TWS_NCCL_NVLS,      /* the switch of a node reduces and multicasts */
  TWS_NCCL_NVLS_TREE, /* the same inside nodes, trees between them */
  TWS_NCCL_PAT,       /* parallel aggregated trees, of one rank a node */
  TWS_NCCL_ALGORITHMS
} tws_nccl_algorithm;

typedef enum tws_nccl_protocol { TWS_NCCL_LL, TWS_NCCL_LL128, TWS_NCCL_SIMPLE, TWS_NCCL_PROTOCOLS } tws_nccl_protocol;

typedef struct tws_nccl_choice {
  tws_nccl_algorithm algorithm;
  tws_nccl_protocol protocol;
  int channels;
  double latency_s, bandwidth; /* bytes/s of the whole tensor */
  double seconds;
} tws_nccl_choice;

/* The fastest of what it has for this many bytes, among `ranks` ranks with `per_node` of them on a node. 0: it chooses
 * between nothing here (broadcasts, messages; a generation without constants). */
int tws_nccl_choose(const tws_cluster *cluster, int generation, tws_collective collective, int ranks, int per_node,
                    double bytes, tws_nccl_choice *choice);

#endif
