/* Computes NCCL's choice of algorithm for a collective and the time that it predicts, by NCCL's own model (NVIDIA/nccl,
 * src/graph/ tuning.cc of June 2026: ncclTopoTuneModel(), ncclTopoGetAlgoTime()) with only NCCL's constants. It is used
 * for clusters with "collectives": "nccl"; other clusters are assumed to run rings with the Simple protocol. */
#ifndef TWS_MODELS_NCCL_H
#define TWS_MODELS_NCCL_H

#include "config/cluster.h"
#include "models/hardware/runtime.h"
#include "models/kernel.h"

typedef enum tws_nccl_algorithm {
  TWS_NCCL_TREE, /* double binary trees between nodes, chains inside */
  TWS_NCCL_RING,
  TWS_NCCL_NVLS,      /* the NVLink switch of a node reduces and multicasts (NVLink SHARP) */
  TWS_NCCL_NVLS_TREE, /* NVLS inside nodes, and trees between nodes */
  TWS_NCCL_PAT,       /* parallel aggregated trees, with one rank per node */
  TWS_NCCL_ALGORITHMS
} tws_nccl_algorithm;

typedef enum tws_nccl_protocol { TWS_NCCL_LL, TWS_NCCL_LL128, TWS_NCCL_SIMPLE, TWS_NCCL_PROTOCOLS } tws_nccl_protocol;

typedef struct tws_nccl_choice {
  tws_nccl_algorithm algorithm;
  tws_nccl_protocol protocol;
  int channels;
  double latency_s, bandwidth; /* latency in seconds; bytes of the whole tensor per second */
  double seconds;
} tws_nccl_choice;

/* Returns 1, and writes to *choice the fastest algorithm of NCCL for this number of bytes among `ranks` ranks,
 * `per_node` of them on each node. Returns 0 if NCCL has no choice (broadcasts, messages), or if NCCL's constants for
 * the GPU's generation are missing. */
int tws_nccl_choose(const tws_cluster *cluster, int generation, tws_collective collective, int ranks, int per_node,
                    double bytes, tws_nccl_choice *choice);

#endif
