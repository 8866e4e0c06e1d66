/* Computes the seconds of one kernel from measurements of the profile if there are any, else from published figures. */
#include <math.h>
#include <string.h>
#include "models/few_rows.h"
#include "models/hardware/profile_internal.h"
#include "models/hardware/runtime.h"

/* A batch of matrix products as in LINEAR, tokens x out x in. A convolution is one product for each group of channels,
 * whose input matrix has one row of pixels for each window. */
typedef struct matrix_product {
  double m, n, k, times;
  enum { FORWARD, OF_INPUT, OF_WEIGHT } result;
  int aligned; /* 1: the rows of 16-bit operands begin at multiples of 16 bytes */
} matrix_product;

static int product_of(const tws_work *work, matrix_product *p) {
  const int64_t *d = work->d;
  double groups = 1;
  switch ((tws_kernel)work->code) {
    case TWS_KERNEL_LINEAR:
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
    case TWS_KERNEL_LINEAR_GRAD_WEIGHT:
    case TWS_KERNEL_CODED_LINEAR:
      *p = (matrix_product){.m = (double)d[0], .n = (double)d[1], .k = (double)d[2], .times = 1};
      p->aligned = d[1] % 8 == 0 && d[2] % 8 == 0;
      p->result = work->code == TWS_KERNEL_CODED_LINEAR ? FORWARD : (unsigned)work->code - TWS_KERNEL_LINEAR;
      return 1;
    case TWS_KERNEL_CONVOLUTION:
    case TWS_KERNEL_CONVOLUTION_GRAD_INPUT:
    case TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT:
      groups = fmax((double)d[7], 1);
      *p = (matrix_product){.m = tws_work_elements(work) / fmax((double)d[4], 1),
                            .n = (double)d[4] / groups,
                            .k = (double)d[5] * (double)d[5] * (double)d[3] / groups,
                            .times = groups};
      p->aligned = fmod((double)d[3] / groups, 8) == 0 && fmod(p->n, 8) == 0;
      p->result = (unsigned)work->code - TWS_KERNEL_CONVOLUTION;
      return 1;
    default:
      return 0;
  }
}
_Static_assert(TWS_KERNEL_LINEAR_GRAD_INPUT - TWS_KERNEL_LINEAR == OF_INPUT &&
                   TWS_KERNEL_LINEAR_GRAD_WEIGHT - TWS_KERNEL_LINEAR == OF_WEIGHT &&
                   TWS_KERNEL_CONVOLUTION_GRAD_INPUT - TWS_KERNEL_CONVOLUTION == OF_INPUT &&
                   TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT - TWS_KERNEL_CONVOLUTION == OF_WEIGHT,
               "rows of the table follow one another");

static int is_attention(const tws_work *work) {
  return work->code == TWS_KERNEL_ATTENTION || work->code == TWS_KERNEL_ATTENTION_GRAD ||
         work->code == TWS_KERNEL_DISENTANGLED || work->code == TWS_KERNEL_DISENTANGLED_GRAD;
}

static int is_forward(const tws_work *work) {
  return work->code == TWS_KERNEL_ATTENTION || work->code == TWS_KERNEL_DISENTANGLED;
}

/* Returns the number of pairs of a query and a key, summed over all heads. Disentangled attention is counted as plain
 * attention with the same number of matrix products. */
static double attention_pairs(const tws_work *work) {
  const int products = is_forward(work) ? 2 : 5;
  return tws_work_flops(work) / (2 * products * fmax((double)work->d[4], 1));
}

/* Writes the work of one matrix product of an expert's layer to *one, and returns the number of such products that
 * EXPERT_LINEAR or its gradient executes; 0: the work is another kernel. On a device, the rows that an expert receives
 * from all sources are one product, as in the grouped products of DeepSpeed-MoE and Megatron: a grouped product reads
 * the weights once, and does not become slower if many sources send few rows each. */
static double expert_products(const tws_profile *profile, const tws_work *work, tws_work *one) {
  static const uint8_t codes[] = {TWS_KERNEL_LINEAR, TWS_KERNEL_LINEAR_GRAD_INPUT, TWS_KERNEL_LINEAR_GRAD_WEIGHT};
  const int64_t *d = work->d, rows = d[5] > 0 ? d[5] : d[2];
  if (work->code < TWS_KERNEL_EXPERT_LINEAR || work->code > TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT) return 0;
  *one = *work;
  one->code = codes[work->code - TWS_KERNEL_EXPERT_LINEAR];
  memset(one->d, 0, sizeof one->d);
  const int64_t together = profile->backend == TWS_BACKEND_CUDA ? d[0] : 1;
  one->d[0] = rows * together;
  one->d[1] = d[3];
  one->d[2] = d[4];
  return (double)(d[0] / together * d[1]);
}

double tws_profile_host_launches(const tws_profile *profile, const tws_work *work) {
  const tws_runtime *runtime = tws_profile_runtime(profile);
  tws_work one = {0};
  const double issued = tws_issued_for_kernel(runtime->issues, work, profile->attention_unfused);
  if (!(profile->host_op_s > 0 && profile->expert_op_s > 0)) return issued;
  const double products = expert_products(profile, work, &one);
  const int casts = tws_profile_matmul_peak(profile, work) > 0 && one.code != TWS_KERNEL_LINEAR_GRAD_WEIGHT;
  const double each = profile->expert_op_s + (casts ? runtime->expert_cast_s : 0);
  return products > 0 ? fmax(issued, products * each / profile->host_op_s) : issued;
}

double tws_profile_message_launches(const tws_profile *profile) {
  return tws_issued_for_message(tws_profile_runtime(profile)->issues);
}

double tws_profile_host_bytes(const tws_profile *profile, const tws_work *work) {
  const double reached = tws_profile_runtime(profile)->host_reached;
  return tws_work_bytes(work) / (reached > 0 ? reached : 1);
}

int tws_shape_of(const tws_work *work, tws_shape *shape) {
  const int64_t *d = work->d;
  matrix_product p;
  *shape = (tws_shape){0};
  if (product_of(work, &p)) {
    double sizes[3] = {p.m, p.n, p.k};
    for (int i = 0; i < 3; i++) shape->log_size[i] = log(fmax(sizes[i], 1));
    /* this coordinate distinguishes variants of a product (bias, accumulation), which are closer to each other than
     * shapes of twice the size */
    shape->log_size[3] =
        (work->flags & (TWS_BIAS | TWS_SUMS) ? 0.25 : 0) + (work->flags & TWS_ACCUMULATE ? 0.5 : 0) + log(p.times);
    double costs[TWS_SURFACE_COSTS] = {2 * p.m * p.n * p.k, 1, p.n * p.k, p.m * p.n, p.m * p.k};
    for (int j = 0; j < TWS_SURFACE_COSTS; j++) shape->cost[j] = costs[j] * (j == 1 ? 1 : p.times);
    return 1;
  }
  if (work->code == TWS_KERNEL_CACHED_ATTENTION) {
    const double texts = (double)d[0] * (double)d[1], group = (double)d[2] / fmax((double)d[3], 1);
    const double keys = (double)(d[6] > 0 ? d[6] : d[5]);
    const double sizes[TWS_SURFACE_DIMS] = {texts * (double)d[3], keys, (double)d[4], group};
    for (int i = 0; i < TWS_SURFACE_DIMS; i++) shape->log_size[i] = log(fmax(sizes[i], 1));
    /* cost terms: flops of products, launch, traffic, exponentials, query heads */
    const double costs[TWS_SURFACE_COSTS] = {tws_work_flops(work), 1, tws_work_bytes(work),
                                             texts * (double)d[2] * keys, texts * (double)d[2]};
    memcpy(shape->cost, costs, sizeof costs);
    return 1;
  }
  if (is_attention(work)) {
    double heads = (double)d[0] * (double)d[2], seq = (double)d[1], head = (double)d[4];
    double sizes[TWS_SURFACE_DIMS] = {heads, seq, head, (double)d[3] / (double)(d[2] > 0 ? d[2] : 1) * 64};
    for (int i = 0; i < TWS_SURFACE_DIMS; i++) shape->log_size[i] = log(fmax(sizes[i], 1));
    /* cost terms: flops of products, launch, exponentials, rows, and traffic of q, k, v and o */
    double costs[TWS_SURFACE_COSTS] = {tws_work_flops(work), 1, attention_pairs(work), heads * seq,
                                       tws_work_bytes(work)};
    for (int j = 0; j < TWS_SURFACE_COSTS; j++) shape->cost[j] = costs[j];
    return 1;
  }
  return 0;
}

/* ---- from measurements ---- */

int tws_has_few_rows(const tws_work *work) {
  return work->code == TWS_KERNEL_LINEAR && work->d[0] <= TWS_FEW_ROWS;
}

/* Returns the distance of two types: 0 if they are equal, 0.25 for two 16-bit types, whose traffic is equal, else 1. */
static double type_mismatch(uint8_t a, uint8_t b) {
  if (a == b) return 0;
  return (a == TWS_BF16 || a == TWS_F16) && (b == TWS_BF16 || b == TWS_F16) ? 0.25 : 1;
}

/* Flags of fused kernels. The seconds of a fused kernel are computed from measurements of the fused kernel itself, else
 * as the sum of those of its two kernels (tws_kernel_seconds()). */
enum { FUSED = TWS_GELU | TWS_RESIDUAL };

/* Returns the distance of a family of measurements from the given work; infinity if the family cannot be used. like: 1
 * + a kernel with the same kind of traffic, whose measurements may be used instead; 0: none. */
static double mismatch(const tws_family *family, const tws_work *work, int like) {
  double far = 0;
  if (family->work.code != work->code) {
    if (like == 0 || family->work.code != like - 1) return INFINITY;
    far += 16;
  }
  far += 8 * type_mismatch(family->work.dtype, work->dtype);
  far += 4 * type_mismatch(family->work.dtype2, work->dtype2);
  uint32_t flags = family->work.flags ^ work->flags;
  if (flags & FUSED) return INFINITY;
  if (flags & (TWS_BIDIRECTIONAL | TWS_ALIBI | TWS_DROPOUT | TWS_RELATIVE)) far += 1;
  if (flags & TWS_FP8) far += 8;
  if (family->few_rows != tws_has_few_rows(work)) {
    if (work->flags & FUSED) return INFINITY; /* its two single kernels have better measurements */
    far += 14;                              /* more than for other types, less than for another kernel */
  }
  if (family->is_surface) return far;
  if (flags & (TWS_ACCUMULATE | TWS_RMS)) far += 2;
  if (flags & (TWS_ACCUMULATE_PARAM | TWS_BIAS | TWS_L2 | TWS_SUMS)) far += 1;
  if (flags & (TWS_HALF_WEIGHTS | TWS_HALF_MOMENTS | TWS_SPLIT_WEIGHTS)) far += 2;
  if (flags & TWS_STOCHASTIC) far += 1;
  return far;
}

static double family_seconds(const tws_profile *profile, const tws_family *family, const tws_work *work, int threads) {
  double seconds;
  if (family->is_surface) {
    tws_shape shape;
    tws_shape_of(work, &shape);
    seconds = tws_surface_seconds(&family->surface, &shape);
    double from = tws_profile_peak_flops(profile, (tws_dtype)family->work.dtype);
    double to = tws_profile_peak_flops(profile, (tws_dtype)work->dtype);
    const double narrow = work->flags & TWS_FP8 ? tws_profile_matmul_peak(profile, work) : 0;
    if (narrow > 0 && !(family->work.flags & TWS_FP8))
      seconds *= from / narrow;
    else if (family->work.dtype != work->dtype && from > 0 && to > 0)
      seconds *= from / to;
    /* A kernel that accumulates into its output also reads the output. The time of this read is added if no sample
     * includes it. (On a host, caches read the output in any case.) */
    if (work->flags & TWS_ACCUMULATE && !family->accumulates && profile->backend == TWS_BACKEND_CUDA) {
      tws_work plain = *work;
      plain.flags &= ~(uint32_t)TWS_ACCUMULATE;
      seconds += (tws_work_bytes(work) - tws_work_bytes(&plain)) / profile->bandwidth;
    }
    if (threads != family->threads) seconds *= (double)family->threads / threads;
  } else {
    seconds = tws_curve_seconds(&family->curve, tws_work_bytes(work), profile->launch_s);
  }
  return seconds;
}

/* The families that match a work best, among which seconds are interpolated. */
typedef struct closest_families {
  const tws_profile *profile;
  const tws_work *work;
  int like, threads, busy;
  double far; /* smallest mismatch */
} closest_families;

static double mismatch_of(const closest_families *c, const tws_family *family) {
  return mismatch(family, c->work, c->like) + 0.1 * fabs(log((double)family->threads / c->threads));
}

/* Returns the seconds by the families whose weights were read again after `reread_bytes` bytes, between those with the
 * closest numbers of busy ranks below and above; -1: there is no such family. */
static double seconds_when_busy(const closest_families *c, double reread_bytes) {
  const tws_family *below = NULL, *above = NULL;
  for (size_t i = 0; i < c->profile->family_count; i++) {
    const tws_family *family = &c->profile->families[i];
    if (fabs(family->reread_bytes - reread_bytes) > 0.5 || mismatch_of(c, family) > c->far + 1e-9) continue;
    if (family->busy <= c->busy && (below == NULL || family->busy > below->busy)) below = family;
    if (family->busy >= c->busy && (above == NULL || family->busy < above->busy)) above = family;
  }
  if (below == NULL) below = above;
  if (above == NULL) above = below;
  if (below == NULL) return -1;
  double low = family_seconds(c->profile, below, c->work, c->threads);
  if (below == above || below->busy == above->busy) return low;
  double high = family_seconds(c->profile, above, c->work, c->threads);
  double part = log((double)c->busy / below->busy) / log((double)above->busy / below->busy);
  return low * pow(high / low, part);
}

/* Finds the closest measured numbers of bytes after which weights were read again, below and above a number; above is
 * 0 for measurements in which caches held no weights. */
static void closest_rereads(const closest_families *c, double bytes, double *below, double *above) {
  double least = INFINITY;
  int cold = 0;
  *below = 0;
  *above = INFINITY;
  for (size_t i = 0; i < c->profile->family_count; i++) {
    const tws_family *family = &c->profile->families[i];
    if (mismatch_of(c, family) > c->far + 1e-9) continue;
    if (!(family->reread_bytes > 0)) {
      cold = 1;
      continue;
    }
    least = fmin(least, family->reread_bytes);
    if (family->reread_bytes <= bytes) *below = fmax(*below, family->reread_bytes);
    if (family->reread_bytes >= bytes) *above = fmin(*above, family->reread_bytes);
  }
  if (*above >= INFINITY) *above = cold ? 0 : *below;
  if (!(*below > 0)) *below = least < INFINITY ? least : 0; /* fewer bytes than were measured */
}

static double measured_seconds(const tws_profile *profile, const tws_work *work, int threads, int busy,
                               double reread_bytes) {
  tws_work one;
  const double products = expert_products(profile, work, &one);
  if (products > 0) { /* all products are one launch */
    /* products of many rows were measured with weights in caches for a few shapes alone (saved_by_caches()) */
    const double again = tws_has_few_rows(&one) ? reread_bytes : 0;
    const double seconds = measured_seconds(profile, &one, threads, busy, again);
    return seconds < 0 ? seconds : products * fmax(seconds - profile->launch_s, 0) + profile->launch_s;
  }
  /* Find the best match by kernel and variant, then by threads; of equal ones, those with the closest numbers of bytes
   * that are read again and of busy ranks below and above. */
  closest_families c = {profile, work, tws_operator_of((tws_kernel)work->code)->like, threads, busy, INFINITY};
  for (size_t i = 0; i < profile->family_count; i++) c.far = fmin(c.far, mismatch_of(&c, &profile->families[i]));
  if (c.far >= INFINITY) return -1;
  const double cold = reread_bytes > 0 ? -1 : seconds_when_busy(&c, 0);
  if (cold >= 0) return cold;
  double below, above;
  closest_rereads(&c, reread_bytes > 0 ? reread_bytes : INFINITY, &below, &above);
  const double high_at = above > 0 ? above : profile->cold_bytes;
  if (!(reread_bytes > 0) || reread_bytes >= high_at) return seconds_when_busy(&c, above);
  const double low = seconds_when_busy(&c, below);
  if (reread_bytes <= below || high_at <= below) return low;
  return low * pow(seconds_when_busy(&c, above) / low, log(reread_bytes / below) / log(high_at / below));
}

/* ---- from published figures ---- */

/* Returns 1 if the product runs on a GPU's float32 cores instead of its tensor cores. Volta's tensor cores support only
 * 16-bit types; on later GPUs, float32 products are assumed to be computed in float32 and not in TF32. */
static int runs_on_cores(const tws_profile *profile, const tws_work *work) {
  return work->dtype == TWS_F32 && profile->generation > TWS_GENERATION_NONE;
}

/* Returns the seconds of `batch` matrix products [m, k] x [k, n] on a GPU, without memory traffic: the time with the
 * best tile and split of k, in whole waves of tiles over the multiprocessors, with a fixed cost per wave that grows
 * with the tile, and an efficiency that depends on the tile. The constants are fitted to published runs; see
 * docs/profiles.md. */
static double tiled_seconds(const tws_profile *profile, double batch, double m, double n, double k, double rate,
                            double bandwidth, double feed) {
  static const int tiles[][2] = {{256, 128}, {128, 256}, {256, 64}, {64, 256},
                                 {128, 128}, {128, 64},  {64, 128}, {64, 64}};
  double best = INFINITY;
  for (size_t t = 0; t < sizeof tiles / sizeof tiles[0]; t++) {
    double tm = tiles[t][0], tn = tiles[t][1];
    for (int split = 1; split <= 8; split *= 2) {
      /* parts of k below 256 do not fill the multiprocessor's pipeline */
      double part = split > 1 ? fmax(k / split, 256) : k;
      double waves = ceil(batch * ceil(m / tm) * ceil(n / tn) * split / profile->multiprocessors);
      double wave = 2 * tm * tn * part * tws_profile_tiled(tm, tn, feed) / rate +
                    profile->tile_overhead_s * sqrt(tm * tn / 32768);
      /* bytes of float32 partial sums per output, which are written and read */
      double partial = split > 1 ? 8.0 * split * batch * m * n / bandwidth : 0;
      best = fmin(best, waves * wave + partial);
    }
  }
  return best;
}

/* Returns the time of reading a tile's operands relative to the time of its products, divided by (1/m + 1/n). Tensor
 * cores wait for operands. Float32 cores, which are eight times slower, do not wait: 0; they reach 0.93 of the peak
 * (gpu_rate()). */
static double feed_of(const tws_profile *profile, const tws_work *work) {
  return runs_on_cores(profile, work) ? 0 : TWS_TILE_FEED;
}

/* Returns the FLOP/s that one multiprocessor reaches in matrix products. */
static double gpu_rate(const tws_profile *profile, const tws_work *work, double peak, int aligned) {
  const double share = runs_on_cores(profile, work) ? 0.93 : profile->matmul_efficiency;
  const double rate = share * peak / profile->multiprocessors;
  return work->dtype != TWS_F32 && !aligned ? rate * profile->misaligned : rate;
}

/* Returns the seconds of `count` equal matrix products in one launch. */
static double gpu_matmul_seconds(const tws_profile *profile, const tws_work *work, const matrix_product *p,
                                 double count, double peak, double bandwidth) {
  double m = p->m, n = p->n, k = p->k;
  if (p->result == OF_INPUT) { /* output [m, k], summed over n */
    double swap = n;
    n = k;
    k = swap;
  } else if (p->result == OF_WEIGHT) { /* output [n, k], summed over m */
    double swap = m;
    m = n;
    n = k;
    k = swap;
  }
  const double rate = gpu_rate(profile, work, peak, p->aligned), feed = feed_of(profile, work);
  /* products with a few vectors, as in decoding, have kernels without tiles */
  if (p->result == FORWARD && p->m <= 16)
    return fmax(2 * p->m * p->n * p->k * count * p->times / (rate * profile->multiprocessors),
                count * tws_work_bytes(work) / bandwidth);
  return fmax(tiled_seconds(profile, count * p->times, m, n, k, rate, bandwidth, feed),
              count * tws_work_bytes(work) / bandwidth);
}

/* Returns the seconds of matrix products. Convolutions are assumed to read patches directly from the input, as
 * libraries do; measured profiles contain the time of the kernels of this program. */
static double matmul_seconds(const tws_profile *profile, const tws_work *work, const matrix_product *p, double count,
                             double peak, double bandwidth) {
  if (profile->backend == TWS_BACKEND_CUDA && profile->multiprocessors > 0) {
    return gpu_matmul_seconds(profile, work, p, count, peak, bandwidth);
  }
  const double computing = tws_work_flops(work) / (profile->matmul_efficiency * peak),
               moving = tws_work_bytes(work) / bandwidth;
  /* If no engine of this program runs on the device, its published efficiency includes memory traffic, so the longer of
   * both times counts; a host's cores wait for memory, so the times add up. */
  return count * (profile->other ? fmax(computing, moving) : computing + moving);
}

/* Returns the seconds of attention that stores its scores in memory: batched products of complete squares, which
 * compute while they read and then write, and kernels over the scores between the products (mask, softmax, dropout).
 * The backward pass has four products, one of which writes scores; if scores are not saved for the backward pass, it
 * recomputes them first. */
static double unfused_seconds(const tws_profile *profile, const tws_work *work, double peak, double bandwidth) {
  const int64_t kv_seq = work->d[5] > 0 ? work->d[5] : work->d[1];
  double batch = (double)work->d[0] * (double)work->d[2], seq = (double)work->d[1], head = (double)work->d[4];
  double element = (double)tws_dtype_bytes((tws_dtype)work->dtype), key_seq = (double)kv_seq;
  double scores = batch * seq * key_seq, rows = batch * (seq + key_seq) / 2 * head;
  double rate = gpu_rate(profile, work, peak, work->d[1] % 8 == 0 && kv_seq % 8 == 0), feed = feed_of(profile, work);
  /* Batched products whose rows do not begin at multiples of 16 bytes run without tensor cores: at 14 TFLOP/s on an
   * A100 (BLOOM's heads of 150 elements), which is 0.72 of its float32 peak. */
  if (work->dtype != TWS_F32 && work->d[4] % 8 != 0)
    rate = fmin(rate, 0.72 * profile->peak[TWS_F32] / profile->multiprocessors);
  double writes =
      fmax(tiled_seconds(profile, batch, seq, key_seq, head, rate, bandwidth, feed), 2 * rows * element / bandwidth) +
      scores * element / bandwidth;
  double reads = fmax(tiled_seconds(profile, batch, seq, head, key_seq, rate, bandwidth, feed),
                      (scores + rows) * element / bandwidth) +
                 rows * element / bandwidth;
  double forward = writes + reads + scores * profile->score_bytes[0] / bandwidth + 3 * profile->launch_s;
  if (is_forward(work)) return forward;
  double backward = writes + 3 * reads + scores * profile->score_bytes[1] / bandwidth + 5 * profile->launch_s;
  return backward + (profile->scores_recomputed ? forward + profile->launch_s : 0);
}

static double attention_seconds(const tws_profile *profile, const tws_work *work, double peak, double bandwidth) {
  if (profile->attention_unfused) return unfused_seconds(profile, work, peak, bandwidth);
  /* length of a causal sequence in which the average query sees as many keys as in this work */
  const double rows = (double)work->d[0] * (double)work->d[2] * (double)work->d[1];
  double seq = fmax(2 * attention_pairs(work) / fmax(rows, 1) - 1, 1),
         rate = profile->attention_efficiency * peak * seq / (seq + profile->attention_half_length);
  if (!is_forward(work)) rate *= profile->attention_backward;
  if (work->dtype != TWS_F32 && work->d[4] % 8 != 0) rate *= profile->misaligned;
  return fmax(tws_work_flops(work) / rate, tws_work_bytes(work) / bandwidth);
}

/* Returns the bytes that casts before 8-bit products read and write: Transformer Engine reads an operand in 16 bits and
 * writes it twice, row-major and transposed (for the weight's gradient). That is 4 bytes per element of the input in
 * the forward pass, and of the output's gradient in the backward pass. */
static double cast_bytes(const tws_profile *profile, const tws_work *work) {
  tws_work one;
  /* with TWS_FP8 the plan contains the casts as operations */
  if (work->flags & TWS_FP8 || !(tws_profile_matmul_peak(profile, work) > 0)) return 0;
  const double experts = expert_products(profile, work, &one);
  if (experts > 0) return experts * cast_bytes(profile, &one);
  const double each = tws_profile_cast_bytes(profile, 0);
  if (work->code == TWS_KERNEL_LINEAR)
    return each * (double)work->d[0] * (double)work->d[2] +
           tws_profile_cast_bytes(profile, 1) * (double)work->d[1] * (double)work->d[2];
  if (work->code == TWS_KERNEL_LINEAR_GRAD_INPUT) return each * (double)work->d[0] * (double)work->d[1];
  return 0;
}

/* Returns the bytes that other software reads and writes, in addition to the plan's operations, to add bf16 gradients
 * of weights and of an embedding to float32 gradients. */
static double accumulated_bytes(const tws_profile *profile, const tws_work *work) {
  tws_work one;
  matrix_product p;
  if (!(profile->accumulates_bytes > 0) || work->dtype != TWS_BF16 || work->dtype2 != TWS_BF16) return 0;
  if (work->code == TWS_KERNEL_EMBEDDING_GRAD)
    return profile->accumulates_bytes * (double)work->d[1] * (double)work->d[2];
  const double experts = expert_products(profile, work, &one);
  if (!product_of(experts > 0 ? &one : work, &p) || p.result != OF_WEIGHT) return 0;
  return profile->accumulates_bytes * fmax(experts, 1) * p.times * p.n * p.k;
}

/* Returns the seconds of dispatch and combine as matrix products with one-hot matrices of tokens x slots, as
 * DeepSpeed's layer implements them. Forward, such a matrix is computed in float32, compared with 0, cast and read, and
 * cast again for the combine; backward, the gradient of the weights is such a matrix too, in 16 bits, cast and read
 * twice. */
static double one_hot_seconds(const tws_profile *profile, const tws_work *work, double peak, double bandwidth) {
  static const struct {
    tws_kernel of;
    int bytes, to_slots, products;
  } ways[] = {{TWS_KERNEL_DISPATCH, 14, 1, 1},
              {TWS_KERNEL_COMBINE, 8, 0, 1},
              {TWS_KERNEL_DISPATCH_GRAD, 2, 0, 1},
              {TWS_KERNEL_COMBINE_GRAD, 18, 1, 2}};
  const double tokens = (double)work->d[0], width = (double)work->d[1], slots = (double)(work->d[2] * work->d[4]);
  size_t at = 0;
  if (!profile->one_hot_experts || profile->multiprocessors < 1) return 0;
  while (at < sizeof ways / sizeof *ways && ways[at].of != work->code) at++;
  if (at == sizeof ways / sizeof *ways) return 0;
  const double rate = gpu_rate(profile, work, peak, (work->d[2] * work->d[4]) % 8 == 0 && work->d[1] % 8 == 0);
  const double feed = feed_of(profile, work);
  double seconds = ways[at].to_slots ? tiled_seconds(profile, 1, slots, width, tokens, rate, bandwidth, feed)
                                     : tiled_seconds(profile, 1, tokens, width, slots, rate, bandwidth, feed);
  if (ways[at].products > 1) seconds += tiled_seconds(profile, 1, tokens, slots, width, rate, bandwidth, feed);
  return seconds + ways[at].bytes * tokens * slots / bandwidth;
}

/* Returns the seconds by which other software takes longer than a plan's kernel to move tokens to experts and back; 0
 * for kernels that do not do so. */
static double routed_seconds(const tws_profile *profile, const tws_work *work, double bandwidth) {
  const tws_runtime *runtime = tws_profile_runtime(profile);
  const int code = work->code, begins = code == TWS_KERNEL_DISPATCH || code == TWS_KERNEL_COMBINE_GRAD;
  if (code == TWS_KERNEL_SWIGLU) return profile->gate_s;
  if (!begins && code != TWS_KERNEL_COMBINE && code != TWS_KERNEL_DISPATCH_GRAD) return 0;
  const int narrow = tws_profile_matmul_peak(profile, work) > 0;
  return runtime->routed_bytes[narrow] * tws_work_elements(work) / bandwidth + (begins ? runtime->route_s : 0);
}

/* Returns the seconds of one kernel from published figures. */
static double published_seconds(const tws_profile *profile, const tws_work *work, int threads, double bandwidth) {
  double peak = tws_profile_peak_flops(profile, (tws_dtype)work->dtype) * threads;
  const double narrow_peak = tws_profile_matmul_peak(profile, work);
  double seconds;
  tws_work one;
  matrix_product p;
  const double products = expert_products(profile, work, &one);
  const tws_work *product = products > 0 ? &one : work;
  /* the runtime's factor is divided out, since newer libraries have not made grouped products faster */
  if (products > 0 && profile->product_factor > 1 && !(narrow_peak > 0)) peak /= profile->product_factor;
  if (product_of(product, &p))
    seconds = matmul_seconds(profile, product, &p, products > 0 ? products : 1,
                             narrow_peak > 0 ? narrow_peak * threads : peak, bandwidth);
  else if (is_attention(work))
    seconds = attention_seconds(profile, work, peak, bandwidth);
  else
    seconds = tws_work_bytes(work) / bandwidth;
  const double added = profile->added_bytes[work->code] * tws_work_elements(work) + cast_bytes(profile, work) +
                       accumulated_bytes(profile, work);
  seconds += routed_seconds(profile, work, bandwidth);
  return seconds + added / bandwidth + profile->launch_s + one_hot_seconds(profile, work, peak, bandwidth);
}

/* Splits the work of a fused kernel into those that a program without the fusion would run: returns the work of the
 * main kernel, and writes that of the second kernel to *other. */
static tws_work without_other(const tws_work *work, tws_work *other) {
  tws_work alone = *work;
  alone.flags &= ~(uint32_t)FUSED;
  *other = (tws_work){.dtype = work->dtype, .dtype2 = work->dtype};
  other->code = work->code == TWS_KERNEL_NORM     ? TWS_KERNEL_ADD
                : work->code == TWS_KERNEL_LINEAR ? TWS_KERNEL_GELU
                                                  : TWS_KERNEL_GELU_GRAD;
  other->d[0] = work->d[0] * work->d[work->code == TWS_KERNEL_LINEAR_GRAD_INPUT ? 2 : 1];
  return alone;
}

static double kernel_seconds(const tws_profile *profile, const tws_work *work, int threads, int busy,
                             double reread_bytes) {
  if (work->kind != 0 || work->code >= TWS_KERNEL_COUNT) return 0;
  if (threads < 1 || profile->backend == TWS_BACKEND_CUDA) threads = 1;
  if (busy < 1 || profile->backend == TWS_BACKEND_CUDA) busy = 1;
  const tws_operator *row = tws_operator_of((tws_kernel)work->code);
  for (int i = 0; i < row->dims; i++) {
    if (work->d[i] < row->least[i]) return profile->launch_s; /* an empty work costs only its launch */
  }
  double measured =
      profile->unfused && work->flags & FUSED ? -1 : measured_seconds(profile, work, threads, busy, reread_bytes);
  if (measured >= 0) return measured;
  double bandwidth = profile->bandwidth;
  if (profile->node_bandwidth > 0) bandwidth = fmin(bandwidth, profile->node_bandwidth / busy);
  bandwidth *= profile->bandwidth_efficiency;
  if (!(work->flags & FUSED)) return published_seconds(profile, work, threads, bandwidth);
  tws_work other, alone = without_other(work, &other);
  double seconds = kernel_seconds(profile, &alone, threads, busy, reread_bytes);
  /* on a GPU, fusion saves the second kernel's launch and the traffic between both kernels; on a host these data are in
   * caches */
  if (profile->unfused || profile->backend == TWS_BACKEND_HOST)
    return seconds + kernel_seconds(profile, &other, threads, busy, reread_bytes);
  return seconds + (tws_work_bytes(work) - tws_work_bytes(&alone)) / bandwidth;
}

double tws_kernel_seconds(const tws_profile *profile, const tws_work *work, int threads, int busy) {
  return tws_kernel_seconds_rereading(profile, work, threads, busy, 0);
}

/* Returns the seconds by which a product of more rows than TWS_FEW_ROWS is shorter because caches hold its weight: as
 * many as the product of the most rows that was measured with its weight in caches, and with no more rows than this
 * one has, is shorter. If only products of few rows were measured so, this is one of one row, which takes as long as
 * reading the weight. All of them read the weight once. A product of more rows takes at least the seconds of that
 * product with its weight in caches, also where noise made it the shorter one of the two. */
static double saved_by_caches(const tws_profile *profile, const tws_work *work, int threads, int busy,
                              double reread_bytes, double seconds) {
  if (work->code != TWS_KERNEL_LINEAR || tws_has_few_rows(work) || !(reread_bytes > 0)) return 0;
  if (reread_bytes >= profile->cold_bytes) return 0;
  tws_work fewer = *work;
  if (profile->reread_rows <= TWS_FEW_ROWS)
    fewer.d[0] = 1;
  else if (fewer.d[0] > profile->reread_rows)
    fewer.d[0] = profile->reread_rows;
  fewer.flags &= ~(uint32_t)FUSED;
  const double cold = kernel_seconds(profile, &fewer, threads, busy, 0),
               warm = kernel_seconds(profile, &fewer, threads, busy, reread_bytes);
  return fmax(fmin(cold, seconds) - warm, 0);
}

double tws_kernel_seconds_rereading(const tws_profile *profile, const tws_work *work, int threads, int busy,
                                    double reread_bytes) {
  const int many_rows = work->code == TWS_KERNEL_LINEAR && !tws_has_few_rows(work);
  double seconds = kernel_seconds(profile, work, threads, busy, many_rows ? 0 : reread_bytes);
  seconds -= saved_by_caches(profile, work, threads, busy, reread_bytes, seconds);
  if (work->code >= TWS_KERNEL_COUNT) return seconds;
  const double factor = profile->correction.kernel[work->code];
  return seconds * (factor > 0 ? factor : 1) * tws_profile_scale(profile, tws_kernel_scale((tws_kernel)work->code));
}

tws_scale tws_kernel_scale(tws_kernel kernel) {
  const tws_work work = {.code = (uint8_t)kernel};
  matrix_product p;
  const int experts = kernel >= TWS_KERNEL_EXPERT_LINEAR && kernel <= TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT;
  return experts || product_of(&work, &p) || is_attention(&work) ? TWS_SCALE_PRODUCTS : TWS_SCALE_MEMORY;
}

double tws_profile_product_rate(const tws_profile *profile, int64_t m, int64_t n, int64_t k, tws_dtype dtype,
                                int threads, int busy) {
  tws_work work = {.code = TWS_KERNEL_LINEAR, .dtype = (uint8_t)dtype, .dtype2 = (uint8_t)dtype, .d = {m, n, k}};
  return tws_work_flops(&work) / tws_kernel_seconds(profile, &work, threads, busy);
}
