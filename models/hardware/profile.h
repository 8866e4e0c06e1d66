/* A hardware profile: what one device costs. Built-in ones hold published figures; `twinspeed calibrate` measures
 * others. A file is JSON with "schema": "twinspeed-profile-1" and carries its provenance.
 *
 * Kernel time, where the profile has measurements of that kernel (docs/profiles.md):
 *   matrix products and attention: a fit of the measured shapes to products, traffic and start-up, corrected by what
 * the nearest shapes measured, so that a measured shape has exactly its measured time; all others: a curve of seconds
 * over bytes, by kernel kind, interpolated in the logarithms (GSL). Where it has none: a roofline of published figures
 * with fitted efficiencies (on GPUs with tiles and whole waves). Each figure may be given for several numbers of busy
 * devices of a node (host ranks share memory and cores). */
#ifndef TWS_MODELS_PROFILE_H
#define TWS_MODELS_PROFILE_H

#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"
#include "config/cluster.h"
#include "models/kernel.h"

typedef struct tws_profile tws_profile;

/* `spec`: a built-in name ("v100-32gb", "a100-80gb", "h100-sxm", "h200", "b200", "host", ...) or a file's path. */
tws_code tws_profile_load(const char *spec, tws_profile **out, tws_error *err);
tws_code tws_profile_from_json(const tws_json *json, tws_profile **out, tws_error *err);
void tws_profile_destroy(tws_profile *profile);
const char *const *tws_profile_builtin_names(void);
/* A built-in profile as a file, with the published figures of its device, their confidence and their sources;
 * TWS_INVALID for another name. And the JSON Schema of profile files. */
tws_code tws_profile_builtin_text(const char *name, tws_text *out, tws_error *err);
tws_code tws_profile_print_schema(tws_text *out, tws_error *err);

const char *tws_profile_name(const tws_profile *profile);
const char *tws_profile_provenance(const tws_profile *profile); /* one line: source, date, machine */
/* Relative disturbance of the machine during calibration: the median spread of a sample, and the drift of one matrix
 * product that was repeated between all others. 0: not recorded. */
double tws_profile_spread(const tws_profile *profile);
double tws_profile_drift(const tws_profile *profile);
#define TWS_PROFILE_QUIET_SPREAD 0.2
#define TWS_PROFILE_QUIET_DRIFT 0.25
int tws_profile_is_noisy(const tws_profile *profile); /* beyond these */
tws_backend_kind tws_profile_backend(const tws_profile *profile);
/* The hardware is none that an engine of this program runs on: plans, times and searches treat it as a GPU. */
int tws_profile_is_other(const tws_profile *profile);
/* The source of the rates of matrix products, and the share of the peak that large 16-bit products reach under the
 * runtime. */
typedef enum tws_rates {
  TWS_RATES_OWN,       /* fitted to training runs, or calibrated */
  TWS_RATES_MEASURED,  /* published measurements of products; runtime styles leave them */
  TWS_RATES_DATA_SHEET /* published peaks times a share that other devices reach */
} tws_rates;
tws_rates tws_profile_rates(const tws_profile *profile);
double tws_profile_product_share(const tws_profile *profile);
int tws_profile_generation(const tws_profile *profile);      /* tws_generation of runtime.h */
double tws_profile_memory_bytes(const tws_profile *profile); /* of one device; host: of the node */
/* Bytes/s of a node's disk, measured; 0: not measured. */
double tws_profile_disk_read(const tws_profile *profile);
double tws_profile_disk_write(const tws_profile *profile);
/* Dense flop/s of one device; host: of one core. A type without a figure of its own has float32's. */
double tws_profile_peak_flops(const tws_profile *profile, tws_dtype dtype);
double tws_profile_bandwidth(const tws_profile *profile);      /* bytes/s, memory */
double tws_profile_overhead_bytes(const tws_profile *profile); /* context and library memory in addition to the arena */
/* Seconds in which the host issues one kernel of a plan under the profile's runtime; 0: it never limits. */
double tws_profile_host_op_s(const tws_profile *profile);
/* As how many of those a kernel counts: 1, but where a product of experts is a loop over them. */
double tws_profile_host_launches(const tws_profile *profile, const tws_work *work);
int tws_profile_cores(const tws_profile *profile); /* host: cores a node has; GPU: 0 */
/* Host ranks run one stream at a time (there is nothing to overlap with); GPUs run a plan's streams side by side. */
int tws_profile_serial_streams(const tws_profile *profile);

/* Seconds of one compute operation on one device while `busy` devices of its node compute (1 for GPUs). For a host,
 * `threads` are the rank's threads; sharing a core between ranks is not in here: the executor or estimator does it. */
double tws_kernel_seconds(const tws_profile *profile, const tws_work *work, int threads, int busy);

/* Ring (or measured table, where the profile has one for this many ranks) collective among `ranks` ranks,
 * `per_node` of them on each node; bytes is the whole tensor's size, as in tws_work.d[0].
 *   all-reduce 2 (n-1)/n B/bw + 2 (n-1) lat, all-gather and reduce-scatter (n-1)/n B/bw + (n-1) lat,
 *   broadcast and reduce B/bw + (n-1) lat; bw is the narrowest link of the ring. (Patarasuk and Yuan, 2009)
 *   A ring of which one of several edges leaves the node: the longest path of a segment, which advances by one edge at
 *     each step or waits for the narrowest link. With few bytes all latencies count, with many only one of them.
 *   all-to-all: the longest of (k-1)/n B over a device's port, (n-k)/n B over its share of the NICs, k = per_node, and
 * posting n-k messages for other nodes (tws_cluster.message_s; the g of LogP, Culler et al. 1993), and one lat. */
double tws_collective_seconds(const tws_cluster *cluster, const tws_profile *profile, tws_collective collective,
                              int ranks, int per_node, double bytes, int segments);
/* Returns the part of these seconds that is not B over the narrowest link: the latency before the first byte in a
 * simulation of flows. */
double tws_collective_latency_s(const tws_cluster *cluster, const tws_profile *profile, tws_collective collective,
                                int ranks, int per_node, double bytes, int segments);
/* The load of an all-to-all: the shares of the segment between each two ranks that cross the port and the NIC (1 and 1
 * by default), and whether messages to other nodes are posted one after another. Casts at both ends may reduce the
 * bytes that are sent:
 *   d[6] the whole's bytes there (0: d[0])
 * Software that sends tokens once (tws_runtime.sends_once) does so in place of slots, where the work says what is
 * routed:
 *   d[1] bytes of a rank's tokens, d[2] experts, d[3] choices of a token, d[4] groups of experts that it has them from
 *   (0: none), d[5] as many of these groups
 * With E experts in P equal parts and k choices a token goes to P (1 - C(E - E/P, k) / C(E, k)) parts: ranks over
 * ports, nodes over NICs, where one rank gets it for all of its node (DeepEP, github.com/deepseek-ai/DeepEP). */
typedef struct tws_traffic {
  double inside, outside;
  int posted;
} tws_traffic;
tws_traffic tws_traffic_of(const tws_profile *profile, const tws_work *work, int ranks, int per_node);
/* The same as tws_collective_seconds() and tws_collective_latency_s() for a collective's work; and the part of the
 * latency that is on links: link latencies and posts. */
double tws_exchange_seconds(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                            int per_node);
double tws_exchange_hops_s(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                           int per_node);
double tws_exchange_latency_s(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                              int per_node, double bytes);
/* Bytes that a ring would have to move along each edge, to take as long as what NCCL chooses (models/hardware/nccl.h),
 * over those that it moves; 1 where that is rings. */
double tws_exchange_stretch(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                            int per_node);
/* Corrections from measured training runs: factors on the seconds of each kind of kernel and collective, 0 if unknown
 * (then 1). They replace those of an earlier call, and multiply those in the profile's own file ("corrections"). */
typedef struct tws_profile_correction {
  double kernel[TWS_KERNEL_COUNT], collective[TWS_COLLECTIVE_COUNT];
} tws_profile_correction;
void tws_profile_correct(tws_profile *profile, const tws_profile_correction *correction);
/* The file of the profile that tws_profile_load() reads as `spec`, with the corrections that `profile` has by `runs`
 * training runs. The caller deletes *out. */
tws_code tws_profile_corrected_json(const char *spec, const tws_profile *profile, int runs, cJSON **out,
                                    tws_error *err);

/* Flop/s of a product of m x k and k x n in that type, by `threads` of a rank while `busy` ranks of its node do so. */
double tws_profile_product_rate(const tws_profile *profile, int64_t m, int64_t n, int64_t k, tws_dtype dtype,
                                int threads, int busy);

/* Seconds of a point-to-point message. */
double tws_p2p_seconds(const tws_cluster *cluster, const tws_profile *profile, int same_node, double bytes);

#endif
