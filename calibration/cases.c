#include "calibration/cases.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/few_rows.h"
#include "models/operator.h"

tws_code tws_case_add(tws_case_list *list, const tws_work *work, tws_error *err) {
  for (size_t i = 0; i < list->count; i++)
    if (memcmp(&list->items[i], work, sizeof *work) == 0) return TWS_OK;
  if (tws_reserve(&list->items, &list->capacity, list->count + 1, sizeof *list->items))
    return tws_fail(err, TWS_MEMORY, 0, "no memory for the list of kernels to measure");
  list->items[list->count++] = *work;
  return TWS_OK;
}

static tws_work start_case(tws_kernel kernel, tws_dtype dtype) {
  tws_work work;
  memset(&work, 0, sizeof work);
  work.code = (uint8_t)kernel;
  work.dtype = (uint8_t)dtype;
  work.dtype2 = (uint8_t)dtype;
  return work;
}

/* Adds the three matrix products (output, gradient of the input, gradient of the weights) of a linear layer of tokens x
 * outputs x inputs. If `odd` is 0, which callers set for every other shape, the layer has a bias, and the gradient of
 * the weights is added to existing values. If one of inputs and outputs is three to four times the other, as in an MLP,
 * the product with a fused activation is added, too. */
static tws_code linear_case(tws_dtype dtype, const int64_t d[3], int odd, double limit, tws_case_list *list,
                            tws_error *err) {
  static const tws_kernel kernels[] = {TWS_KERNEL_LINEAR, TWS_KERNEL_LINEAR_GRAD_INPUT, TWS_KERNEL_LINEAR_GRAD_WEIGHT};
  for (int kernel = 0; kernel < 3; kernel++) {
    tws_work work = start_case(kernels[kernel], dtype);
    for (int i = 0; i < 3; i++) work.d[i] = d[i];
    if (!odd && kernel != 1) work.flags = kernel == 2 ? TWS_BIAS | TWS_ACCUMULATE : TWS_BIAS;
    if (tws_work_flops(&work) <= limit) TWS_TRY(tws_case_add(list, &work, err));
    const int64_t wide = kernel == 0 ? d[1] : d[2], narrow = kernel == 0 ? d[2] : d[1];
    if (kernel == 2 || wide < 3 * narrow || wide > 4 * narrow) continue;
    work.flags = TWS_GELU | (kernel == 0 ? TWS_BIAS : odd ? 0 : TWS_SUMS);
    if (tws_work_flops(&work) <= limit) TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

typedef struct linear_grid {
  int64_t tokens[6], sizes[8]; /* lists that end with 0 */
  double limit;                /* largest number of flops of a product */
} linear_grid;

static tws_code linear_cases(tws_dtype dtype, const linear_grid *grid, tws_case_list *list, tws_error *err) {
  for (int i = 0; grid->tokens[i]; i++)
    for (int j = 0; grid->sizes[j]; j++)
      for (int k = 0; grid->sizes[k]; k++) {
        const int64_t d[3] = {grid->tokens[i], grid->sizes[j], grid->sizes[k]};
        TWS_TRY(linear_case(dtype, d, (i + j + k) % 2, grid->limit, list, err));
      }
  return TWS_OK;
}

/* Matrix products whose time depends on the cache that holds the weight: rows from `first` in steps of `factor` to
 * `last`, and the sizes of weights, of which a quick calibration has the first `quick`. The first `fused` of them are
 * also measured with bias and GELU. */
typedef struct row_products {
  int64_t first, last, factor;
  int count, quick, fused;
  int64_t sizes[14][2];
} row_products;

static tws_code add_row_products(const row_products *r, tws_dtype dtype, int quick, tws_case_list *list,
                                 tws_error *err) {
  for (int64_t rows = r->first; rows <= r->last; rows *= r->factor)
    for (int i = 0; i < (quick ? r->quick : r->count); i++) {
      tws_work work = start_case(TWS_KERNEL_LINEAR, dtype);
      work.d[0] = rows;
      work.d[1] = r->sizes[i][0];
      work.d[2] = r->sizes[i][1];
      TWS_TRY(tws_case_add(list, &work, err));
      if (i >= r->fused) continue;
      work.flags = TWS_BIAS | TWS_GELU;
      TWS_TRY(tws_case_add(list, &work, err));
    }
  return TWS_OK;
}

/* Adds the matrix products of small and medium-sized models on CPUs. */
static tws_code host_linear_cases(tws_dtype dtype, int quick, tws_case_list *list, tws_error *err) {
  static const linear_grid whole = {{16, 64, 256, 1024, 4096}, {64, 192, 768, 3072}, 4e9},
                           coarse = {{16, 64, 256, 1024}, {96, 384, 1536}, 0.7e9};
  /* a few tokens that are decoded: from the size of one head's weight to that of a vocabulary */
  static const row_products decoded = {1,
                                       TWS_FEW_ROWS,
                                       2,
                                       14,
                                       7,
                                       3,
                                       {{64, 64},
                                        {1024, 256},
                                        {256, 1024},
                                        {1024, 1024},
                                        {4096, 2048},
                                        {768, 768},
                                        {512, 64},
                                        {256, 256},
                                        {2048, 4096},
                                        {32768, 768},
                                        {3072, 768},
                                        {768, 3072},
                                        {8192, 256},
                                        {16384, 1024}}};
  /* a short prompt */
  static const row_products prompts = {
      16,
      TWS_REREAD_ROWS,
      4,
      8,
      3,
      0,
      {{64, 64}, {1024, 256}, {256, 1024}, {768, 768}, {256, 256}, {512, 64}, {64, 256}, {1024, 1024}}};
  TWS_TRY(add_row_products(&decoded, dtype, quick, list, err));
  TWS_TRY(add_row_products(&prompts, dtype, quick, list, err));
  return linear_cases(dtype, quick ? &coarse : &whole, list, err);
}

/* Adds the matrix products of `grid` in 8-bit floating point. A device without 8-bit kernels refuses them, and they are
 * skipped. Biases, activations and accumulation cost as much as with 16 bits. */
static tws_code float8_cases(const linear_grid *grid, tws_case_list *list, tws_error *err) {
  for (int i = 0; grid->tokens[i]; i++)
    for (int j = 0; grid->sizes[j]; j++)
      for (int k = 0; grid->sizes[k]; k++)
        for (int kernel = TWS_KERNEL_LINEAR; kernel <= TWS_KERNEL_LINEAR_GRAD_WEIGHT; kernel++) {
          tws_work work = start_case((tws_kernel)kernel, TWS_BF16);
          work.flags = TWS_FP8;
          work.d[0] = grid->tokens[i], work.d[1] = grid->sizes[j], work.d[2] = grid->sizes[k];
          if (tws_work_flops(&work) <= grid->limit) TWS_TRY(tws_case_add(list, &work, err));
        }
  return TWS_OK;
}

/* Adds the matrix products, in layers and for logits, of models with a hundred million to some billions of parameters.
 * Each product takes at most one or two milliseconds. Float32 gets fewer shapes, because it is slower. A few seconds
 * suffice to measure all shapes. */
static tws_code device_linear_cases(tws_dtype dtype, int quick, tws_case_list *list, tws_error *err) {
  static const linear_grid half = {{8192, 1024, 32768, 4096, 16384}, {768, 1280, 2048, 3072, 5120, 8192}, 1e12},
                           coarse = {{1024, 8192}, {768, 2048, 5120}, 5e11}, small = {{128}, {64, 256, 768}, 1e12},
                           single = {{1024, 4096}, {768, 2048, 5120}, 2e11};
  static const int64_t logits[][3] = {
      {4096, 50304, 768}, {8192, 128256, 2048}, {16384, 50304, 768}, {8192, 50304, 1600}};
  static const linear_grid eight[] = {
      {{128}, {64, 256}, 1e12}, {{8192}, {768, 2048, 5120}, 1e12}, {{1024, 32768}, {768, 2048, 5120}, 1e12}};
  const int is_single = dtype == TWS_F32;
  TWS_TRY(linear_cases(dtype, &small, list, err));
  for (int i = 0; i < 2 && !is_single; i++)
    /* large products are measured, too, so that their times need not be extrapolated */
    TWS_TRY(float8_cases(&eight[i], list, err));
  TWS_TRY(linear_cases(dtype, is_single ? &single : quick ? &coarse : &half, list, err));
  for (int i = 0; i < (quick || is_single ? 1 : 4); i++)
    for (int odd = 1; odd >= (i == 0 ? 0 : 1); odd--) TWS_TRY(linear_case(dtype, logits[i], odd, 1e13, list, err));
  return quick || is_single ? TWS_OK : float8_cases(&eight[2], list, err);
}

static tws_code host_attention_cases(tws_dtype dtype, int quick, tws_case_list *list, tws_error *err) {
  static const int64_t sequences[] = {32, 64, 128, 256, 512, 1024, 2048}, head_sizes[] = {16, 32, 64, 128};
  double limit = quick ? 0.3e9 : 1.2e9;
  for (int backward = 0; backward < 2; backward++)
    for (int i = 0; i < 7; i++)
      for (int j = quick ? 1 : 0; j < (quick ? 3 : 4); j++)
        for (int heads = 2; heads <= 8; heads *= 4) {
          if (quick && (i % 2 == 0) != (heads == 8)) continue;
          tws_work work = start_case(backward ? TWS_KERNEL_ATTENTION_GRAD : TWS_KERNEL_ATTENTION, dtype);
          work.d[0] = sequences[i] < 256 ? 4 : 1;
          work.d[1] = sequences[i];
          work.d[2] = work.d[3] = heads;
          work.d[4] = head_sizes[j];
          if (heads == 8 && j == 2) work.d[3] = 2; /* some shapes have grouped queries */
          if (tws_work_flops(&work) <= limit) TWS_TRY(tws_case_add(list, &work, err));
        }
  return TWS_OK;
}

/* Adds only a few shapes, since the attention library takes up to a second to prepare each. Float32, for which it has
 * no fast kernels, is measured last. */
static tws_code device_attention_cases(tws_dtype dtype, int quick, tws_case_list *list, tws_error *err) {
  static const int64_t shapes[][5] = {{2, 64, 2, 2, 32},      {2, 1024, 12, 12, 64}, {4, 1024, 32, 8, 64},
                                      {8, 1024, 20, 20, 64},  {32, 256, 12, 12, 64}, {2, 4096, 12, 12, 64},
                                      {32, 1024, 12, 12, 64}, {8, 2048, 32, 8, 64},  {4, 1024, 16, 16, 128},
                                      {2, 4096, 32, 8, 128},  {16, 512, 16, 4, 128}, {16, 1024, 16, 16, 64}};
  const int count = quick || dtype == TWS_F32 ? 3 : (int)(sizeof shapes / sizeof *shapes);
  for (int backward = 0; backward < 2; backward++)
    for (int i = 0; i < count; i++) {
      tws_work work = start_case(backward ? TWS_KERNEL_ATTENTION_GRAD : TWS_KERNEL_ATTENTION, dtype);
      for (int j = 0; j < 5; j++) work.d[j] = shapes[i][j];
      TWS_TRY(tws_case_add(list, &work, err));
    }
  return TWS_OK;
}

/* Sizes that all measured shapes share: number of vocabulary entries, tokens of a sequence, elements of a head. */
typedef struct model_scale {
  int64_t vocabulary, sequence, head;
} model_scale;

/* Adds the element-wise and norm kernels on matrices of tokens x width. */
static tws_code plane_cases(tws_dtype dtype, const model_scale *scale, int64_t tokens, int64_t width,
                            tws_case_list *list, tws_error *err) {
  const int64_t seq = tokens < scale->sequence ? tokens : scale->sequence;
  const int64_t head = width < scale->head ? width : scale->head, heads = width / head;
  for (int rms = 0; rms < 2; rms++)
    for (int backward = 0; backward < 2; backward++) {
      tws_work work = start_case(backward ? TWS_KERNEL_NORM_GRAD : TWS_KERNEL_NORM, dtype);
      work.flags = rms ? TWS_RMS : TWS_BIAS;
      /* The gradient is added to the gradient of the residual connection, which exists already. */
      if (backward) work.flags |= TWS_ACCUMULATE;
      work.d[0] = tokens;
      work.d[1] = width;
      work.f[0] = 1e-5;
      TWS_TRY(tws_case_add(list, &work, err));
      if (backward && rms) continue;
      /* LayerNorm: sums for the bias gradient; a fused residual addition, too, since layers after an RMSNorm seldom
       * have biases */
      work.flags |= backward ? TWS_SUMS : TWS_RESIDUAL;
      TWS_TRY(tws_case_add(list, &work, err));
    }
  for (int kernel = TWS_KERNEL_EMBEDDING_ROWS; kernel <= TWS_KERNEL_ADD_ROWS; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    work.d[0] = tokens;
    work.d[1] = width;
    work.d[2] = scale->vocabulary;
    if (kernel == TWS_KERNEL_ADD_ROWS) work.d[3] = 1;
    TWS_TRY(tws_case_add(list, &work, err));
  }
  for (int kernel = TWS_KERNEL_EMBEDDING; kernel <= TWS_KERNEL_POSITION_GRAD; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    work.d[0] = tokens;
    work.d[1] = width;
    work.d[2] = kernel == TWS_KERNEL_POSITION_GRAD ? seq : scale->vocabulary;
    work.d[3] = seq;
    if (kernel == TWS_KERNEL_EMBEDDING) work.d[4] = seq;
    if (kernel == TWS_KERNEL_EMBEDDING_GRAD) work.d[3] = 0;
    TWS_TRY(tws_case_add(list, &work, err));
  }
  for (int backward = 0; backward < 2; backward++) {
    tws_work rope = start_case(backward ? TWS_KERNEL_ROPE_GRAD : TWS_KERNEL_ROPE, dtype);
    rope.d[0] = tokens;
    rope.d[1] = rope.d[2] = heads;
    rope.d[3] = head;
    rope.d[4] = seq;
    rope.f[0] = 10000;
    TWS_TRY(tws_case_add(list, &rope, err));
    tws_work norm = start_case(backward ? TWS_KERNEL_HEADS_NORM_GRAD : TWS_KERNEL_HEADS_NORM, dtype);
    memcpy(norm.d, rope.d, 4 * sizeof *rope.d);
    norm.f[0] = 1e-5;
    TWS_TRY(tws_case_add(list, &norm, err));
    for (int gelu = 0; gelu < 2; gelu++) {
      const tws_kernel gates[2][2] = {{TWS_KERNEL_SWIGLU, TWS_KERNEL_SWIGLU_GRAD},
                                      {TWS_KERNEL_GEGLU, TWS_KERNEL_GEGLU_GRAD}};
      tws_work gated = start_case(gates[gelu][backward], dtype);
      gated.d[0] = tokens;
      gated.d[1] = width;
      TWS_TRY(tws_case_add(list, &gated, err));
    }
  }
  tws_work polynomial = start_case(TWS_KERNEL_NEWTON_SCHULZ, TWS_F32);
  polynomial.d[0] = polynomial.d[1] = width;
  polynomial.f[0] = 1;
  return tws_case_add(list, &polynomial, err);
}

/* Adds the kernels of losses over tokens x (padded) vocabulary, or over a vocabulary-parallel shard of it. */
static tws_code loss_cases(tws_dtype dtype, int64_t tokens, int64_t width, tws_case_list *list, tws_error *err) {
  static const tws_kernel kernels[] = {TWS_KERNEL_CROSS_ENTROPY, TWS_KERNEL_VOCABULARY_STATS,
                                       TWS_KERNEL_VOCABULARY_LOSS, TWS_KERNEL_BINARY_CROSS_ENTROPY,
                                       TWS_KERNEL_MEAN_SQUARED_ERROR};
  const int64_t ranks = 2;
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
    tws_work loss = start_case(kernels[i], dtype);
    loss.d[0] = tokens;
    loss.d[1] = loss.d[2] = width;
    if (kernels[i] == TWS_KERNEL_VOCABULARY_LOSS) loss.d[3] = ranks;
    TWS_TRY(tws_case_add(list, &loss, err));
  }
  return TWS_OK;
}

/* Adds the kernels that reorder matrices of tokens x width for collectives, and casts to 8 bits. */
static tws_code exchange_cases(tws_dtype dtype, int64_t tokens, int64_t width, tws_case_list *list, tws_error *err) {
  const int64_t ranks = 2, head = width < 64 ? width / 2 : 32, heads = width / head;
  tws_work transpose = start_case(TWS_KERNEL_TRANSPOSE, dtype);
  transpose.d[0] = ranks;
  transpose.d[1] = tokens / ranks;
  transpose.d[2] = width;
  TWS_TRY(tws_case_add(list, &transpose, err));
  tws_work codes = start_case(TWS_KERNEL_QUANTIZE, dtype);
  codes.dtype2 = TWS_E4M3;
  codes.flags = tws_operator_of(TWS_KERNEL_QUANTIZE)->measured_flags;
  codes.d[0] = tokens;
  codes.d[1] = width;
  TWS_TRY(tws_case_add(list, &codes, err));
  tws_work sums = start_case(TWS_KERNEL_QUANTIZE_SUM, dtype);
  sums.flags = tws_operator_of(TWS_KERNEL_QUANTIZE_SUM)->measured_flags;
  sums.d[0] = tokens;
  sums.d[1] = width;
  TWS_TRY(tws_case_add(list, &sums, err));
  tws_work turned = start_case(TWS_KERNEL_TRANSPOSE_CODES, dtype);
  turned.d[0] = tokens;
  turned.d[1] = width;
  TWS_TRY(tws_case_add(list, &turned, err));
  for (int kernel = TWS_KERNEL_HEADS_PACK; kernel <= TWS_KERNEL_HEADS_UNPACK; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    work.d[0] = tokens;
    work.d[1] = ranks;
    work.d[2] = work.d[3] = heads;
    work.d[4] = head;
    TWS_TRY(tws_case_add(list, &work, err));
  }
  for (int kernel = TWS_KERNEL_HEADS_SPLIT; kernel <= TWS_KERNEL_HEADS_JOIN; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    work.d[0] = tokens;
    work.d[1] = work.d[2] = heads;
    work.d[3] = head;
    TWS_TRY(tws_case_add(list, &work, err));
  }
  tws_work merge = start_case(TWS_KERNEL_ATTENTION_MERGE, dtype);
  merge.d[0] = 1;
  merge.d[1] = merge.d[4] = tokens;
  merge.d[2] = heads;
  merge.d[3] = head;
  return tws_case_add(list, &merge, err);
}

/* Adds the kernels of a mixture of experts on matrices of tokens x width: top-2 of eight experts with all slots filled.
 * Matrix products of experts cost as much as those of dense layers, so narrow ones suffice. */
static tws_code expert_cases(tws_dtype dtype, int64_t tokens, int64_t width, tws_case_list *list, tws_error *err) {
  const int64_t experts = 8, choices = 2, slots = (tokens * choices + experts - 1) / experts;
  for (int kernel = TWS_KERNEL_ROUTER; kernel <= TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT; kernel++) {
    /* The kernels between those of experts are added by latent_cases(), count_cases() and inference_cases(). */
    if (kernel >= TWS_KERNEL_LATENT && kernel < TWS_KERNEL_EXPERT_LINEAR) continue;
    const int64_t routes[] = {tokens, experts, choices, slots}, rows[] = {tokens, width, experts, choices, slots};
    const int64_t narrow = width < 128 ? width : 128, products[] = {1, experts, slots, narrow, narrow};
    tws_work work = start_case((tws_kernel)kernel, dtype);
    if (kernel <= TWS_KERNEL_ROUTER_GRAD)
      memcpy(work.d, routes, sizeof routes);
    else if (kernel < TWS_KERNEL_EXPERT_LINEAR)
      memcpy(work.d, rows, sizeof rows);
    else
      memcpy(work.d, products, sizeof products);
    TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

/* Adds the kernels of multi-head latent attention with rotary embedding of half of each head, of gated activations on
 * the halves of two blocks, and of low-rank adapters. */
static tws_code latent_cases(tws_dtype dtype, const model_scale *scale, int64_t tokens, int64_t width,
                             tws_case_list *list, tws_error *err) {
  const int64_t seq = tokens < scale->sequence ? tokens : scale->sequence;
  const int64_t head = width < scale->head ? width : scale->head, half = head / 2;
  const int64_t latent[] = {tokens, width / head, half, half, half, width / 2, seq},
                parts[] = {tokens, 2, width / 2, width / 4}, adapters[] = {tokens, 16, width, width, width, 0, 1, 0};
  for (int kernel = TWS_KERNEL_LATENT; kernel <= TWS_KERNEL_LOW_RANK_GRAD_WEIGHT; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    if (kernel < TWS_KERNEL_PART) {
      memcpy(work.d, latent, sizeof latent);
      tws_work_set_parameter(&work, "theta", 10000);
    } else if (kernel >= TWS_KERNEL_LOW_RANK) {
      memcpy(work.d, adapters, sizeof adapters);
    } else {
      memcpy(work.d, parts, sizeof parts);
    }
    TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

/* Adds the kernels of inference: of a cache of keys and values, and of one of compressed rows, for `tokens` tokens of
 * one sequence, of which attention reads all for one more token, and a product with weights of 8 bits for that token.
 * */
static tws_code inference_cases(tws_dtype dtype, const model_scale *scale, int64_t tokens, int64_t width,
                                tws_case_list *list, tws_error *err) {
  const int64_t head = width < scale->head ? width : scale->head, heads = width / head;
  tws_work filled = start_case(TWS_KERNEL_CACHE_WRITE, dtype);
  const int64_t text[] = {1, tokens, heads, heads, head, tokens}, token[] = {1, 1, heads, heads, head, tokens, 0, 0};
  memcpy(filled.d, text, sizeof text);
  filled.dtype2 = (uint8_t)dtype;
  TWS_TRY(tws_case_add(list, &filled, err));
  tws_work read = start_case(TWS_KERNEL_CACHED_ATTENTION, dtype);
  memcpy(read.d, token, sizeof token);
  read.dtype2 = (uint8_t)dtype;
  TWS_TRY(tws_case_add(list, &read, err));
  tws_work rows = start_case(TWS_KERNEL_LATENT_WRITE, dtype), latent = start_case(TWS_KERNEL_LATENT_ATTENTION, dtype);
  const int64_t half = head / 2, compressed[] = {1, tokens, width / 2, half, tokens},
                absorbed[] = {1, 1, heads, half, half, half, width / 2, tokens};
  memcpy(rows.d, compressed, sizeof compressed);
  memcpy(latent.d, absorbed, sizeof absorbed);
  tws_work_set_parameter(&rows, "theta", 10000);
  tws_work_set_parameter(&latent, "theta", 10000);
  TWS_TRY(tws_case_add(list, &rows, err));
  TWS_TRY(tws_case_add(list, &latent, err));
  tws_work coded = start_case(TWS_KERNEL_CODED_LINEAR, dtype);
  const int64_t product[] = {1, width, width, 64, 8};
  memcpy(coded.d, product, sizeof product);
  return tws_case_add(list, &coded, err);
}

/* Adds attention of one new token of each sequence to the key-value cache on CPUs, where flops and exponentials take as
 * much time as reading. Shapes are sequences, heads, key-value heads, elements of a head, positions. */
static tws_code cached_cases(tws_dtype dtype, int quick, tws_case_list *list, tws_error *err) {
  static const int64_t shapes[][5] = {{1, 4, 4, 16, 32},   {1, 8, 8, 64, 128},   {4, 8, 4, 32, 128},
                                      {1, 32, 8, 64, 512}, {4, 16, 16, 64, 64},  {1, 12, 12, 64, 64},
                                      {2, 8, 2, 64, 256},  {8, 8, 8, 64, 256},   {1, 6, 6, 64, 512},
                                      {2, 14, 2, 64, 64},  {1, 16, 4, 128, 256}, {1, 32, 8, 128, 2048}};
  for (int i = 0; i < (quick ? 6 : 12); i++) {
    const int64_t *s = shapes[i], sizes[] = {s[0], 1, s[1], s[2], s[3], s[4], 0, 0};
    tws_work work = start_case(TWS_KERNEL_CACHED_ATTENTION, dtype);
    memcpy(work.d, sizes, sizeof sizes);
    TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

/* Adds the other kernels of a decode of one token, of a narrow and of a wide model: they take a part of a microsecond,
 * which is not in proportion to that of many tokens. */
static tws_code token_cases(tws_dtype dtype, tws_case_list *list, tws_error *err) {
  static const int64_t widths[] = {64, 1024};
  for (int i = 0; i < 2; i++) {
    const int64_t width = widths[i], head = 32, heads = width / head;
    for (int variant = 0; variant < 4; variant++) {
      tws_work norm = start_case(TWS_KERNEL_NORM, dtype);
      norm.flags = (variant % 2 ? TWS_RMS : TWS_BIAS) | (variant / 2 ? TWS_RESIDUAL : 0);
      norm.d[0] = 1, norm.d[1] = width;
      norm.f[0] = 1e-5;
      TWS_TRY(tws_case_add(list, &norm, err));
    }
    tws_work rows = start_case(TWS_KERNEL_EMBEDDING, dtype), rope = start_case(TWS_KERNEL_ROPE, dtype);
    tws_work gate = start_case(TWS_KERNEL_SWIGLU, dtype), cache = start_case(TWS_KERNEL_CACHE_WRITE, dtype);
    const int64_t row[] = {1, width, 512, 1, 1}, turned[] = {1, heads, heads, head, 1},
                  written[] = {1, 1, heads, heads, head, 64};
    memcpy(rows.d, row, sizeof row);
    memcpy(rope.d, turned, sizeof turned);
    rope.f[0] = 10000;
    gate.d[0] = 1, gate.d[1] = width;
    memcpy(cache.d, written, sizeof written);
    const tws_work *works[] = {&rows, &rope, &gate, &cache};
    for (int k = 0; k < 4; k++) TWS_TRY(tws_case_add(list, works[k], err));
  }
  return TWS_OK;
}

/* Adds disentangled attention as in DeBERTa's second version, with the 512 rows of relative positions that 256 buckets
 * need. */
static tws_code disentangled_cases(tws_dtype dtype, const model_scale *scale, int64_t tokens, int64_t width,
                                   tws_case_list *list, tws_error *err) {
  const int64_t longest = scale->sequence < 512 ? scale->sequence : 512, seq = tokens < longest ? tokens : longest;
  const int64_t head = width < scale->head ? width : scale->head;
  for (int kernel = TWS_KERNEL_DISENTANGLED; kernel <= TWS_KERNEL_DISENTANGLED_GRAD; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    const int64_t sizes[] = {tokens / seq, seq, width / head, 512, head};
    memcpy(work.d, sizes, sizeof sizes);
    tws_work_set_parameter(&work, "max_distance", 512);
    TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

/* Adds the kernels of encoders: biases of queries and values, convolutions along the tokens, and start and end
 * positions of spans. */
static tws_code encoder_cases(tws_dtype dtype, const model_scale *scale, int64_t tokens, int64_t width,
                              tws_case_list *list, tws_error *err) {
  const int64_t seq = tokens < scale->sequence ? tokens : scale->sequence;
  const int64_t biases[] = {tokens, 3, width}, beside[] = {tokens / seq, seq, width, 3},
                ends[] = {tokens / seq, seq, 2};
  for (int kernel = TWS_KERNEL_PART_BIAS; kernel <= TWS_KERNEL_SPANS_GRAD; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    if (kernel < TWS_KERNEL_TOKEN_UNFOLD)
      memcpy(work.d, biases, sizeof biases);
    else if (kernel < TWS_KERNEL_SPANS)
      memcpy(work.d, beside, sizeof beside);
    else
      memcpy(work.d, ends, sizeof ends);
    TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

/* Adds kernels that select a tenth of a matrix's columns, as ZenFlow does. */
static tws_code column_cases(tws_dtype dtype, int64_t rows, int64_t columns, tws_case_list *list, tws_error *err) {
  const int64_t kept = columns / 10, moved[] = {rows * columns, columns, kept, rows};
  for (int kernel = TWS_KERNEL_COLUMN_NORMS; kernel <= TWS_KERNEL_SCATTER_COLUMNS; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    memcpy(work.d, moved, kernel == TWS_KERNEL_COLUMN_NORMS ? 2 * sizeof *moved : sizeof moved);
    if (kernel == TWS_KERNEL_TOP_COLUMNS) memcpy(work.d, (const int64_t[4]){columns, kept}, sizeof moved);
    TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

/* Adds the kernels of Adafactor that need a whole matrix. */
static tws_code factored_cases(tws_dtype dtype, int64_t rows, int64_t columns, tws_case_list *list, tws_error *err) {
  static const tws_kernel kernels[] = {TWS_KERNEL_FACTOR_SUMS, TWS_KERNEL_FACTOR_MOMENTS, TWS_KERNEL_FACTOR_CHANGE};
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
    tws_work work = start_case(kernels[i], dtype);
    work.d[0] = rows;
    work.d[1] = columns;
    if (kernels[i] != TWS_KERNEL_FACTOR_MOMENTS) work.d[2] = rows * columns;
    if (kernels[i] == TWS_KERNEL_FACTOR_CHANGE) tws_work_set_parameter(&work, "epsilon", 1e-3);
    if (kernels[i] == TWS_KERNEL_FACTOR_MOMENTS) tws_work_set_parameter(&work, "decay", -0.8);
    TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

/* Adds a convolution and the kernels around it for pictures with the sizes `d`. Profiles do not record padding, so side
 * lengths are those of padded pictures. */
static tws_code picture_cases(tws_dtype dtype, const int64_t d[8], tws_case_list *list, tws_error *err) {
  for (int kernel = TWS_KERNEL_CONVOLUTION; kernel <= TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    memcpy(work.d, d, sizeof work.d);
    TWS_TRY(tws_case_add(list, &work, err));
  }
  for (int kernel = TWS_KERNEL_BATCH_NORM; kernel <= TWS_KERNEL_BATCH_NORM_EVALUATION; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    work.d[0] = d[0] * d[1] * d[2];
    work.d[1] = d[3];
    work.f[0] = 1e-5;
    TWS_TRY(tws_case_add(list, &work, err));
  }
  for (int kernel = TWS_KERNEL_MAX_POOL; kernel <= TWS_KERNEL_AVERAGE_POOL_GRAD; kernel++) {
    tws_work work = start_case((tws_kernel)kernel, dtype);
    memcpy(work.d, d, 4 * sizeof *d);
    work.d[4] = d[1] < 3 ? d[1] : 3;
    work.d[5] = 2;
    TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

/* Adds element-wise kernels on `count` elements. */
static tws_code count_cases(tws_dtype dtype, int64_t count, tws_case_list *list, tws_error *err) {
  for (int kernel = 0; kernel < TWS_KERNEL_COUNT; kernel++) {
    const tws_operator *row = tws_operator_of((tws_kernel)kernel);
    if (row->calibrated != TWS_CALIBRATED_COUNT) continue;
    tws_work work = start_case((tws_kernel)kernel, dtype);
    work.d[0] = count;
    if (row->updates_weights || kernel == TWS_KERNEL_ADAMW8) {
      tws_work_set_parameter(&work, "epsilon", 1e-8);
      tws_work_set_parameter(&work, "weight_decay", 0.01);
    }
    if (kernel == TWS_KERNEL_DEQUANTIZE) work.d[1] = 64, work.d[2] = 8;
    if (kernel == TWS_KERNEL_DEQUANTIZE_TWICE) work.d[1] = 64, work.d[2] = 4, work.d[3] = 16;
    if (kernel == TWS_KERNEL_QUANTIZE_PARTS || kernel == TWS_KERNEL_DEQUANTIZE_PARTS)
      work.d[1] = work.d[2] = 1, work.d[3] = 2048, work.d[4] = 8;
    if (kernel == TWS_KERNEL_SIGN_PACK) work.d[1] = count, work.d[2] = 1;
    if (kernel == TWS_KERNEL_LAMB_FACTORS) work.d[0] = 4096, work.d[1] = 1; /* the parameters of a model */
    if (kernel == TWS_KERNEL_SIGN_AVERAGE) work.d[1] = 8, work.d[2] = 1;
    if (kernel == TWS_KERNEL_AMAX_HISTORY) work.d[0] = (count + 1023) / 1024, work.d[1] = 1024;
    if (kernel == TWS_KERNEL_SIGN_UNPACK) work.d[1] = count, work.d[2] = work.d[3] = 1;
    if (kernel == TWS_KERNEL_CAST) work.dtype2 = dtype == TWS_F32 ? TWS_BF16 : TWS_F32;
    TWS_TRY(tws_case_add(list, &work, err));
    if (!row->updates_weights || dtype != TWS_BF16) continue;
    work.flags = TWS_HALF_WEIGHTS | TWS_STOCHASTIC;
    TWS_TRY(tws_case_add(list, &work, err));
    work.flags |= TWS_HALF_MOMENTS;
    TWS_TRY(tws_case_add(list, &work, err));
  }
  return TWS_OK;
}

static tws_code host_cases(tws_dtype dtype, int quick, tws_case_list *list, tws_error *err) {
  static const int64_t planes[][2] = {{64, 256}, {512, 256}, {1024, 1024}, {16, 64}, {256, 768}, {2048, 512}};
  static const int64_t counts[] = {1 << 10, 1 << 16, 1 << 20, 1 << 13, 1 << 18, 1 << 22};
  static const model_scale middle = {512, 256, 32};
  static const int64_t pictures[][8] = {{4, 18, 18, 16, 32, 3, 1, 1},   {4, 16, 16, 64, 32, 1, 1, 1},
                                        {2, 33, 33, 32, 64, 3, 2, 1},   {2, 58, 58, 64, 64, 3, 1, 1},
                                        {1, 230, 230, 3, 64, 7, 2, 1},  {8, 16, 16, 128, 128, 3, 1, 1},
                                        {4, 28, 28, 128, 256, 1, 1, 1}, {4, 30, 30, 96, 96, 3, 1, 96}};
  TWS_TRY(host_linear_cases(dtype, quick, list, err));
  TWS_TRY(host_attention_cases(dtype, quick, list, err));
  TWS_TRY(cached_cases(dtype, quick, list, err));
  TWS_TRY(token_cases(dtype, list, err));
  for (int i = 0; i < (quick ? 3 : 6); i++) {
    TWS_TRY(plane_cases(dtype, &middle, planes[i][0], planes[i][1], list, err));
    TWS_TRY(loss_cases(dtype, planes[i][0], planes[i][1], list, err));
    TWS_TRY(exchange_cases(dtype, planes[i][0], planes[i][1], list, err));
    TWS_TRY(expert_cases(dtype, planes[i][0], planes[i][1], list, err));
    TWS_TRY(latent_cases(dtype, &middle, planes[i][0], planes[i][1], list, err));
    TWS_TRY(inference_cases(dtype, &middle, planes[i][0], planes[i][1], list, err));
    TWS_TRY(disentangled_cases(dtype, &middle, planes[i][0], planes[i][1], list, err));
    TWS_TRY(encoder_cases(dtype, &middle, planes[i][0], planes[i][1], list, err));
    TWS_TRY(column_cases(dtype, planes[i][0], planes[i][1], list, err));
    TWS_TRY(factored_cases(dtype, planes[i][0], planes[i][1], list, err));
  }
  for (int i = 0; i < (quick ? 3 : 6); i++) TWS_TRY(count_cases(dtype, counts[i], list, err));
  for (int i = 0; i < (quick ? 3 : 8); i++) TWS_TRY(picture_cases(dtype, pictures[i], list, err));
  return TWS_OK;
}

static tws_code device_cases(tws_dtype dtype, int quick, tws_case_list *list, tws_error *err) {
  static const int64_t planes[][2] = {{64, 64}, {8192, 768}, {16384, 2048}, {1024, 768}, {8192, 2048}, {32768, 3072}};
  static const int64_t losses[][2] = {{64, 512}, {4096, 50304}, {16384, 50304}, {1024, 50304}};
  static const int64_t counts[] = {1 << 10, 1 << 20, 1 << 26, 1 << 16, 1 << 23, 1 << 28};
  static const model_scale large = {50304, 1024, 64};
  static const int64_t pictures[][8] = {{32, 58, 58, 64, 64, 3, 1, 1},   {32, 56, 56, 64, 256, 1, 1, 1},
                                        {32, 30, 30, 128, 128, 3, 1, 1}, {32, 230, 230, 3, 64, 7, 2, 1},
                                        {32, 57, 57, 256, 512, 1, 2, 1}, {32, 16, 16, 256, 256, 3, 1, 1},
                                        {32, 9, 9, 512, 512, 3, 1, 1},   {32, 58, 58, 128, 128, 3, 1, 128}};
  TWS_TRY(device_linear_cases(dtype, quick, list, err));
  TWS_TRY(device_attention_cases(dtype, quick, list, err));
  for (int i = 0; i < (quick ? 3 : 6); i++) {
    const model_scale tiny = {512, 64, 32}, *s = i == 0 ? &tiny : &large;
    TWS_TRY(plane_cases(dtype, s, planes[i][0], planes[i][1], list, err));
    TWS_TRY(exchange_cases(dtype, planes[i][0], planes[i][1], list, err));
    TWS_TRY(expert_cases(dtype, planes[i][0], planes[i][1], list, err));
    TWS_TRY(latent_cases(dtype, s, planes[i][0], planes[i][1], list, err));
    TWS_TRY(inference_cases(dtype, s, planes[i][0], planes[i][1], list, err));
    TWS_TRY(disentangled_cases(dtype, s, planes[i][0], planes[i][1], list, err));
    TWS_TRY(encoder_cases(dtype, s, planes[i][0], planes[i][1], list, err));
    TWS_TRY(column_cases(dtype, planes[i][0], planes[i][1], list, err));
    TWS_TRY(factored_cases(dtype, planes[i][0], planes[i][1], list, err));
    TWS_TRY(count_cases(dtype, counts[i], list, err));
  }
  for (int i = 0; i < (quick ? 2 : 4); i++) TWS_TRY(loss_cases(dtype, losses[i][0], losses[i][1], list, err));
  for (int i = 0; i < (quick ? 3 : 8); i++) TWS_TRY(picture_cases(dtype, pictures[i], list, err));
  return TWS_OK;
}

tws_code tws_case_standard(tws_dtype dtype, tws_backend_kind backend, int quick, tws_case_list *list, tws_error *err) {
  TWS_TRY(backend == TWS_BACKEND_CUDA ? device_cases(dtype, quick, list, err) : host_cases(dtype, quick, list, err));
  tws_work clip = start_case(TWS_KERNEL_CLIP, TWS_F32);
  clip.f[0] = 1;
  return tws_case_add(list, &clip, err);
}

/* ---- order ---- */

/* Returns how often works of this kernel occur in the sorted list, relative to works of a rarely used kernel. */
static double frequency(const tws_work *work) {
  switch ((tws_kernel)work->code) {
    case TWS_KERNEL_LINEAR:
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
    case TWS_KERNEL_LINEAR_GRAD_WEIGHT:
      return 16;
    case TWS_KERNEL_ATTENTION:
    case TWS_KERNEL_ATTENTION_GRAD:
      return 8;
    case TWS_KERNEL_ADD: /* the largest float32 ADD determines a device's bandwidth */
    case TWS_KERNEL_NORM:
    case TWS_KERNEL_NORM_GRAD:
    case TWS_KERNEL_CROSS_ENTROPY:
    case TWS_KERNEL_ADAMW:
    case TWS_KERNEL_SWIGLU:
    case TWS_KERNEL_SWIGLU_GRAD:
    case TWS_KERNEL_GELU:
    case TWS_KERNEL_GELU_GRAD:
      return 4;
    default:
      return 1;
  }
}

typedef struct place {
  double key;
  size_t at; /* position in the list; items with equal keys keep their order */
} place;

static int compare_places(const void *a, const void *b) {
  const place *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->at < y->at ? -1 : x->at > y->at;
}

tws_code tws_case_order(tws_case_list *list, size_t first, tws_error *err) {
  const size_t count = list->count - first;
  size_t seen[TWS_KERNEL_COUNT][2] = {{0}};
  if (count == 0) return TWS_OK;
  place *places = tws_calloc(count, sizeof *places);
  tws_work *sorted = tws_calloc(count, sizeof *sorted);
  for (size_t i = 0; places && i < count; i++) {
    const tws_work *work = &list->items[first + i];
    const int single = work->dtype == TWS_F32, is_bandwidth = single && work->code == TWS_KERNEL_ADD;
    const size_t before = seen[work->code][single]++;
    places[i] = (place){((double)before + 1) / frequency(work) * (single && !is_bandwidth ? 4 : 1), i};
  }
  if (places && sorted) {
    qsort(places, count, sizeof *places, compare_places);
    for (size_t i = 0; i < count; i++) sorted[i] = list->items[first + places[i].at];
    memcpy(list->items + first, sorted, count * sizeof *sorted);
  }
  const int ok = places && sorted;
  tws_free(places);
  tws_free(sorted);
  return ok ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the list of kernels to measure");
}
