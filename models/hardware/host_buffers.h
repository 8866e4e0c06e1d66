/* Computes the host memory per node that other software needs in addition to, or instead of, the host memory of a plan.
 * The rows of host_buffers.def list the buffers. */
#ifndef TWS_MODELS_HOST_BUFFERS_H
#define TWS_MODELS_HOST_BUFFERS_H

typedef enum tws_host_software { TWS_HOST_AS_PLANNED, TWS_HOST_DEEPSPEED } tws_host_software;

/* The conditions under which software allocates a buffer: offloading of parameters or of the optimizer, at which ZeRO
 * stages, and for some buffers only if a step has several micro-batches. */
typedef enum tws_host_of {
  TWS_HOST_PARAMETERS_OF_3,
  TWS_HOST_OPTIMIZER,
  TWS_HOST_OPTIMIZER_OF_3,
  TWS_HOST_OPTIMIZER_OF_2, /* stages 1 and 2 */
  TWS_HOST_ACCUMULATION_OF_2
} tws_host_of;

typedef enum tws_host_pinned {
  TWS_PINNED_NEVER,
  TWS_PINNED_ALWAYS,
  /* page-locked if the offloaded parameters are: PyTorch's pool of pinned blocks then keeps the memory after the
   * software has freed it; otherwise the buffer is temporary and not counted */
  TWS_PINNED_KEPT,
  TWS_PINNED_OPTIMIZER /* page-locked if the offloaded optimizer is, otherwise pageable */
} tws_host_pinned;

/* The unit of one allocation, which is rounded up if it is page-locked: all elements of a rank, one of the two
 * parameter groups that Hugging Face's Trainer makes (weights with and without weight decay), a sub-group of the
 * optimizer, or a parameter. */
typedef enum tws_host_unit { TWS_HOST_WHOLE, TWS_HOST_GROUP, TWS_HOST_SUB_GROUP, TWS_HOST_PARAMETER } tws_host_unit;

typedef struct tws_host_buffer {
  tws_host_software software;
  const char *what;
  double bytes; /* bytes per element of a rank */
  tws_host_of of;
  tws_host_pinned pinned;
  tws_host_unit unit;
} tws_host_buffer;

const tws_host_buffer *tws_host_buffers(int *count);

#endif
