/* Describes the CNN of the CIFAR-10 tutorial in C, prints its size, and with a file of pictures trains it:
 * `network data_batch_1.bin`. */
#include <stdio.h>
#include <stdlib.h>
#include <twinspeed.h>

enum { STEPS = 5 };

static const twinspeed_picture picture = {.side = 32, .channels = 3};
static const twinspeed_module modules[] = {{.name = "conv1", .type = "convolution", .keys = "out=6, side=5"},
                                           {.type = "relu"},
                                           {.name = "pool1", .type = "max_pool", .keys = "side=2"},
                                           {.name = "conv2", .type = "convolution", .keys = "out=16, side=5"},
                                           {.type = "relu"},
                                           {.name = "pool2", .type = "max_pool", .keys = "side=2"},
                                           {.type = "flatten"},
                                           {.name = "fc1", .type = "linear", .keys = "out=120"},
                                           {.type = "relu"},
                                           {.name = "fc2", .type = "linear", .keys = "out=84"},
                                           {.type = "relu"},
                                           {.name = "fc3", .type = "linear", .keys = "out=10"}};

static twinspeed_error error;

static void need(twinspeed_status status) {
  if (status == TWINSPEED_OK) return;
  fprintf(stderr, "%s: %s\n%s\n", twinspeed_status_name(status), error.message, error.hint);
  exit(1);
}

static void train(const twinspeed_job *job, const char *data) {
  twinspeed_engine_options options;
  twinspeed_engine *engine;
  twinspeed_step step;
  twinspeed_engine_options_init(&options);
  options.data = data;
  need(twinspeed_engine_open(job, &options, &engine, &error));
  for (int s = 0; s < STEPS; s++) {
    need(twinspeed_train_batch(engine, NULL, &step, &error));
    printf("step %d: loss %.9g\n", (int)step.step, step.loss);
  }
  twinspeed_engine_close(engine);
}

int main(int argc, char **argv) {
  twinspeed_network network;
  twinspeed_options options;
  twinspeed_job_facts facts;
  twinspeed_job *job;
  char *text;
  twinspeed_network_init(&network);
  network.pictures = &picture;
  network.picture_count = 1;
  network.classes = 10;
  network.modules = modules;
  network.module_count = sizeof modules / sizeof *modules;
  network.keys = "name=the CNN of the CIFAR-10 tutorial";
  need(twinspeed_network_text(&network, &text, &error));
  twinspeed_options_init(&options);
  options.model = text;
  options.micro_batch = 8;
  need(twinspeed_open(&options, &job, &error));
  twinspeed_job_describe(job, &facts);
  printf("%.0f parameters\n", facts.parameters);
  if (argc > 1) train(job, argv[1]);
  twinspeed_close(job);
  twinspeed_free(text);
  return 0;
}
