/* Does a job fit its cluster: what one device and one node need against what they have. */
#ifndef TWS_CLI_VERDICT_H
#define TWS_CLI_VERDICT_H

#include "cli/common.h"

typedef struct tws_verdict {
  int fits;
  int host; /* ranks live in host memory: there is no device row */
  int ranks_per_node;
  double device_need; /* arena and what the libraries take beside it, bytes of one device */
  double device_overhead, device_have;
  double node_need, node_have; /* host memory of one node, all its ranks */
} tws_verdict;

void tws_verdict_read(const tws_job *job, const tws_ledger *ledger, tws_verdict *verdict);
void tws_verdict_print(const tws_cli *cli, const tws_verdict *verdict);
cJSON *tws_verdict_json(const tws_verdict *verdict);
/* TWS_NO: says what is missing; the hint names the smallest change of the configuration that fits, found by trying. */
tws_code tws_verdict_fail(const tws_job_options *options, const tws_verdict *verdict, tws_error *err);

#endif
