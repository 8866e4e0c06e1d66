/* Host memory of other software on a node, in addition to or in place of a plan's, as rows of host_buffers.def. */
#ifndef TWS_MODELS_HOST_BUFFERS_H
#define TWS_MODELS_HOST_BUFFERS_H

typedef enum tws_host_software { TWS_HOST_AS_PLANNED, TWS_HOST_DEEPSPEED } tws_host_software;

/* Whose offloading asks for a buffer: that of parameters, of the optimizer; at which ZeRO stages; only where a step has
 * several micro-batches. */
typedef enum tws_host_of {
  TWS_HOST_PARAMETERS_OF_3,
  TWS_HOST_OPTIMIZER,
  TWS_HOST_OPTIMIZER_OF_3,
  TWS_HOST_OPTIMIZER_OF_2, /* and of stage 1 */
  TWS_HOST_ACCUMULATION_OF_2
} tws_host_of;

typedef enum tws_host_pinned {
  TWS_PINNED_NEVER,
  TWS_PINNED_ALWAYS,
  TWS_PINNED_KEPT,     /* where the offloaded parameters are to be page-locked; else it is freed */
  TWS_PINNED_OPTIMIZER /* where the optimizer's are */
} tws_host_pinned;

/* The unit of one allocation, which is rounded up if it is pinned: all of a rank, the weights that decay and those that
 * do not apart (two groups, as Hugging Face's Trainer makes them), a sub-group of the optimizer, or a parameter. */
typedef enum tws_host_unit { TWS_HOST_WHOLE, TWS_HOST_GROUP, TWS_HOST_SUB_GROUP, TWS_HOST_PARAMETER } tws_host_unit;

typedef struct tws_host_buffer {
  tws_host_software software;
  const char *what;
  double bytes; /* of a rank's element */
  tws_host_of of;
  tws_host_pinned pinned;
  tws_host_unit unit;
} tws_host_buffer;

const tws_host_buffer *tws_host_buffers(int *count);

#endif
