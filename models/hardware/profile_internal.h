/* Private to models/hardware: the members of a hardware profile. */
#ifndef TWS_MODELS_PROFILE_INTERNAL_H
#define TWS_MODELS_PROFILE_INTERNAL_H

#include <gsl/gsl_interp.h>
#include "base/memory.h"
#include "models/hardware/runtime.h"
#include "models/operator.h"

/* Seconds as a function of bytes: measured points, made monotone and interpolated (Steffen) in the logarithms of
 * both. */
typedef struct tws_curve {
  size_t count;
  double *x, *y; /* ln bytes and ln seconds of the points, in the arena */
  gsl_interp *interp;
} tws_curve;

/* Builds a curve from n > 0 points with positive coordinates in any order; the array of points is changed. Points with
 * equal bytes are averaged; adjacent points at which more bytes take less time are pooled, since this is noise. */
tws_code tws_curve_create(tws_arena *arena, double (*points)[2], size_t n, tws_curve *curve, tws_error *err);
void tws_curve_destroy(tws_curve *curve);
/* Returns the seconds for a number of bytes. Above the largest point, seconds grow in proportion to bytes; below the
 * smallest they decrease in proportion, but not below `floor_s`. */
double tws_curve_seconds(const tws_curve *curve, double bytes, double floor_s);

/* Seconds over shapes of several dimensions: a least-squares fit (of the relative error) of a sum of costs with
 * non-negative coefficients, times a correction that is interpolated from the measured shapes by inverse distance in
 * the logarithms of the sizes (Shepard, 1968). It is exact at measured shapes, and approaches the fit far from them. */
enum { TWS_SURFACE_DIMS = 4, TWS_SURFACE_COSTS = 5 };
typedef struct tws_shape {
  double log_size[TWS_SURFACE_DIMS];
  double cost[TWS_SURFACE_COSTS]; /* FLOPs, 1, then other cost terms by importance; 0: not used */
} tws_shape;
typedef struct tws_surface {
  size_t count;
  tws_shape *shapes;
  double *seconds, *residual; /* residual: ln(seconds / fit) of each sample */
  double coefficient[TWS_SURFACE_COSTS];
} tws_surface;
/* Fits a surface to shapes; samples[i][1] are the seconds of shape i. */
tws_code tws_surface_create(tws_arena *arena, const tws_shape *shapes, double (*samples)[2], size_t n,
                            tws_surface *surface, tws_error *err);
double tws_surface_seconds(const tws_surface *surface, const tws_shape *shape);

/* One family of measurements: a kernel with its types, for one number of threads and of busy ranks. The variants of a
 * matrix product (added bias, accumulated output) are one family, in which a coordinate distinguishes them; products of
 * few rows, which are bound by reading the weight and not by flops, are another one. Other kernels have a family for
 * each combination of flags. */
typedef struct tws_family {
  tws_work work; /* kernel and types of the measurements; for a curve also flags */
  int threads, busy;
  int is_surface, accumulates; /* accumulates: 1: a kernel of some sample adds to its output */
  int few_rows;                /* 1: tws_has_few_rows() of all samples; 0: of none */
  double reread_bytes;         /* bytes after which the weights were read again; 0: more than the caches hold */
  tws_curve curve;
  tws_surface surface;
  double (*points)[2]; /* pairs of bytes and seconds; used only while the file is read */
  tws_shape *shapes;
  size_t count, point_capacity, shape_capacity;
} tws_family;

typedef struct tws_collective_table {
  tws_collective collective;
  int ranks;
  tws_curve curve;
} tws_collective_table;

/* Types that only the inputs of matrix products have; no tensors of plans have them. */
typedef enum tws_narrow { TWS_NARROW_FP8, TWS_NARROW_FP4, TWS_NARROW_COUNT } tws_narrow;
const char *tws_narrow_name(int narrow);

struct tws_profile {
  tws_arena *arena;
  const char *name, *provenance;
  tws_backend_kind backend;
  int cores, serial_streams;
  double memory_bytes, overhead_bytes;
  double spread, drift; /* relative noise of the measurements */
  double disk[2];       /* bytes/s of a node's disk, for reads and writes; 0: not measured */
  tws_copy_rates copies[2]; /* rates of copies of one device alone, and of the most devices that copied at once */
  double peak[TWS_DTYPE_COUNT];
  double bandwidth, node_bandwidth, bandwidth_efficiency, launch_s;
  double matmul_efficiency, fp8_efficiency, fp4_efficiency, tile_overhead_s, misaligned;
  tws_rates rates;
  int other; /* 1: no engine of this program runs on the hardware; it is treated as a GPU */
  int multiprocessors;
  double attention_efficiency, attention_half_length, attention_backward;
  int unfused; /* 1: GELU and residual sums are separate kernels */
  /* 1 if attention stores scores in memory; 1 if backward recomputes these scores */
  int attention_unfused, scores_recomputed;
  int masks_kept; /* 1: dropout masks are saved for backward */
  /* bytes per score that the kernels between the products of unfused attention move, in [0] the forward and [1] the
   * backward pass */
  double score_bytes[2];
  int generation;                       /* tws_generation */
  double narrow_peak[TWS_NARROW_COUNT]; /* peak flop/s of matrix products in each narrow type; 0: the device has none */
  tws_matmul_dtype matmul_dtype;        /* type of the inputs of matrix products of 16-bit layers */
  const tws_runtime *runtime; /* the runtime that was applied; NULL: this program's own engine ("twinspeed") */
  tws_allocator_kind allocator; /* the runtime's, or that of tws_profile_set_allocator() */
  int float_reductions;       /* as in tws_runtime */
  double part_s, hand_over_s; /* as in tws_runtime */
  double accumulates_bytes;   /* as in tws_runtime */
  double host_op_s;      /* seconds in which the host issues one operation; 0: the host is never the limit */
  double expert_op_s;    /* as in tws_runtime */
  double product_factor; /* factor by which the runtime has multiplied matmul_efficiency; 0: it has not */
  int experts_overlap;   /* 1: tws_profile_overlap_experts() was called */
  int issued_in_turns;   /* 1: tws_profile_issue_in_turns() was called */
  int one_hot_experts;   /* as in tws_runtime */
  double gate_s;         /* seconds that the device waits for the host in each forward of an expert's gate */
  /* bytes per element that the software moves in addition to a kernel's operands */
  double added_bytes[TWS_KERNEL_COUNT];
  tws_family *families;
  size_t family_count;
  double start_s, pass_s;     /* as in tws_pass_costs */
  tws_curve choice;           /* seconds over the size of a vocabulary; count 0: not measured */
  int64_t reread_rows;        /* most rows of a product whose weights were read again; 0: none was measured */
  double cold_bytes; /* twice the largest reread_bytes of a family: from there on caches hold no weights */
  tws_collective_table *collectives;
  size_t collective_count;
  tws_curve p2p;                         /* count 0: not measured */
  tws_profile_correction own_correction; /* corrections that the profile's file contains */
  tws_profile_correction correction;     /* own_correction multiplied by tws_profile_correct()'s corrections */
  double scale[TWS_SCALE_COUNT];         /* factors set by tws_profile_rescale(); 0: the factor is 1 */
};

/* Computes the coordinates of a matrix product or attention among the measured shapes, and its cost terms. Returns 1,
 * or 0 for kernels that are costed by bytes alone. */
int tws_shape_of(const tws_work *work, tws_shape *shape);
/* Returns 1 if the work is a product that the host computes with its kernel for few rows (TWS_FEW_ROWS). */
int tws_has_few_rows(const tws_work *work);
const char *tws_profile_builtin(const char *name); /* JSON text of a profile in builtin.c, or NULL */
/* Opens a built-in profile of any kind, or a file, as JSON. */
tws_code tws_profile_open(const char *spec, tws_json **out, tws_error *err);
/* Fails with TWS_INVALID for an unknown profile name; the hint lists all names. or_file: text that follows "... is
 * neither a built-in hardware profile" in the message. */
tws_code tws_profile_unknown(const char *spec, const char *or_file, tws_error *err);

/* Returns the factor by which a tile of tm x tn outputs of a matrix product takes longer than its multiplications
 * alone, since its operands have to be read: 1 + feed (1 / tm + 1 / tn). feed: time for reading one operand of a row or
 * column, in units of the time of one multiplication. */
static inline double tws_profile_tiled(double tm, double tn, double feed) {
  return 1 + feed * (1 / tm + 1 / tn);
}
static inline double tws_profile_scale(const tws_profile *profile, tws_scale scale) {
  return profile->scale[scale] > 0 ? profile->scale[scale] : 1;
}
#define TWS_TILE_FEED 15.0 /* `feed` of tws_profile_tiled() on tensor cores, fitted */

/* Returns the peak flop/s of the matrix products of a work in the profile's narrow type (set in runtime.c); 0: the
 * products have the type of the work. */
double tws_profile_matmul_peak(const tws_profile *profile, const tws_work *work);
/* Returns the bytes that casts before a matrix product in a narrow type read and write, for each element of the
 * product's input, or of its weight if `weight` is 1. */
double tws_profile_cast_bytes(const tws_profile *profile, int weight);

#endif
