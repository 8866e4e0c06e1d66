/* The table of operators, which is included four times: as texts and constants, as flops, as bytes, and as a list of
 * operands. */
#include "models/operator.h"
#include "models/quantized.h"
#include "models/routing.h"

#include <math.h>
#include <string.h>

#define UNUSED __attribute__((unused))
enum { GELU_FLOPS = 9, GELU_GRAD_FLOPS = 16 }; /* flops per element */

/* ---- texts and constants ---- */

#define OPERANDS(...) .operand = {__VA_ARGS__{0}}
#define OPERAND(access_, name_, dtype_, ...) {.name = #name_, .access = #access_, .dtype = #dtype_, __VA_ARGS__},
#define SHAPE(...) .shape = #__VA_ARGS__
#define WHEN(condition) .when = #condition
#define ADDS_WITH(flag_) .adds_with = #flag_, .adds_flag = TWS_##flag_
#define MOVES(reads_, writes_) .reads = #reads_, .writes = #writes_
#define IN_PLACE_OF(...) .in_place = #__VA_ARGS__
#define HOLDS(content_) .content = #content_
#define IDS(content_, first_, count_) .content = #content_ " from " #first_ " on, " #count_ " of them"
#define FAR .far = 1
#define TRAITS(...) __VA_ARGS__
#define LEAST(...) .least = {__VA_ARGS__}
#define LIKE(kernel) .like = 1 + TWS_KERNEL_##kernel
#define CALIBRATED(shapes) .calibrated = TWS_CALIBRATED_##shapes
#define MEASURED_WITH(flags) .measured_flags = flags
#define UPDATES_WEIGHTS .updates_weights = 1
#define FLOPS(expression) .flops = #expression
#define DIMS0() .dims = 0
#define DIMS1(a) .dims = 1, .dim = {#a}
#define DIMS2(a, b) .dims = 2, .dim = {#a, #b}
#define DIMS3(a, b, c) .dims = 3, .dim = {#a, #b, #c}
#define DIMS4(a, b, c, d) .dims = 4, .dim = {#a, #b, #c, #d}
#define DIMS5(a, b, c, d, e) .dims = 5, .dim = {#a, #b, #c, #d, #e}
#define DIMS6(a, b, c, d, e, f) .dims = 6, .dim = {#a, #b, #c, #d, #e, #f}
#define DIMS7(a, b, c, d, e, f, g) .dims = 7, .dim = {#a, #b, #c, #d, #e, #f, #g}
#define DIMS8(a, b, c, d, e, f, g, h) .dims = 8, .dim = {#a, #b, #c, #d, #e, #f, #g, #h}
#define PARAMETERS0() .parameters = 0
#define PARAMETERS1(a) .parameters = 1, .parameter = {#a}
#define PARAMETERS2(a, b) .parameters = 2, .parameter = {#a, #b}
#define PARAMETERS3(a, b, c) .parameters = 3, .parameter = {#a, #b, #c}
#define PARAMETERS4(a, b, c, d) .parameters = 4, .parameter = {#a, #b, #c, #d}
#define PARAMETERS5(a, b, c, d, e) .parameters = 5, .parameter = {#a, #b, #c, #d, #e}
#define PARAMETERS6(a, b, c, d, e, f) .parameters = 6, .parameter = {#a, #b, #c, #d, #e, #f}
#define ARGUMENTS0() .arguments = 0
#define ARGUMENTS1(a) .arguments = 1, .argument = {#a}
#define ARGUMENTS2(a, b) .arguments = 2, .argument = {#a, #b}
#define ARGUMENTS3(a, b, c) .arguments = 3, .argument = {#a, #b, #c}
#define ARGUMENTS4(a, b, c, d) .arguments = 4, .argument = {#a, #b, #c, #d}
#define ARGUMENTS6(a, b, c, d, e, f) .arguments = 6, .argument = {#a, #b, #c, #d, #e, #f}
#define OPERATOR(id, name_, summary_, dims_, parameters_, arguments_, flops_, elements_, traits_, operands_) \
  [TWS_KERNEL_##id] = {.identifier = #id,                                                                    \
                       .name = #name_,                                                                       \
                       .summary = summary_,                                                                  \
                       dims_,                                                                                \
                       parameters_,                                                                          \
                       arguments_,                                                                           \
                       flops_,                                                                               \
                       traits_,                                                                              \
                       operands_},
static const tws_operator operators[TWS_KERNEL_COUNT] = {
#include "models/operators.def"
};

const tws_operator *tws_operator_of(tws_kernel kernel) {
  return (unsigned)kernel < TWS_KERNEL_COUNT ? &operators[kernel] : 0;
}

const char *tws_kernel_name(tws_kernel kernel) {
  return (unsigned)kernel < TWS_KERNEL_COUNT ? operators[kernel].name : "unknown kernel";
}

static int parameter_index(tws_kernel kernel, const char *name) {
  const tws_operator *row = &operators[kernel];
  for (int i = 0; i < row->parameters; i++)
    if (strcmp(row->parameter[i], name) == 0) return i;
  return -1;
}

double tws_work_parameter(const tws_work *work, const char *name) {
  const int i = parameter_index((tws_kernel)work->code, name);
  return i < 0 ? 0 : work->f[i];
}

void tws_work_set_parameter(tws_work *work, const char *name, double value) {
  const int i = parameter_index((tws_kernel)work->code, name);
  if (i >= 0) work->f[i] = value;
}

/* ---- numbers ---- */

#undef FLOPS
#undef DIMS0
#undef DIMS1
#undef DIMS2
#undef DIMS3
#undef DIMS4
#undef DIMS5
#undef DIMS6
#undef DIMS7
#undef DIMS8
#undef PARAMETERS0
#undef PARAMETERS1
#undef PARAMETERS2
#undef PARAMETERS3
#undef PARAMETERS4
#undef PARAMETERS5
#undef PARAMETERS6
#undef ARGUMENTS0
#undef ARGUMENTS1
#undef ARGUMENTS2
#undef ARGUMENTS3
#undef ARGUMENTS4
#undef ARGUMENTS6
#define NAMED(list, index, name) const double name UNUSED = (double)work->list[index];
#define DIMS0()
#define DIMS1(a) NAMED(d, 0, a)
#define DIMS2(a, b) DIMS1(a) NAMED(d, 1, b)
#define DIMS3(a, b, c) DIMS2(a, b) NAMED(d, 2, c)
#define DIMS4(a, b, c, d_) DIMS3(a, b, c) NAMED(d, 3, d_)
#define DIMS5(a, b, c, d_, e) DIMS4(a, b, c, d_) NAMED(d, 4, e)
#define DIMS6(a, b, c, d_, e, f_) DIMS5(a, b, c, d_, e) NAMED(d, 5, f_)
#define DIMS7(a, b, c, d_, e, f_, g) DIMS6(a, b, c, d_, e, f_) NAMED(d, 6, g)
#define DIMS8(a, b, c, d_, e, f_, g, h) DIMS7(a, b, c, d_, e, f_, g) NAMED(d, 7, h)
#define PARAMETERS0()
#define PARAMETERS1(a) NAMED(f, 0, a)
#define PARAMETERS2(a, b) PARAMETERS1(a) NAMED(f, 1, b)
#define PARAMETERS3(a, b, c) PARAMETERS2(a, b) NAMED(f, 2, c)
#define PARAMETERS4(a, b, c, d_) PARAMETERS3(a, b, c) NAMED(f, 3, d_)
#define PARAMETERS5(a, b, c, d_, e) PARAMETERS4(a, b, c, d_) NAMED(f, 4, e)
#define PARAMETERS6(a, b, c, d_, e, f_) PARAMETERS5(a, b, c, d_, e) NAMED(f, 5, f_)
#define ARGUMENT(index, name) const double name UNUSED = arguments ? arguments->a[index] : 0;
#define ARGUMENTS0()
#define ARGUMENTS1(a) ARGUMENT(0, a)
#define ARGUMENTS2(a, b) ARGUMENTS1(a) ARGUMENT(1, b)
#define ARGUMENTS3(a, b, c) ARGUMENTS2(a, b) ARGUMENT(2, c)
#define ARGUMENTS4(a, b, c, d_) ARGUMENTS3(a, b, c) ARGUMENT(3, d_)
#define ARGUMENTS6(a, b, c, d_, e, f_) ARGUMENTS4(a, b, c, d_) ARGUMENT(4, e) ARGUMENT(5, f_)
#define FLOPS(...) (__VA_ARGS__)
#define ELEMENTS(...) (__VA_ARGS__)
#define flag(name) ((work->flags & TWS_##name) != 0)
#define EIGHT(type) (flag(FP8) ? TWS_##type : dtype)

/* Names for the rows of operators.def: the bits of a code of this type, and the number of scale values of a block of
 * codes (models/quantized.h). */
static inline double code_bits(double type) {
  return tws_code_bits((int)type);
}
static inline double code_scales(double type) {
  return tws_code_scales((int)type);
}

static inline double least_of(double a, double b) {
  return a < b ? a : b;
}

/* Returns the number of segments of at most `size` elements into which `count` elements are divided. */
static inline double pieces(double count, double size) {
  return ceil(count / size);
}

/* Returns the number of key heads of all ranks together; a head with copies on several ranks counts once per copy. */
static inline double packed(double kv_heads, double ranks) {
  return kv_heads > 0 && kv_heads < ranks ? ranks : kv_heads;
}

/* Returns the number of keys of a sequence of ATTENTION. */
static inline double keys(double seq, double kv_seq) {
  return kv_seq > 0 ? kv_seq : seq;
}

/* Returns the number of slots of an expert that one source rank is expected to fill: `expected`, or all (`capacity`) if
 * that is 0. */
static inline double filled(double expected, double capacity) {
  return expected > 0 ? expected : capacity;
}

/* Returns the sum of the integers up to `last`, where each term is clamped to the range from 0 to `top`. */
static inline double clamped_sum(double last, double top) {
  return last <= 0 ? 0 : last <= top ? last * (last + 1) / 2 : top * (top + 1) / 2 + (last - top) * top;
}

/* Returns the number of pairs, for one head and sequence, of a query and a key that the query sees, as
 * tws_attention_keys() determines them. */
static inline double pairs(double seq, double kv_seq, double window, int bidirectional) {
  const double all = keys(seq, kv_seq), first = all - seq; /* first: position of the first query */
  double end = bidirectional ? window : 1, ends = seq * all, begins = 0;
  if (!bidirectional || window > 0) ends = clamped_sum(first + seq - 1 + end, all) - clamped_sum(first - 1 + end, all);
  if (window > 0) begins = clamped_sum(first + seq - window, all) - clamped_sum(first - window, all);
  return ends - begins;
}

/* Returns the number of pairs of a query and a key that it sees, as pairs() counts them, in a sequence that consists of
 * documents of `document` tokens each; 0: of one document. */
static inline double seen_pairs(double seq, double kv_seq, double window, double document, int bidirectional) {
  if (document <= 0 || document >= seq) return pairs(seq, kv_seq, window, bidirectional);
  return seq / document * pairs(document, 0, window < document ? window : 0, bidirectional);
}

/* Returns the length of a window along one side of a picture, as in tws_windows_of(). */
static inline double window(double extent, double side) {
  return side > 0 ? side : extent;
}
static inline double windows(double extent, double side, double stride, double padding) {
  const double room = extent + 2 * padding - side;
  return side <= 0 ? 1 : room < 0 ? 0 : floor(room / (stride > 0 ? stride : 1)) + 1;
}

/* Returns the number of cached positions that a token of CACHED_ATTENTION is expected to see. */
static inline double cached_keys(double rows, double keys_, double window) {
  double seen = keys_ > 0 && keys_ < rows ? keys_ : rows;
  return window > 0 && window < seen ? window : seen;
}

/* Returns the number of blocks of a sequence's rows in a cache of keys and values. */
static inline double blocks_of(double rows, double block) {
  return block > 0 ? ceil(rows / block) : 1;
}

/* Returns the number of products that are summed for one output element of a convolution. */
static inline double taps(double side, double in, double groups) {
  return (side > 0 ? side * side : 1) * in / (groups > 0 ? groups : 1);
}

/* Each operator has functions of its own, which tables list. One function with a case for each operator takes a
 * compiler longer than all small functions together, and the address sanitizer marks the operands of all operators on
 * its stack in every call. */

#define OPERATOR(id, name_, summary_, dims_, parameters_, arguments_, flops_, elements_, traits_, operands_) \
  static double flops_of_##name_(const tws_work *work) {                                                     \
    (void)work;                                                                                              \
    dims_ parameters_ return flops_;                                                                         \
  }                                                                                                          \
  static double elements_of_##name_(const tws_work *work) {                                                  \
    (void)work;                                                                                              \
    dims_ parameters_ return elements_;                                                                      \
  }
#include "models/operators.def"

double tws_work_flops(const tws_work *work) {
#define OPERATOR(id, name_, ...) [TWS_KERNEL_##id] = flops_of_##name_,
  static double (*const flops_of[TWS_KERNEL_COUNT])(const tws_work *) = {
#include "models/operators.def"
  };
  const int is_kernel = work->kind == 0 && work->code < TWS_KERNEL_COUNT; /* kind 0: a kernel */
  return is_kernel ? flops_of[work->code](work) : 0;
}

double tws_work_elements(const tws_work *work) {
#define OPERATOR(id, name_, ...) [TWS_KERNEL_##id] = elements_of_##name_,
  static double (*const elements_of[TWS_KERNEL_COUNT])(const tws_work *) = {
#include "models/operators.def"
  };
  return work->code < TWS_KERNEL_COUNT ? elements_of[work->code](work) : 0;
}

/* ---- operands ---- */

#undef OPERANDS
#undef OPERAND
#undef SHAPE
#undef WHEN
#undef ADDS_WITH
#undef MOVES
#undef HOLDS
#undef IDS
#define OPERANDS(...) __VA_ARGS__
#define OPERAND(access_, name_, dtype_, ...) \
  EACH(((tws_kernel_operand){.name = #name_, .access = TWS_OPERAND_##access_, .dtype = (dtype_), __VA_ARGS__}))
#define PRODUCT1(a) (a)
#define PRODUCT2(a, b) ((double)(a) * (double)(b))
#define PRODUCT3(a, b, c) (PRODUCT2(a, b) * (double)(c))
#define PRODUCT4(a, b, c, d) (PRODUCT3(a, b, c) * (double)(d))
#define FIFTH(a, b, c, d, e, ...) e
#define SHAPE(...) .elements = FIFTH(__VA_ARGS__, PRODUCT4, PRODUCT3, PRODUCT2, PRODUCT1, 0)(__VA_ARGS__)
#define WHEN(condition) .absent = !(condition)
#define ADDS_WITH(name) .adds = flag(name)
#define MOVES(reads_, writes_) .moves_part = 1, .reads = (reads_), .writes = (writes_)
#define HOLDS(content_) .content = TWS_HOLDS_##content_
#define IDS(content_, first_, count_) HOLDS(content_), .first = (first_), .below = (count_)

/* Returns the bytes of an element; unlike in tws_dtype_bytes(), the compiler can evaluate it for a constant type. */
static inline double element_bytes(tws_dtype dtype) {
#define X(name, bytes, text) [TWS_##name] = bytes,
  static const unsigned char sizes[TWS_DTYPE_COUNT] = {TWS_DTYPES(X)};
#undef X
  return (unsigned)dtype < TWS_DTYPE_COUNT ? sizes[dtype] : 0;
}

/* Returns the compulsory traffic of one operand in bytes: each element is read or written once. */
static inline double operand_bytes(tws_kernel_operand o) {
  if (o.absent) return 0;
  const double passes = o.adds || o.access == TWS_OPERAND_UPDATE ? 2 : 1;
  return (o.moves_part ? o.reads + o.writes : passes * o.elements) * element_bytes(o.dtype);
}

static inline int put(tws_kernel_operand *list, int length, tws_kernel_operand o) {
  if (o.absent) return length;
  if (o.adds) o.access = TWS_OPERAND_UPDATE;
  list[length] = o;
  return length + 1;
}

/* The operands' expressions name these types, and bytes do not depend on arguments. */
#define TYPES const tws_dtype dtype UNUSED = (tws_dtype)work->dtype, dtype2 UNUSED = (tws_dtype)work->dtype2;
#define OPERATOR(id, name_, summary_, dims_, parameters_, arguments_, flops_, elements_, traits_, operands_) \
  static double bytes_of_##name_(const tws_work *work) {                                                     \
    const tws_arguments *const arguments UNUSED = NULL;                                                      \
    double bytes = 0;                                                                                        \
    TYPES dims_ parameters_ arguments_ operands_ return bytes;                                               \
  }
#define EACH(operand_) bytes += operand_bytes operand_;
#include "models/operators.def"
#undef EACH
#define OPERATOR(id, name_, summary_, dims_, parameters_, arguments_, flops_, elements_, traits_, operands_) \
  static int operands_of_##name_(const tws_work *work, const tws_arguments *arguments UNUSED,                \
                                 tws_kernel_operand *list) {                                                 \
    int length = 0;                                                                                          \
    TYPES dims_ parameters_ arguments_ operands_ return length;                                              \
  }
#define EACH(operand_) length = put(list, length, operand_);
#include "models/operators.def"

double tws_work_bytes(const tws_work *work) {
#define OPERATOR(id, name_, ...) [TWS_KERNEL_##id] = bytes_of_##name_,
  static double (*const bytes_of[TWS_KERNEL_COUNT])(const tws_work *) = {
#include "models/operators.def"
  };
  if (work->kind != 0) return (double)work->d[0];
  return work->code < TWS_KERNEL_COUNT ? bytes_of[work->code](work) : 0;
}

int tws_work_operands(const tws_work *work, const tws_arguments *arguments,
                      tws_kernel_operand list[TWS_OPERATOR_OPERANDS]) {
#define OPERATOR(id, name_, ...) [TWS_KERNEL_##id] = operands_of_##name_,
  static int (*const operands_of[TWS_KERNEL_COUNT])(const tws_work *, const tws_arguments *, tws_kernel_operand *) = {
#include "models/operators.def"
  };
  return work->kind == 0 && work->code < TWS_KERNEL_COUNT ? operands_of[work->code](work, arguments, list) : 0;
}
