/* Identities between kernels: a vocabulary in parts gives the results of the whole, packed heads unpack to the same
 * heads, and means are over the tokens that count. Part of test_kernels.c, whose backends it uses. */
#ifndef TWS_TESTS_KERNEL_IDENTITIES_H
#define TWS_TESTS_KERNEL_IDENTITIES_H

/* ---- mode: NaN and infinity stay visible ---- */
START_TEST(not_finite) {
  const tws_work w = work_of(_i);
  const tws_arguments a = arguments_of(_i);
  if (!takes_again("not finite", _i) || !is_there(&w)) return;
  if (tws_operator_of((tws_kernel)w.code)->updates_weights || w.code == TWS_KERNEL_CLIP || w.code == TWS_KERNEL_FILL ||
      w.code == TWS_KERNEL_TOP_COLUMNS || w.code == TWS_KERNEL_AMAX_HISTORY) /* the last keeps finite numbers only */
    return;
  const int saturates = (w.code == TWS_KERNEL_ROUTER && w.flags & TWS_SIGMOID) || w.code == TWS_KERNEL_SOFTCAP ||
                        w.code == TWS_KERNEL_TRANSPOSE_CODES ||
                        w.code == TWS_KERNEL_SIGMOID || w.code == TWS_KERNEL_CLAMP || w.flags & TWS_FP8 ||
                        w.code == TWS_KERNEL_FACTOR_CHANGE || w.code == TWS_KERNEL_LAMB_FACTORS ||
                        w.code == TWS_KERNEL_LAMB_RATIOS;        /* the last two are cut to limits */
  for (int infinite = 0; infinite < 2 - saturates; ++infinite) { /* of infinity it is finite */
    values x = make_values(&w, &a, 2);
    int poisoned = 0;
    if (w.code == TWS_KERNEL_VOCABULARY_LOSS) poisoned = 2; /* this kernel takes the target's probability from the
                                                             * statistics */
    if (w.code == TWS_KERNEL_QUANTIZE) poisoned = 1;        /* operand 1 is the largest magnitude: infinity among the
                                                             * numbers appears there */
    while (x.info[poisoned].dtype == TWS_I32 || x.info[poisoned].dtype == TWS_U8) ++poisoned;
    /* Kernels of which every element has to be poisoned: not every row of an embedding table is used, the first query
     * may see no key, the first slot may be empty, kernels that keep a part or choose columns skip elements, and of the
     * scales of all tensors one is read. */
    const int every =
        w.code == TWS_KERNEL_EMBEDDING || w.code == TWS_KERNEL_ATTENTION || w.code == TWS_KERNEL_ATTENTION_GRAD ||
        w.code == TWS_KERNEL_FACTOR_CHANGE || w.code == TWS_KERNEL_SIGN_AVERAGE || w.code == TWS_KERNEL_SIGN_UNPACK ||
        w.code == TWS_KERNEL_DISENTANGLED || w.code == TWS_KERNEL_DISENTANGLED_GRAD || w.code == TWS_KERNEL_PART ||
        w.code == TWS_KERNEL_CACHE_WRITE || w.code == TWS_KERNEL_CACHED_ATTENTION ||
        w.code == TWS_KERNEL_LATENT_WRITE || w.code == TWS_KERNEL_LATENT_ATTENTION ||
        (w.code >= TWS_KERNEL_TOKEN_UNFOLD && w.code <= TWS_KERNEL_SPANS_GRAD) || operand_named(&x, "chosen") >= 0 ||
        operand_named(&x, "slots") >= 0 || operand_named(&x, "dslots") >= 0;
    const int64_t many = every ? x.info[poisoned].count : 1;
    for (int64_t i = 0; i < many; ++i) x.v[poisoned][i] = infinite ? INFINITY : NAN;
    storage s;
    ck_assert(run_case(&w, &a, &x, 0, 2, 0, &s));
    int seen = 0;
    for (int k = 0; k < x.count; ++k)
      for (int64_t i = 0;
           i < x.info[k].count && x.info[k].access & TWS_OPERAND_WRITE && x.info[k].content != TWS_HOLDS_SCRATCH; ++i)
        seen |= !isfinite(get(x.info[k].dtype, s.data[k], i));
    REQUIRE(seen, "%s vanished: %s", infinite ? "infinity" : "NaN", label(&w, 2, 0, poisoned));
    free_storage(&s);
    free_values(&x);
  }
}
END_TEST

typedef struct tensor {
  void *data;
  tws_dtype dtype;
  int64_t count;
} tensor;

static tensor make_tensor(tws_dtype dtype, int64_t count) {
  return (tensor){calloc((size_t)count + 1, tws_dtype_bytes(dtype)), dtype, count};
}
static tensor random_tensor(tws_dtype dtype, int64_t count, uint64_t seed) {
  tensor x = make_tensor(dtype, count);
  for (int64_t i = 0; i < count; ++i) put(dtype, x.data, i, tws_random_normal(11, seed, (uint64_t)i));
  return x;
}
/* Draws whole numbers from -8 to 8, whose sums and products have no rounding errors. */
static tensor whole_numbers(tws_dtype dtype, int64_t count, uint64_t seed) {
  tensor x = make_tensor(dtype, count);
  for (int64_t i = 0; i < count; ++i) put(dtype, x.data, i, (double)draw(seed, (uint64_t)i, -8, 8));
  return x;
}
static double at_index(const tensor *x, int64_t i) {
  return get(x->dtype, x->data, i);
}
static int same_bits(const tensor *x, const tensor *y) {
  return x->count == y->count && memcmp(x->data, y->data, (size_t)x->count * tws_dtype_bytes(x->dtype)) == 0;
}

#define RUN(backend, work, arguments, ...)                       \
  run_tensors(backend, work, arguments, (tensor[]){__VA_ARGS__}, \
              (int)(sizeof((tensor[]){__VA_ARGS__}) / sizeof(tensor)))
static void run_tensors(tws_backend *backend, const tws_work *w, const tws_arguments *a, const tensor *x, int count) {
  void *data[KERNEL_MAX_OPERANDS];
  tws_dtype types[KERNEL_MAX_OPERANDS];
  operand_info info[KERNEL_MAX_OPERANDS];
  tws_error err = {0};
  REQUIRE(kernel_operands(w, a, 1, info) == count, "%s", label(w, 0, 0, count));
  for (int k = 0; k < count; ++k) {
    REQUIRE(info[k].count == x[k].count && info[k].dtype == x[k].dtype, "%s", label(w, 0, 0, k));
    data[k] = x[k].data;
    types[k] = x[k].dtype;
  }
  REQUIRE(run_kernel(backend, w, a, data, types, count, &err) == TWS_OK, "%s: %s", label(w, 0, 0, 0), err.message);
}

/* Draws a storage type that the backend supports. */
static tws_dtype some_type(uint64_t seed) {
  const tws_work half = {.code = TWS_KERNEL_ADD, .dtype = TWS_F16, .dtype2 = TWS_F16};
  return (const tws_dtype[]){TWS_F32, TWS_BF16, TWS_F16}[draw(seed, 1, 0, host->supports(&half) ? 2 : 1)];
}

enum { IDENTITY_ROUNDS = 40, MOST_PARTS = 4 };

/* Cuts [0, total) into parts, some of them empty. */
static void random_cuts(uint64_t seed, int parts, int64_t total, int64_t *cut) {
  cut[0] = 0;
  for (int p = 1; p < parts; ++p) cut[p] = draw(seed, 100 + (uint64_t)p, 0, 2) ? draw(seed, (uint64_t)p, 0, total) : 0;
  cut[parts] = total;
  for (int p = 1; p < parts; ++p)
    if (cut[p] < cut[p - 1]) cut[p] = cut[p - 1];
}

/* Copies columns [begin, begin + columns) of the whole rows, and pads the rows with NaN, which no kernel may read. */
static tensor columns_of(const tensor *whole, int64_t tokens, int64_t row, int64_t begin, int64_t columns,
                         int64_t padded) {
  tensor part = make_tensor(whole->dtype, tokens * padded);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < padded; ++i)
      put(part.dtype, part.data, t * padded + i, i < columns ? at_index(whole, t * row + begin + i) : NAN);
  return part;
}

static double apart(double a, double b) {
  return a == b ? 0 : fabs(a - b) / (fabs(a) + fabs(b));
}

/* Logits whose columns differ widely from part to part, and are -infinity in the whole first part for one token. */
static tensor uneven_logits(tws_dtype dtype, int64_t tokens, int64_t columns, const int64_t *cut, int parts,
                            uint64_t seed) {
  tensor x = random_tensor(dtype, tokens * columns, seed);
  for (int p = 0; p < parts; ++p)
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = cut[p]; i < cut[p + 1]; ++i) {
        const double was = at_index(&x, t * columns + i), more = t % 3 == 1 ? 200 * p : 0;
        put(dtype, x.data, t * columns + i, t == 3 && p == 0 && cut[1] < columns ? -INFINITY : was + more);
      }
  return x;
}

/* VOCABULARY_STATS and VOCABULARY_LOSS over a vocabulary in any parts give what CROSS_ENTROPY gives over the whole. */
START_TEST(vocabulary_in_parts) {
  const uint64_t s = 3000 + (uint64_t)_i;
  const int parts = 1 + _i % MOST_PARTS;
  const tws_dtype dtype = some_type(s);
  const int64_t tokens = draw(s, 2, 1, 60), columns = draw(s, 3, 1, _i % 5 ? 200 : 9000);
  int64_t cut[MOST_PARTS + 1];
  random_cuts(s, parts, columns, cut);
  tws_backend *backend = use_backend(0, 1 + _i % most_threads);
  tensor logits = uneven_logits(dtype, tokens, columns, cut, parts, s), targets = make_tensor(TWS_I32, tokens);
  tensor stats = make_tensor(TWS_F32, parts * tokens * 3), sums = make_tensor(TWS_F64, 2), part[MOST_PARTS];
  const int64_t first = cut[1] < columns ? cut[1] : 0; /* where no logit is -infinity */
  for (int64_t t = 0; t < tokens; ++t)
    put(TWS_I32, targets.data, t,
        draw(s, 500 + (uint64_t)t, 0, 3) ? (double)draw(s, 900 + (uint64_t)t, first, columns - 1) : -1);
  const int64_t padding = draw(s, 4, 0, 1) * draw(s, 5, 1, 40);
  for (int p = 0; p < parts; ++p) {
    const int64_t width = cut[p + 1] - cut[p];
    part[p] = columns_of(&logits, tokens, columns, cut[p], width, width + padding);
    const tws_work work = {
        .code = TWS_KERNEL_VOCABULARY_STATS, .dtype = (uint8_t)dtype, .d = {tokens, width, width + padding}};
    const tws_arguments a = {{(double)cut[p]}};
    const tensor one = {(float *)stats.data + 3 * tokens * p, TWS_F32, 3 * tokens};
    RUN(backend, &work, &a, part[p], targets, one);
  }
  const tws_work whole = {.code = TWS_KERNEL_CROSS_ENTROPY, .dtype = (uint8_t)dtype, .d = {tokens, columns, columns}};
  const tws_arguments scales = {{0.5, 0.125}};
  RUN(backend, &whole, &scales, logits, targets, sums);
  const double tol = dtype == TWS_BF16 ? 4e-3 : dtype == TWS_F16 ? 5e-4 : 1e-6;
  const double tiny = dtype == TWS_F16 ? 0x1p-23 : 1e-30; /* both results may be rounded to denormal numbers */
  for (int p = 0; p < parts; ++p) {
    const int64_t width = cut[p + 1] - cut[p], padded = width + padding;
    tensor own = make_tensor(TWS_F64, 2);
    const tws_work work = {
        .code = TWS_KERNEL_VOCABULARY_LOSS, .dtype = (uint8_t)dtype, .d = {tokens, width, padded, parts}};
    const tws_arguments a = {{0.5, 0.125, (double)cut[p]}};
    RUN(backend, &work, &a, part[p], targets, stats, own);
    REQUIRE(apart(at_index(&own, 0), at_index(&sums, 0)) < 2e-6 && at_index(&own, 1) == at_index(&sums, 1),
            "%s: loss %.9g instead of %.9g", label(&work, 0, 0, p), at_index(&own, 0), at_index(&sums, 0));
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < padded; ++i) {
        const double got = at_index(&part[p], t * padded + i);
        const double want = i < width ? at_index(&logits, t * columns + cut[p] + i) : 0;
        REQUIRE(apart(got, want) < tol || fabs(got - want) < tiny, "%s: token %lld column %lld is %.9g instead of %.9g",
                label(&work, 0, 0, p), (long long)t, (long long)i, got, want);
      }
    free(own.data);
    free(part[p].data);
  }
  free(logits.data), free(targets.data), free(stats.data), free(sums.data);
}
END_TEST

/* Every id is in one part of the table: the parts' rows add up to the whole table's, and so do their gradients. */
START_TEST(table_in_parts) {
  const uint64_t s = 4000 + (uint64_t)_i;
  const int parts = 1 + _i % MOST_PARTS;
  const tws_dtype dtype = some_type(s);
  const int64_t tokens = draw(s, 2, 1, 80), width = draw(s, 3, 1, 100), rows = draw(s, 4, parts, 120);
  int64_t cut[MOST_PARTS + 1];
  random_cuts(s, parts, rows, cut);
  tws_backend *backend = use_backend(0, 1 + _i % most_threads);
  tensor ids = make_tensor(TWS_I32, tokens), weights = random_tensor(dtype, rows * width, s);
  tensor x = make_tensor(dtype, tokens * width), dx = random_tensor(dtype, tokens * width, s + 1);
  tensor slope = make_tensor(TWS_F32, rows * width), sum = make_tensor(dtype, tokens * width);
  tensor joined = make_tensor(TWS_F32, rows * width);
  for (int64_t t = 0; t < tokens; ++t) put(TWS_I32, ids.data, t, (double)draw(s, 500 + (uint64_t)t, 0, rows - 1));
  tws_work work = {
      .code = TWS_KERNEL_EMBEDDING, .dtype = (uint8_t)dtype, .dtype2 = TWS_F32, .d = {tokens, width, rows}};
  tws_work back = work;
  back.code = TWS_KERNEL_EMBEDDING_GRAD;
  RUN(backend, &work, NULL, ids, weights, x);
  RUN(backend, &back, NULL, ids, dx, slope);
  for (int p = 0; p < parts; ++p) {
    const int64_t begin = cut[p] * width;
    work.d[2] = back.d[2] = cut[p + 1] - cut[p];
    const tws_arguments a = {{(double)cut[p]}};
    const int64_t count = work.d[2] * width;
    const tensor own = {(char *)weights.data + (size_t)begin * tws_dtype_bytes(dtype), dtype, count};
    tensor out = random_tensor(dtype, tokens * width, s + 2);
    RUN(backend, &work, &a, ids, own, out);
    for (int64_t i = 0; i < out.count; ++i) put(dtype, sum.data, i, at_index(&sum, i) + at_index(&out, i));
    RUN(backend, &back, &a, ids, dx, (tensor){(float *)joined.data + begin, TWS_F32, count});
    free(out.data);
  }
  for (int64_t i = 0; i < x.count; ++i) REQUIRE(at_index(&x, i) == at_index(&sum, i), "%s", label(&work, parts, 0, 2));
  for (int64_t i = 0; i < slope.count; ++i)
    REQUIRE(apart(at_index(&slope, i), at_index(&joined, i)) < 1e-5, "%s", label(&back, parts, 0, 2));
  free(ids.data), free(weights.data), free(x.data), free(dx.data), free(slope.data), free(sum.data);
  free(joined.data);
}
END_TEST

static double dot(const tensor *x, const tensor *y) {
  double sum = 0;
  for (int64_t i = 0; i < x->count; ++i) sum += at_index(x, i) * at_index(y, i);
  return sum;
}

/* The dot products (PACK x) y and x (UNPACK y) are equal for any x and y, and UNPACK (PACK x) is x times the number of
 * copies. */
START_TEST(heads_there_and_back) {
  const uint64_t s = 5000 + (uint64_t)_i;
  const tws_dtype dtype = some_type(s);
  const int64_t factor = draw(s, 2, 1, 3), tokens = draw(s, 3, 1, 150), ranks = factor * draw(s, 4, 1, 4);
  const int64_t kv_of[] = {0, factor, ranks, 2 * ranks, 1}, kv = kv_of[draw(s, 5, 0, 4)];
  const int64_t q = ranks * draw(s, 6, 1, 4), head = draw(s, 7, 1, 70), copies = kv > 0 && kv < ranks ? ranks / kv : 1;
  tws_work pack = {.code = TWS_KERNEL_HEADS_PACK, .dtype = (uint8_t)dtype, .d = {tokens, ranks, q, kv, head}};
  tws_work unpack = pack;
  unpack.code = TWS_KERNEL_HEADS_UNPACK;
  const int64_t whole = tokens * (q + 2 * kv) * head, parts = tokens * (q + 2 * kv * copies) * head;
  tws_backend *backend = use_backend(0, 1 + _i % most_threads);
  tensor x = whole_numbers(dtype, whole, s), y = whole_numbers(dtype, parts, s + 1);
  tensor packed = make_tensor(dtype, parts), unpacked = make_tensor(dtype, whole), again = make_tensor(dtype, whole);
  RUN(backend, &pack, NULL, x, packed);
  RUN(backend, &unpack, NULL, y, unpacked);
  RUN(backend, &unpack, NULL, packed, again);
  const double forward = dot(&packed, &y), backward = dot(&x, &unpacked);
  REQUIRE(forward == backward, "%s: %g, and back %g", label(&pack, 0, 0, 0), forward, backward);
  for (int64_t i = 0; i < whole; ++i) {
    const int64_t times = i % ((q + 2 * kv) * head) < q * head ? 1 : copies;
    REQUIRE(at_index(&again, i) == (double)times * at_index(&x, i), "%s", label(&unpack, 0, 0, 1));
  }
  if (ranks == 1) ck_assert(same_bits(&x, &packed));
  free(x.data), free(y.data), free(packed.data), free(unpacked.data), free(again.data);
}
END_TEST

START_TEST(transposed_twice) {
  const uint64_t s = 6000 + (uint64_t)_i;
  const tws_dtype dtype = some_type(s);
  const int64_t a = draw(s, 2, 1, 100), b = draw(s, 3, 1, 100), width = draw(s, 4, 1, _i % 2 ? 5 : 100);
  tws_backend *backend = use_backend(0, 1 + _i % most_threads);
  tensor x = random_tensor(dtype, a * b * width, s), y = make_tensor(dtype, x.count), z = make_tensor(dtype, x.count);
  const tws_work there = {.code = TWS_KERNEL_TRANSPOSE, .dtype = (uint8_t)dtype, .d = {a, b, width}};
  const tws_work back = {.code = TWS_KERNEL_TRANSPOSE, .dtype = (uint8_t)dtype, .d = {b, a, width}};
  RUN(backend, &there, NULL, x, y);
  RUN(backend, &back, NULL, y, z);
  REQUIRE(same_bits(&x, &z), "%s", label(&there, 0, 0, 1));
  free(x.data), free(y.data), free(z.data);
}
END_TEST

/* The loss, the norm and the clipped gradient of a batch with ignored targets, and with a loss scale where the backend
 * has one, equal those of a batch without these tokens and without a scale. */
START_TEST(ignored_tokens_leave_the_mean) {
  const uint64_t s = 7000 + (uint64_t)_i;
  enum { TOKENS = 40, COLUMNS = 33 };
  const int64_t counted = draw(s, 1, 0, TOKENS);
  const double max_norm = _i % 3 ? 0.02 * _i : 0;
  tws_backend *backend = use_backend(0, 1 + _i % most_threads);
  tensor slope[2], metrics[2], targets[2], hyper = make_tensor(TWS_F32, TWS_HYPER_COUNT);
  const tws_work scaling = {.code = TWS_KERNEL_CLIP, .flags = TWS_SCALED};
  const uint32_t scaled = host->supports(&scaling) ? TWS_SCALED : 0;
  put(TWS_F32, hyper.data, TWS_HYPER_SCALE, ldexp(1, _i));
  for (int n = 0; n < 2; ++n) { /* n 0: all tokens; n 1: only the tokens that count */
    const int64_t tokens = n ? counted : TOKENS;
    slope[n] = random_tensor(TWS_F32, tokens * COLUMNS, s);
    targets[n] = make_tensor(TWS_I32, tokens);
    metrics[n] = make_tensor(TWS_F64, TWS_METRIC_COUNT);
    for (int64_t t = 0; t < tokens; ++t)
      put(TWS_I32, targets[n].data, t, t < counted ? (double)draw(s, 50 + (uint64_t)t, 0, COLUMNS - 1) : -1);
    if (tokens == 0) continue;
    const tws_work loss = {.code = TWS_KERNEL_CROSS_ENTROPY, .d = {tokens, COLUMNS, COLUMNS}, .flags = n ? 0 : scaled};
    const tws_work squares = {.code = TWS_KERNEL_SQUARED_NORM, .d = {tokens * COLUMNS}};
    const tws_arguments weights = {{1.0 / (double)tokens, 1.0 / (double)tokens}}, one = {{1}};
    const tws_work clip = {.code = TWS_KERNEL_CLIP, .f = {max_norm}, .flags = n ? 0 : scaled};
    const tensor losses[] = {slope[n], targets[n], {metrics[n].data, TWS_F64, 2}, hyper}, norms[] = {metrics[n], hyper};
    run_tensors(backend, &loss, &weights, losses, loss.flags ? 4 : 3);
    RUN(backend, &squares, &one, slope[n], (tensor){(double *)metrics[n].data + TWS_METRIC_SQUARES, TWS_F64, 1});
    run_tensors(backend, &clip, NULL, norms, clip.flags ? 2 : 1);
  }
  static const int slots[] = {TWS_METRIC_LOSS, TWS_METRIC_NORM};
  for (int k = 0; k < 2; ++k) {
    const double got = at_index(&metrics[0], slots[k]), want = at_index(&metrics[1], slots[k]);
    REQUIRE(apart(got, want) < 1e-6, "%lld kept: metric %d is %.9g instead of %.9g", (long long)counted, slots[k], got,
            want);
  }
  for (int64_t i = 0; i < slope[0].count; ++i) {
    const double got = at_index(&slope[0], i) * at_index(&metrics[0], TWS_METRIC_CLIP);
    const double want = i < slope[1].count ? at_index(&slope[1], i) * at_index(&metrics[1], TWS_METRIC_CLIP) : 0;
    REQUIRE(apart(got, want) < 2e-6, "%lld kept: element %lld is %.9g instead of %.9g", (long long)counted,
            (long long)i, got, want);
  }
  for (int n = 0; n < 2; ++n) free(slope[n].data), free(metrics[n].data), free(targets[n].data);
  free(hyper.data);
}
END_TEST

/* The share of dropped elements is the probability p, and the others are multiplied by 1 / (1 - p); the draws of
 * adjacent elements, of successive steps, and of different dropouts in a network, which have seeds of their own, are
 * not correlated. */
START_TEST(dropout_keeps_the_mean) {
  enum { COUNT = 40009, DRAWS = 3 };
  const double p = (_i + 1) / 16.0, left = 1 / (1 - p), deviation = sqrt(p * (1 - p) / COUNT);
  const tws_work w = {.code = TWS_KERNEL_DROPOUT, .d = {COUNT}, .f = {p}};
  tws_backend *backend = use_backend(0, 1 + _i % most_threads);
  tensor x[DRAWS], hyper = make_tensor(TWS_F32, TWS_HYPER_COUNT);
  for (int k = 0; k < DRAWS; ++k) { /* k 0: a draw; k 1: the next step's draw; k 2: the draw of another dropout */
    const tws_arguments a = {{k == 2 ? 78 : 77}};
    double fallen = 0;
    x[k] = make_tensor(TWS_F32, COUNT);
    for (int64_t i = 0; i < COUNT; ++i) put(TWS_F32, x[k].data, i, 1);
    put(TWS_F32, hyper.data, TWS_HYPER_STEP, k == 1 ? 6 : 5);
    RUN(backend, &w, &a, x[k], hyper);
    for (int64_t i = 0; i < COUNT; ++i) {
      const double got = at_index(&x[k], i);
      REQUIRE(got == 0 || fabs(got / left - 1) < 1e-6, "element %lld is %.9g", (long long)i, got);
      fallen += got == 0;
    }
    REQUIRE(fabs(fallen / COUNT - p) < 4.5 * deviation, "%g fell instead of %g", fallen / COUNT, p);
  }
  double neighbours = 0, draws[DRAWS] = {0};
  for (int64_t i = 0; i < COUNT; ++i) {
    const double own = (at_index(&x[0], i) == 0) - p;
    neighbours += own * ((at_index(&x[0], (i + 1) % COUNT) == 0) - p);
    for (int k = 1; k < DRAWS; ++k) draws[k] += own * ((at_index(&x[k], i) == 0) - p);
  }
  const double bound = 4.5 * p * (1 - p) * sqrt(COUNT);
  REQUIRE(fabs(neighbours) < bound && fabs(draws[1]) < bound && fabs(draws[2]) < bound,
          "correlated: adjacent %g, steps %g, places %g of %g", neighbours, draws[1], draws[2], bound);
  for (int k = 0; k < DRAWS; ++k) free(x[k].data);
  free(hyper.data);
}
END_TEST

#endif
