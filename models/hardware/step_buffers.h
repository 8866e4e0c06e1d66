/* Computes the device memory that other software allocates around its optimizer step. The rows of step_buffers.def list
 * the buffers. */
#ifndef TWS_MODELS_STEP_BUFFERS_H
#define TWS_MODELS_STEP_BUFFERS_H

typedef enum tws_step_software {
  TWS_STEP_AS_PLANNED,
  TWS_STEP_DEEPSPEED,
  TWS_STEP_FOREACH /* PyTorch's optimizers with foreach, without DeepSpeed */
} tws_step_software;

typedef enum tws_step_moment {
  TWS_MOMENT_BACKWARD, /* the buffer exists during all forward and backward passes */
  TWS_MOMENT_REDUCED,  /* from the reduction of a large gradient on; layers' activation checkpoints still exist */
  TWS_MOMENT_NORM,     /* the buffer exists while the gradient norm is computed; from here on no activations exist */
  TWS_MOMENT_COPIES,
  TWS_MOMENT_UPDATE,
  TWS_MOMENT_COUNT
} tws_step_moment;

/* The number of elements of a buffer: that of a rank's shard, of the shard's largest sub-group, of the largest
 * parameter, or of the rank's shard of the largest parameter. */
typedef enum tws_step_of { TWS_STEP_SHARD, TWS_STEP_SUB_GROUP, TWS_STEP_LARGEST, TWS_STEP_SLICE } tws_step_of;

typedef enum tws_step_where {
  TWS_STEP_ADAM, /* allocated at all stages, if the optimizer has two float32 moments */
  TWS_STEP_STAGES_1_2,
  TWS_STEP_STAGES_1_2_TORCH,
  TWS_STEP_STAGE_3,
  TWS_STEP_STAGE_3_TORCH,
  TWS_STEP_OFFLOADED_2,      /* allocated at stages 1 and 2, if the optimizer is on the host */
  TWS_STEP_ACCUMULATION_OF_2 /* allocated at stage 2 if a step has several micro-batches */
} tws_step_where;

typedef struct tws_step_buffer {
  tws_step_software software;
  const char *what;
  double bytes; /* bytes per element */
  tws_step_moment moment;
  tws_step_of of;
  tws_step_where where;
} tws_step_buffer;

const tws_step_buffer *tws_step_buffers(int *count);

#endif
