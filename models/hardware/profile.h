/* A hardware profile: the costs of one device. Built-in profiles have published figures; `twinspeed calibrate` measures
 * others. A file is JSON with "schema": "twinspeed-profile-1" and contains its provenance.
 *
 * The time of a kernel that the profile has measured is computed as follows (docs/profiles.md). Matrix products and
 * attention: a fit over the measured shapes with terms for multiplications, traffic and launch, corrected by the
 * nearest measured shapes, so that a measured shape has exactly its measured time. All other kernels: a curve of
 * seconds over bytes for each kernel, interpolated in the logarithms (GSL). The time of a kernel that was not measured
 * is a roofline of published figures with fitted efficiencies (on GPUs with tiles and whole waves). Each figure may be
 * given for several numbers of busy devices of a node, because host ranks share memory and cores. */
#ifndef TWS_MODELS_PROFILE_H
#define TWS_MODELS_PROFILE_H

#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"
#include "config/cluster.h"
#include "models/hardware/caching_allocator.h"
#include "models/kernel.h"

typedef struct tws_profile tws_profile;

/* Loads a profile. `spec`: a built-in name ("v100-32gb", "a100-80gb", "h100-sxm", "h200", "b200", "host", ...) or a
 * file's path. */
tws_code tws_profile_load(const char *spec, tws_profile **out, tws_error *err);
tws_code tws_profile_from_json(const tws_json *json, tws_profile **out, tws_error *err);
void tws_profile_destroy(tws_profile *profile);
const char *const *tws_profile_builtin_names(void);
/* Write a built-in profile as a file, with the published figures of its device, their confidence and sources
 * (TWS_INVALID for an unknown name), and the JSON Schema of profile files. */
tws_code tws_profile_builtin_text(const char *name, tws_text *out, tws_error *err);
tws_code tws_profile_print_schema(tws_text *out, tws_error *err);

const char *tws_profile_name(const tws_profile *profile);
const char *tws_profile_provenance(const tws_profile *profile); /* returns one line with source, date and machine */
/* Return two relative figures of noise during calibration (0.1: 10 %): the median spread of a sample, and the drift of
 * one matrix product that was repeated between all other measurements. 0: not recorded. */
double tws_profile_spread(const tws_profile *profile);
double tws_profile_drift(const tws_profile *profile);
#define TWS_PROFILE_QUIET_SPREAD 0.2
#define TWS_PROFILE_QUIET_DRIFT 0.25
int tws_profile_is_noisy(const tws_profile *profile); /* returns 1 if spread or drift exceeds its limit */
tws_backend_kind tws_profile_backend(const tws_profile *profile);
/* Returns 1 for hardware on which no engine of this program runs; plans, estimates and searches treat it as a GPU. */
int tws_profile_has_no_engine(const tws_profile *profile);
/* The source of a profile's efficiencies of matrix products, and the share of the peak that large 16-bit products reach
 * under the runtime. */
typedef enum tws_rates {
  TWS_RATES_OWN,       /* efficiencies were fitted to training runs, or calibrated */
  TWS_RATES_MEASURED,  /* published measurements of products, which runtime styles do not change */
  TWS_RATES_DATA_SHEET /* published peaks times a share that similar devices reach */
} tws_rates;
tws_rates tws_profile_rates(const tws_profile *profile);
double tws_profile_product_share(const tws_profile *profile);
int tws_profile_generation(const tws_profile *profile);      /* returns a tws_generation of runtime.h */
double tws_profile_memory_bytes(const tws_profile *profile); /* returns the bytes of one device; host: of the node */
/* Return the measured bytes/s of a node's disk; 0: not measured. */
double tws_profile_disk_read(const tws_profile *profile);
double tws_profile_disk_write(const tws_profile *profile);
/* Returns the measured rates of copies between devices and pinned memory: of one device alone, or (node 1) of all
 * devices of a node together while all of them copy. */
tws_copy_rates tws_profile_copies(const tws_profile *profile, int node);
/* Returns the dense flop/s of one device; host: of one core. A type without a peak of its own has that of float32. */
double tws_profile_peak_flops(const tws_profile *profile, tws_dtype dtype);
double tws_profile_bandwidth(const tws_profile *profile); /* returns the bytes/s of the device's memory */
/* Returns the bytes of device memory that contexts and libraries use in addition to arenas. */
double tws_profile_overhead_bytes(const tws_profile *profile);
/* Seconds of a host's rank that kernels' own samples do not contain, as `twinspeed calibrate` measures them: `start_s`
 * for each compute operation, by which a small kernel takes longer after other kernels than after itself (its
 * instructions and predicted branches have been replaced); `pass_s` for each pass of a program of inference, in which
 * its clocks are read; and `choice`, for several sizes of a vocabulary, the seconds in which the most probable token of
 * a text is chosen from its scores. Each is at most TWS_PASS_MOST_S. */
enum { TWS_PASS_CHOICES = 8 };
#define TWS_PASS_MOST_S 1.0
typedef struct tws_pass_costs {
  double start_s, pass_s;
  int choice_count;
  struct {
    double vocabulary, seconds;
  } choice[TWS_PASS_CHOICES];
} tws_pass_costs;
/* Return the measured seconds by which a compute operation of a plan takes longer than its kernel's samples, and those
 * that a rank spends around the kernels of one pass of inference over `texts` texts; 0: not measured. Between the
 * measured sizes of a vocabulary seconds are interpolated in the logarithms of both; beyond them they are in proportion
 * to the vocabulary. */
double tws_profile_start_s(const tws_profile *profile);
double tws_profile_pass_s(const tws_profile *profile, double texts, double vocabulary);
/* Returns the seconds in which the host issues one operation under the profile's runtime; 0: the host is never the
 * bottleneck. */
double tws_profile_host_op_s(const tws_profile *profile);
/* Returns the number of operations that the host issues for a kernel of a plan (launches.def); more if the runtime
 * implements a product of experts as a loop over the experts. */
double tws_profile_host_launches(const tws_profile *profile, const tws_work *work);
/* Returns the number of operations that the host issues to send or to receive a message between pipeline stages. */
double tws_profile_message_launches(const tws_profile *profile);
int tws_profile_cores(const tws_profile *profile); /* returns the number of cores of a node of host ranks; GPU: 0 */
/* Returns 1 if only one stream of a plan runs at a time, as on host ranks, which have nothing to overlap; 0: a plan's
 * streams run concurrently, as on GPUs. */
int tws_profile_serial_streams(const tws_profile *profile);
/* Returns the allocator of device memory that the runtime uses; AHEAD for hosts. */
tws_allocator_kind tws_profile_allocator(const tws_profile *profile);

/* Returns the seconds of one compute operation on one device while `busy` devices of its node compute (1 for GPUs). On
 * a host, the rank has `threads` threads; if ranks share cores, the caller accounts for it. */
double tws_kernel_seconds(const tws_profile *profile, const tws_work *work, int threads, int busy);
/* As tws_kernel_seconds(), for a kernel that reads its weight again after all kernels together have read and written
 * `reread_bytes` bytes (0: more than the caches hold). Products of few rows on a host (models/few_rows.h) are measured
 * for several such numbers, between which seconds are interpolated in the logarithm of the bytes. Products of more rows
 * save as many seconds as one with the largest measured number of rows, up to their own, and the same weight saves; if
 * none of more than TWS_FEW_ROWS rows was measured, as one of one row saves. */
double tws_kernel_seconds_rereading(const tws_profile *profile, const tws_work *work, int threads, int busy,
                                    double reread_bytes);

/* Returns the seconds of a collective among `ranks` ranks, `per_node` of them on each node, from the profile's measured
 * table if it has one for this number of ranks, else by the formulas below. bytes: size B of the whole tensor, as in
 * tws_work.d[0]; n: ranks; bw, lat: bandwidth and latency of the ring's narrowest link (Patarasuk and Yuan, 2009).
 *   all-reduce: 2 (n-1)/n B/bw + 2 (n-1) lat; all-gather and reduce-scatter: (n-1)/n B/bw + (n-1) lat;
 *   broadcast and reduce: B/bw + (n-1) lat.
 *   A ring of which one of several edges leaves the node takes the longest path of a segment, which at each step
 *   advances by one edge or waits for the narrowest link. With few bytes all latencies add up; with many bytes only one
 *   latency counts.
 *   all-to-all: one lat plus the longest of (k-1)/n B over a device's port, (n-k)/n B over its share of the NICs (k =
 *   per_node), and posting n-k messages for other nodes (tws_cluster.message_s; the g of LogP, Culler et al.
 *   1993). */
double tws_collective_seconds(const tws_cluster *cluster, const tws_profile *profile, tws_collective collective,
                              int ranks, int per_node, double bytes, int segments);
/* Returns the name of the algorithm that NCCL would choose, "tree", "ring", "nvls", "nvls-tree" or "pat"; NULL: the
 * cluster does not request NCCL's choices, NCCL has no choice for this collective, or the profile has a measured table
 * for it. */
const char *tws_collective_algorithm(const tws_cluster *cluster, const tws_profile *profile, tws_collective collective,
                                     int ranks, int per_node, double bytes);
/* Returns the seconds of tws_collective_seconds() without the transfer of bytes over the narrowest link: the latency
 * before the first byte in a flow-level simulation. */
double tws_collective_latency_s(const tws_cluster *cluster, const tws_profile *profile, tws_collective collective,
                                int ranks, int per_node, double bytes, int segments);
/* The load of an all-to-all: the shares of a segment between two ranks that cross the port (inside a node) and the NIC
 * (outside), 1 and 1 by default, and posted: 1 if messages to other nodes are posted one after another. Casts at both
 * ends may reduce the bytes that are sent: d[6] of the work is the size of the whole tensor after the cast (0: d[0]).
 * Software that sends each token once per destination (tws_runtime.sends_once) sends tokens instead of slots if the
 * work describes the routing:
 *   d[1] bytes of a rank's tokens, d[2] experts, d[3] experts chosen per token, d[4] groups of experts (0: none), of
 *   which a token's experts are in d[5]
 * With E experts in P equal parts and k choices, a token is sent to P (1 - C(E - E/P, k) / C(E, k)) parts. Parts are
 * ranks for ports, and nodes for NICs if one rank receives the token for its whole node (DeepEP,
 * github.com/deepseek-ai/DeepEP). */
typedef struct tws_traffic {
  double inside, outside;
  int posted;
} tws_traffic;
tws_traffic tws_traffic_of(const tws_profile *profile, const tws_work *work, int ranks, int per_node);
/* Return, for the work of a collective: tws_exchange_seconds() and tws_exchange_latency_s() what
 * tws_collective_seconds() and tws_collective_latency_s() return, and tws_exchange_link_latency_s() the seconds of this
 * latency that are link latencies and the posting of messages. */
double tws_exchange_seconds(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                            int per_node);
double tws_exchange_link_latency_s(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work,
                                   int ranks, int per_node);
double tws_exchange_latency_s(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                              int per_node, double bytes);
/* Returns the factor by which a ring's bytes along each edge must be multiplied so that the ring takes as long as
 * NCCL's choice of algorithm (models/hardware/nccl.h); 1 if NCCL chooses rings. */
double tws_exchange_ring_factor(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                                int per_node);
/* Corrections from measured training runs: for each kind of kernel and collective the factor of its seconds; 0: unknown
 * (the factor is then 1). They replace the corrections of an earlier call, and multiply those in the profile's own file
 * ("corrections"). */
typedef struct tws_profile_correction {
  double kernel[TWS_KERNEL_COUNT], collective[TWS_COLLECTIVE_COUNT];
  double message; /* factor of the seconds of messages between two ranks */
} tws_profile_correction;
void tws_profile_correct(tws_profile *profile, const tws_profile_correction *correction);
/* Factors on the seconds of all operations of one kind, from measurements on the user's machine (job/measured.h):
 * matrix products with attention, all other kernels, and collectives with messages. They replace the factors of an
 * earlier call and multiply the corrections. 0: the kind has no factor. */
typedef enum tws_scale { TWS_SCALE_PRODUCTS, TWS_SCALE_MEMORY, TWS_SCALE_LINKS, TWS_SCALE_COUNT } tws_scale;
const char *tws_scale_name(int scale); /* returns "products", "memory" or "links" */
void tws_profile_rescale(tws_profile *profile, const double factor[TWS_SCALE_COUNT]);
tws_scale tws_kernel_scale(tws_kernel kernel); /* returns TWS_SCALE_PRODUCTS or TWS_SCALE_MEMORY */
/* Returns the share of the memory bandwidth that memory-bound kernels reach. */
double tws_profile_bandwidth_share(const tws_profile *profile);
/* Makes the JSON object of the profile that tws_profile_load() loads for `spec`, with the corrections of `profile`,
 * which come from `runs` training runs. The caller deletes *out. */
tws_code tws_profile_corrected_json(const char *spec, const tws_profile *profile, int runs, cJSON **out,
                                    tws_error *err);

/* Returns the flop/s of a product of matrices m x k and k x n of that type, computed by `threads` threads of a rank
 * while `busy` ranks of its node compute the same. */
double tws_profile_product_rate(const tws_profile *profile, int64_t m, int64_t n, int64_t k, tws_dtype dtype,
                                int threads, int busy);

/* Returns the seconds of a point-to-point message of `bytes` bytes; same_node: 1 if both ranks are on one node. */
double tws_p2p_seconds(const tws_cluster *cluster, const tws_profile *profile, int same_node, double bytes);

#endif
