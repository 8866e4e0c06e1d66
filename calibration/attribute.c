#include "calibration/attribute.h"

#include <ctype.h>
#include <string.h>

const char *tws_part_name(int part) {
  return (const char *const[]){"linear", "attention", "norm",        "activation", "embedding",
                               "loss",   "experts",   "elementwise", "optimizer",  "communication"}[part];
}

/* The first row whose text occurs in a name, ignoring case, determines the kind of module; special names precede
 * general ones. The rows have names from PyTorch's operators, its CUDA kernels, cuBLAS, cuDNN, CUTLASS, Transformer
 * Engine, flash-attention, Apex, Triton's from torch.compile, hipBLASLt and Megatron-LM. */
static const struct {
  const char *text;
  tws_part part;
} rows[] = {{"nccl", TWS_PART_COMMUNICATION},
            {"rccl", TWS_PART_COMMUNICATION},
            {"c10d::", TWS_PART_COMMUNICATION},
            {"allreduce", TWS_PART_COMMUNICATION},
            {"allgather", TWS_PART_COMMUNICATION},
            {"optimizer.", TWS_PART_OPTIMIZER},
            {"multi_tensor", TWS_PART_OPTIMIZER},
            {"multitensor", TWS_PART_OPTIMIZER},
            {"adam", TWS_PART_OPTIMIZER},
            {"lamb", TWS_PART_OPTIMIZER},
            {"sgd_", TWS_PART_OPTIMIZER},
            {"_foreach_", TWS_PART_OPTIMIZER},
            {"addcdiv", TWS_PART_OPTIMIZER},
            {"addcmul", TWS_PART_OPTIMIZER},
            {"vector_norm", TWS_PART_OPTIMIZER},
            {"l2norm", TWS_PART_OPTIMIZER},
            {"clip_grad", TWS_PART_OPTIMIZER},
            {"clip_coef", TWS_PART_OPTIMIZER},
            {"log_softmax", TWS_PART_LOSS},
            {"logsoftmax", TWS_PART_LOSS},
            {"nll_loss", TWS_PART_LOSS},
            {"nllloss", TWS_PART_LOSS},
            {"cross_entropy", TWS_PART_LOSS},
            {"crossentropy", TWS_PART_LOSS},
            {"flash", TWS_PART_ATTENTION},
            {"fmha", TWS_PART_ATTENTION},
            {"attention", TWS_PART_ATTENTION},
            {"sdpa", TWS_PART_ATTENTION},
            {"scaled_dot", TWS_PART_ATTENTION},
            {"softmax", TWS_PART_ATTENTION},
            {"aten::bmm", TWS_PART_ATTENTION},
            {"bmmbackward", TWS_PART_ATTENTION},
            {"aten::baddbmm", TWS_PART_ATTENTION},
            {"rope", TWS_PART_ATTENTION},
            {"rotary", TWS_PART_ATTENTION},
            {"layer_norm", TWS_PART_NORM},
            {"layernorm", TWS_PART_NORM},
            {"rms_norm", TWS_PART_NORM},
            {"rmsnorm", TWS_PART_NORM},
            {"rowwisemoments", TWS_PART_NORM},
            {"gammabeta", TWS_PART_NORM},
            {"ln_fwd", TWS_PART_NORM},
            {"ln_bwd", TWS_PART_NORM},
            {"batch_norm", TWS_PART_NORM},
            {"gelu", TWS_PART_ACTIVATION},
            {"silu", TWS_PART_ACTIVATION},
            {"swiglu", TWS_PART_ACTIVATION},
            {"relu", TWS_PART_ACTIVATION},
            {"aten::tanh", TWS_PART_ACTIVATION},
            {"embedding", TWS_PART_EMBEDDING},
            {"indexselect", TWS_PART_EMBEDDING},
            {"index_select", TWS_PART_EMBEDDING},
            {"indexing_backward", TWS_PART_EMBEDDING},
            {"topk", TWS_PART_EXPERTS},
            {"permute_kernel", TWS_PART_EXPERTS},
            {"moe_", TWS_PART_EXPERTS},
            {"router", TWS_PART_EXPERTS},
            {"gemm", TWS_PART_LINEAR},
            {"gemv", TWS_PART_LINEAR},
            {"cutlass", TWS_PART_LINEAR},
            {"xmma", TWS_PART_LINEAR},
            {"cublas", TWS_PART_LINEAR},
            {"nvjet", TWS_PART_LINEAR},
            {"splitk", TWS_PART_LINEAR},
            {"cijk_", TWS_PART_LINEAR},
            {"aten::mm", TWS_PART_LINEAR},
            {"aten::addmm", TWS_PART_LINEAR},
            {"aten::linear", TWS_PART_LINEAR},
            {"aten::matmul", TWS_PART_LINEAR},
            {"mmbackward", TWS_PART_LINEAR},
            {"linear", TWS_PART_LINEAR},
            {"convolution", TWS_PART_LINEAR},
            {"conv2d", TWS_PART_LINEAR},
            {"elementwise", TWS_PART_ELEMENTWISE},
            {"reduce_kernel", TWS_PART_ELEMENTWISE},
            {"triton_", TWS_PART_ELEMENTWISE},
            {"dropout", TWS_PART_ELEMENTWISE},
            {"catarray", TWS_PART_ELEMENTWISE},
            {"memcpy", TWS_PART_ELEMENTWISE},
            {"memset", TWS_PART_ELEMENTWISE},
            {"copy", TWS_PART_ELEMENTWISE},
            {"transpose", TWS_PART_ELEMENTWISE},
            {"cast", TWS_PART_ELEMENTWISE},
            {"aten::", TWS_PART_ELEMENTWISE},
            {"backward0", TWS_PART_ELEMENTWISE},
            {"accumulategrad", TWS_PART_ELEMENTWISE}};

static int contains(const char *name, const char *text) {
  const size_t length = strlen(text);
  for (; *name; name++) {
    size_t i = 0;
    while (i < length && tolower((unsigned char)name[i]) == text[i]) i++;
    if (i == length) return 1;
  }
  return 0;
}

static tws_part part_of(const char *name) {
  for (size_t i = 0; *name && i < sizeof rows / sizeof *rows; i++)
    if (contains(name, rows[i].text)) return rows[i].part;
  return TWS_PART_COUNT;
}

tws_part tws_part_of_recorded(const tws_recorded_kernel *kernel) {
  const tws_part own = part_of(kernel->name), under = part_of(kernel->under);
  if (under == TWS_PART_OPTIMIZER) return under;
  if (own == TWS_PART_COUNT || (own == TWS_PART_ELEMENTWISE && under != TWS_PART_COUNT)) return under;
  return own;
}

int tws_collective_of_recorded(const char *name) {
  static const struct {
    const char *text;
    tws_collective collective;
  } kinds[] = {{"allreduce", TWS_COLLECTIVE_ALL_REDUCE},
               {"all_reduce", TWS_COLLECTIVE_ALL_REDUCE},
               {"reducescatter", TWS_COLLECTIVE_REDUCE_SCATTER},
               {"reduce_scatter", TWS_COLLECTIVE_REDUCE_SCATTER},
               {"allgather", TWS_COLLECTIVE_ALL_GATHER},
               {"all_gather", TWS_COLLECTIVE_ALL_GATHER},
               {"alltoall", TWS_COLLECTIVE_ALL_TO_ALL},
               {"broadcast", TWS_COLLECTIVE_BROADCAST},
               {"reduce_", TWS_COLLECTIVE_REDUCE}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (contains(name, kinds[i].text)) return (int)kinds[i].collective;
  return TWS_COLLECTIVE_COUNT;
}

tws_part tws_part_of_kernel(tws_kernel kernel) {
  const char *name = tws_kernel_name(kernel);
  static const struct {
    const char *text;
    tws_part part;
  } kernels[] = {{"expert_linear", TWS_PART_LINEAR},
                 {"linear", TWS_PART_LINEAR},
                 {"convolution", TWS_PART_LINEAR},
                 {"attention", TWS_PART_ATTENTION},
                 {"disentangled", TWS_PART_ATTENTION},
                 {"rope", TWS_PART_ATTENTION},
                 {"latent", TWS_PART_ATTENTION},
                 {"squared_norm", TWS_PART_OPTIMIZER},
                 {"unit_norm", TWS_PART_OPTIMIZER},
                 {"newton_schulz", TWS_PART_OPTIMIZER},
                 {"clip", TWS_PART_OPTIMIZER},
                 {"adam", TWS_PART_OPTIMIZER},
                 {"lamb", TWS_PART_OPTIMIZER},
                 {"lion", TWS_PART_OPTIMIZER},
                 {"adagrad", TWS_PART_OPTIMIZER},
                 {"factor", TWS_PART_OPTIMIZER},
                 {"sgd", TWS_PART_OPTIMIZER},
                 {"muon", TWS_PART_OPTIMIZER},
                 {"norm", TWS_PART_NORM},
                 {"gelu", TWS_PART_ACTIVATION},
                 {"relu", TWS_PART_ACTIVATION},
                 {"glu", TWS_PART_ACTIVATION},
                 {"embedding", TWS_PART_EMBEDDING},
                 {"position", TWS_PART_EMBEDDING},
                 {"cross_entropy", TWS_PART_LOSS},
                 {"vocabulary", TWS_PART_LOSS},
                 {"router", TWS_PART_EXPERTS},
                 {"dispatch", TWS_PART_EXPERTS},
                 {"combine", TWS_PART_EXPERTS},
                 {"balance", TWS_PART_EXPERTS}};
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
    if (strstr(name, kernels[i].text)) return kernels[i].part;
  return TWS_PART_ELEMENTWISE;
}
