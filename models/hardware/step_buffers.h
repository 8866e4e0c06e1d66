/* Device memory of other software around its optimizer step, as rows of step_buffers.def. */
#ifndef TWS_MODELS_STEP_BUFFERS_H
#define TWS_MODELS_STEP_BUFFERS_H

typedef enum tws_step_software { TWS_STEP_AS_PLANNED, TWS_STEP_DEEPSPEED } tws_step_software;

typedef enum tws_step_moment {
  TWS_MOMENT_BACKWARD, /* beside all of the passes */
  TWS_MOMENT_REDUCED,  /* when a large gradient has been reduced; checkpoints of layers still wait */
  TWS_MOMENT_NORM,     /* from here on activations are gone */
  TWS_MOMENT_COPIES,
  TWS_MOMENT_UPDATE,
  TWS_MOMENT_COUNT
} tws_step_moment;

/* Elements: of a rank's shard; of the largest sub-group of it; of the largest parameter; of that as far as a shard has
 * it. */
typedef enum tws_step_of { TWS_STEP_SHARD, TWS_STEP_SUB_GROUP, TWS_STEP_LARGEST, TWS_STEP_SLICE } tws_step_of;

typedef enum tws_step_where {
  TWS_STEP_STAGES_1_2,
  TWS_STEP_STAGES_1_2_TORCH,
  TWS_STEP_STAGE_3,
  TWS_STEP_STAGE_3_TORCH,
  TWS_STEP_OFFLOADED_2,      /* and stage 1 */
  TWS_STEP_ACCUMULATION_OF_2 /* stage 2 with several micro-batches */
} tws_step_where;

typedef struct tws_step_buffer {
  tws_step_software software;
  const char *what;
  double bytes; /* of an element */
  tws_step_moment moment;
  tws_step_of of;
  tws_step_where where;
} tws_step_buffer;

const tws_step_buffer *tws_step_buffers(int *count);

#endif
