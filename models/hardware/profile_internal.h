/* Insides of a hardware profile; private to models/hardware. */
#ifndef TWS_MODELS_PROFILE_INTERNAL_H
#define TWS_MODELS_PROFILE_INTERNAL_H

#include <gsl/gsl_interp.h>
#include "base/memory.h"
#include "models/hardware/runtime.h"
#include "models/operator.h"

/* Seconds as a function of bytes: measured points, monotone, interpolated (Steffen) in the logarithms of both. */
typedef struct tws_curve {
  size_t count;
  double *x, *y; /* ln bytes, ln seconds; the arena's */
  gsl_interp *interp;
} tws_curve;

/* n > 0 points with positive coordinates, in any order; changes them. Equal bytes are averaged; points that would make
 * more bytes faster are pooled (noise). */
tws_code tws_curve_create(tws_arena *arena, double (*points)[2], size_t n, tws_curve *curve, tws_error *err);
void tws_curve_destroy(tws_curve *curve);
/* Above the largest point time grows with bytes; below the smallest it falls with bytes down to `floor_s`. */
double tws_curve_seconds(const tws_curve *curve, double bytes, double floor_s);

/* Seconds over shapes of several dimensions: a fit by least squares of the relative error to a sum of costs with
 * non-negative coefficients, times a correction interpolated from the measured shapes by inverse distance in the
 * logarithms of the sizes (Shepard, 1968). Exact at measured shapes; far from them the fit alone. */
enum { TWS_SURFACE_DIMS = 4, TWS_SURFACE_COSTS = 5 };
typedef struct tws_shape {
  double log_size[TWS_SURFACE_DIMS];
  double cost[TWS_SURFACE_COSTS]; /* flops, 1, then others in falling importance; 0 where not used */
} tws_shape;
typedef struct tws_surface {
  size_t count;
  tws_shape *shapes;
  double *seconds, *residual; /* residual = ln(seconds / fit) */
  double coefficient[TWS_SURFACE_COSTS];
} tws_surface;
/* seconds of shape i in samples[i][1] */
tws_code tws_surface_create(tws_arena *arena, const tws_shape *shapes, double (*samples)[2], size_t n,
                            tws_surface *surface, tws_error *err);
double tws_surface_seconds(const tws_surface *surface, const tws_shape *shape);

/* One measured family: a kernel with its types, for one number of threads and of busy ranks. Variants of a matrix
 * product (added bias, adding to the output) are one family, told apart by a coordinate; others have one per flags. */
typedef struct tws_family {
  tws_work work; /* kernel, types; flags of a curve */
  int threads, busy;
  int is_surface, accumulates; /* some sample of a surface adds to its output */
  tws_curve curve;
  tws_surface surface;
  double (*points)[2]; /* bytes, seconds: while the file is read */
  tws_shape *shapes;
  size_t count, point_capacity, shape_capacity;
} tws_family;

typedef struct tws_collective_table {
  tws_collective collective;
  int ranks;
  tws_curve curve;
} tws_collective_table;

/* Types of products alone, not of what plans hold. */
typedef enum tws_narrow { TWS_NARROW_FP8, TWS_NARROW_FP4, TWS_NARROW_COUNT } tws_narrow;
const char *tws_narrow_name(int narrow);

struct tws_profile {
  tws_arena *arena;
  const char *name, *provenance;
  tws_backend_kind backend;
  int cores, serial_streams;
  double memory_bytes, overhead_bytes;
  double spread, drift; /* of the measurements */
  double disk[2];       /* bytes/s of a node's disk, read and written; 0: not measured */
  double peak[TWS_DTYPE_COUNT];
  double bandwidth, node_bandwidth, bandwidth_efficiency, launch_s;
  double matmul_efficiency, fp8_efficiency, fp4_efficiency, tile_overhead_s, misaligned;
  tws_rates rates;
  int other; /* the engines cannot run on it; planned as a GPU */
  int multiprocessors;
  double attention_efficiency, attention_half_length, attention_backward;
  int unfused;                              /* GELU and residual sums are kernels of their own */
  int attention_unfused, scores_recomputed; /* scores are in memory; between forward and backward they are not kept */
  int masks_kept;                           /* of dropout, between forward and backward */
  double score_bytes[2];                    /* of kernels between the products, for each score: forward, backward */
  int generation;                           /* tws_generation */
  double narrow_peak[TWS_NARROW_COUNT];     /* of products; 0: none */
  tws_matmul_dtype matmul_dtype;            /* of what enters products of 16-bit layers */
  const tws_runtime *runtime;               /* NULL: "twinspeed" */
  int float_reductions;                     /* tws_runtime */
  double part_s, hand_over_s;               /* tws_runtime */
  double accumulates_bytes;                 /* tws_runtime */
  double host_op_s;                         /* the host issues a kernel of a plan in this time; 0: it never limits */
  double expert_op_s;                       /* tws_runtime */
  int experts_overlap;                      /* tws_profile_overlap_experts() */
  int issued_in_turns;                      /* tws_profile_issue_in_turns() */
  int one_hot_experts;                      /* tws_runtime */
  double added_bytes[TWS_KERNEL_COUNT];     /* that software moves in addition to a kernel's operands, per element */
  tws_family *families;
  size_t family_count;
  tws_collective_table *collectives;
  size_t collective_count;
  tws_curve p2p;                         /* count 0: not measured */
  tws_profile_correction own_correction; /* that its file has */
  tws_profile_correction correction;     /* with that of trials since */
};

/* Coordinates and costs of a matrix product or attention; 0 for kernels that are costed by bytes alone. */
int tws_shape_of(const tws_work *work, tws_shape *shape);
const char *tws_profile_builtin(const char *name); /* JSON text of those in builtin.c, or NULL */
/* A built-in profile, whatever it is made from, or a file. */
tws_code tws_profile_open(const char *spec, tws_json **out, tws_error *err);
/* TWS_INVALID with all names; `or_file` ends the sentence "... is neither a built-in hardware profile". */
tws_code tws_profile_unknown(const char *spec, const char *or_file, tws_error *err);

/* By how much longer a tile of tm x tn takes than its products alone, `feed` of reading its operands. */
static inline double tws_profile_tiled(double tm, double tn, double feed) {
  return 1 + feed * (1 / tm + 1 / tn);
}
#define TWS_TILE_FEED 15.0 /* of tensor cores */

/* runtime.c. Of a work's products in the type that the profile was told; 0: that of the work. */
double tws_profile_matmul_peak(const tws_profile *profile, const tws_work *work);
/* Bytes that casts before such a product move for each element of its input, or of its weight. */
double tws_profile_cast_bytes(const tws_profile *profile, int weight);

#endif
