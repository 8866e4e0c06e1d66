/* Writes a measured hardware profile: a benchmark adds the median times of its samples, the builder writes the JSON
 * that tws_profile_load() reads (docs/profiles.md). Samples are stored as measured; fits are computed when the file is
 * read.
 *
 *   tws_profile_builder *b = tws_profile_builder_create("this-machine", TWS_BACKEND_HOST);
 *   tws_profile_builder_provenance(b, "measured 2025-06-01 on ...");
 *   tws_profile_builder_peak(b, TWS_F32, 2.1e11);
 *   tws_profile_builder_kernel(b, &work, threads, busy, median_s, err);   (once a shape)
 *   tws_profile_builder_write(b, "profile.json", err);
 *   tws_profile_builder_destroy(b); */
#ifndef TWS_MODELS_PROFILE_BUILD_H
#define TWS_MODELS_PROFILE_BUILD_H

#include "base/memory.h"
#include "models/hardware/profile.h"

typedef struct tws_profile_builder tws_profile_builder;

/* Returns an empty builder; NULL if memory is exhausted. */
tws_profile_builder *tws_profile_builder_create(const char *name, tws_backend_kind backend);
void tws_profile_builder_destroy(tws_profile_builder *builder); /* NULL is allowed */

/* Record the provenance and further properties of the machine; texts are copied. A failed allocation is stored in the
 * builder, and text(), write() and finish() report it. */
void tws_profile_builder_provenance(tws_profile_builder *builder, const char *line);
void tws_profile_builder_detail(tws_profile_builder *builder, const char *key,
                                const char *text); /* key such as "cpu" or "blas" */
/* Records relative noise: the median spread of a sample, and the drift of a measurement that was repeated over time. */
void tws_profile_builder_noise(tws_profile_builder *builder, double spread, double drift);
void tws_profile_builder_node(tws_profile_builder *builder, int cores, double memory_bytes, double overhead_bytes);
/* Records the sustained flop/s of one device; host: of one core (one thread). TWS_E4M3: of 8-bit products. */
void tws_profile_builder_peak(tws_profile_builder *builder, tws_dtype dtype, double flops_per_s);
/* Records the bytes/s that one busy rank reaches, and that all ranks of a node reach together (0: ranks do not share
 * memory bandwidth). */
void tws_profile_builder_bandwidth(tws_profile_builder *builder, double one_rank, double whole_node);
/* Records the rates of copies between devices and pinned memory, of `ranks` ranks of a node together while all of them
 * copy. Rates that are 0 are not written. At most TWS_PROFILE_COPIES different numbers of ranks are kept. */
enum { TWS_PROFILE_COPIES = 16 };
void tws_profile_builder_copies(tws_profile_builder *builder, int ranks, const tws_copy_rates *rates);
/* Records the seconds of a host's rank that kernels' samples do not contain; a member that is 0 is not measured,
 * and is not written, as a choice that took less than the clock's resolution. */
void tws_profile_builder_passes(tws_profile_builder *builder, const tws_pass_costs *costs);
/* Records the fixed seconds of launching one kernel. */
void tws_profile_builder_launch(tws_profile_builder *builder, double seconds);

/* Adds one timed kernel. `work` is as in a plan (kind compute; types, flags and d[] set); `busy` ranks ran the same
 * work at the same time, with `threads` threads each; `seconds` is the median of one execution. Equal shapes are
 * averaged when the file is read. Fails with TWS_INVALID if the work is no kernel, or if sizes or seconds are not
 * positive, and with TWS_MEMORY. */
tws_code tws_profile_builder_kernel(tws_profile_builder *builder, const tws_work *work, int threads, int busy,
                                    double seconds, tws_error *err);
/* As tws_profile_builder_kernel(), for a kernel that read its weight again after `reread_bytes` bytes; 0: after more
 * than the caches held. */
tws_code tws_profile_builder_rereading(tws_profile_builder *builder, const tws_work *work, int threads, int busy,
                                       double reread_bytes, double seconds, tws_error *err);
/* Adds one timed collective among `ranks` ranks of one node; `bytes` is the size of the whole tensor, as in
 * tws_work.d[0]. */
tws_code tws_profile_builder_collective(tws_profile_builder *builder, tws_collective collective, int ranks,
                                        double bytes, double seconds, tws_error *err);
/* Adds one timed message (one way) between two ranks of one node. */
tws_code tws_profile_builder_p2p(tws_profile_builder *builder, double bytes, double seconds, tws_error *err);

tws_code tws_profile_builder_text(const tws_profile_builder *builder, tws_text *out, tws_error *err); /* writes JSON */
tws_code tws_profile_builder_write(const tws_profile_builder *builder, const char *path, tws_error *err);
tws_code tws_profile_builder_finish(const tws_profile_builder *builder, tws_profile **out, tws_error *err);

#endif
