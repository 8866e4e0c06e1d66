/* Small networks of network files that suites train, and pictures for them. */
#ifndef TWS_TESTS_NETWORK_FILES_H
#define TWS_TESTS_NETWORK_FILES_H

#include <stdint.h>
#include <stdio.h>

static inline uint32_t word_of(uint64_t element, uint64_t stream) {
  uint32_t x = (uint32_t)(element + stream * UINT64_C(0x9e3779b9));
  x = (x ^ x >> 16) * 0x85ebca6bU;
  x = (x ^ x >> 13) * 0xc2b2ae35U;
  return (x ^ x >> 16) >> 8;
}

/* Sixteen pictures: class i mod 10, and pixels by a formula. */
enum { PICTURES = 16, SIDE = 32, CHANNELS = 3, CLASSES = 10 };
static inline void write_pictures(const char *path) {
  FILE *file = fopen(path, "wb");
  for (int i = 0; i < PICTURES; i++) {
    fputc(i % CLASSES, file);
    for (uint64_t k = 0; k < SIDE * SIDE * CHANNELS; k++) fputc((int)(word_of(k, 1000 + (uint64_t)i) % 256), file);
  }
  fclose(file);
}

/* AlexNet's modules (Krizhevsky et al., 2012) with small widths, for pictures of CIFAR-10's size. */
#define SMALL_ALEXNET                                                                                               \
  "{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":32,\"channels\":3}},\"classes\":10,\"modules\":["  \
  "{\"type\":\"convolution\",\"out\":8,\"side\":5,\"stride\":2,\"padding\":2},{\"type\":\"relu\"},"                 \
  "{\"type\":\"max_pool\",\"side\":3,\"stride\":2},{\"type\":\"convolution\",\"out\":16,\"side\":3,\"padding\":1}," \
  "{\"type\":\"relu\"},{\"type\":\"max_pool\",\"side\":3,\"stride\":2},"                                            \
  "{\"type\":\"convolution\",\"out\":24,\"side\":3,\"padding\":1},{\"type\":\"relu\"},"                             \
  "{\"type\":\"convolution\",\"out\":16,\"side\":3,\"padding\":1},{\"type\":\"relu\"},"                             \
  "{\"type\":\"convolution\",\"out\":16,\"side\":3,\"padding\":1},{\"type\":\"relu\"},"                             \
  "{\"type\":\"max_pool\",\"side\":3,\"stride\":2},{\"type\":\"flatten\"},{\"type\":\"linear\",\"out\":32},"        \
  "{\"type\":\"relu\"},{\"type\":\"linear\",\"out\":32},{\"type\":\"relu\"},{\"type\":\"linear\",\"out\":10}]}"

/* Strided convolutions, a transposed one and the activations that other networks here do not have. */
#define DECODER(loss)                                                                                                 \
  "{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":32,\"channels\":3}},\"classes\":10,\"loss\":\"" loss \
  "\",\"modules\":[{\"type\":\"convolution\",\"out\":8,\"side\":4,\"stride\":2,\"padding\":1},"                       \
  "{\"type\":\"leaky_relu\",\"slope\":0.2},{\"type\":\"convolution\",\"out\":12,\"side\":4,\"stride\":2,\"padding\":" \
  "1},"                                                                                                               \
  "{\"type\":\"leaky_relu\",\"slope\":0.2},"                                                                          \
  "{\"type\":\"transposed_convolution\",\"out\":6,\"side\":4,\"stride\":2,\"padding\":1},{\"type\":\"tanh\"},"        \
  "{\"type\":\"flatten\"},{\"type\":\"linear\",\"out\":16},{\"type\":\"sigmoid\"},{\"type\":\"linear\",\"out\":10}]}"

/* The CIFAR-10 tutorial's mixture of experts; rows are dropped as they come, not at random. */
#define EXPERTS(keys)                                                                                              \
  "{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":32,\"channels\":3}},\"classes\":10,\"modules\":[" \
  "{\"type\":\"convolution\",\"out\":6,\"side\":5},{\"type\":\"relu\"},{\"type\":\"max_pool\",\"side\":2},"        \
  "{\"type\":\"convolution\",\"out\":16,\"side\":5},{\"type\":\"relu\"},{\"type\":\"max_pool\",\"side\":2},"       \
  "{\"type\":\"flatten\"},{\"type\":\"linear\",\"out\":120},{\"type\":\"relu\"},{\"type\":\"linear\",\"out\":84}," \
  "{\"type\":\"relu\"},{\"type\":\"experts\",\"experts\":4,\"min_capacity\":0,\"residual\":true,\"selection\":"    \
  "\"first\"," keys "},{\"type\":\"linear\",\"out\":10}]}"

/* Three layers of one weight. */
#define TIED_LAYERS                                                                                                \
  "{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":32,\"channels\":3}},\"classes\":10,\"modules\":[" \
  "{\"type\":\"convolution\",\"out\":4,\"side\":8,\"stride\":8},{\"type\":\"flatten\"},"                           \
  "{\"name\":\"first\",\"type\":\"linear\",\"out\":64},{\"type\":\"tanh\"},"                                       \
  "{\"repeat\":2,\"name\":\"again\",\"modules\":[{\"type\":\"linear\",\"out\":64,\"tied\":\"first\"},"             \
  "{\"type\":\"tanh\"}]},{\"type\":\"linear\",\"out\":10}]}"

/* Two pictures of each record, two labels, and three losses with weights, one of them on the way. */
#define TWO_PICTURES                                                                                              \
  "{\"model_type\":\"network\",\"input\":{\"pictures\":[{\"name\":\"left\",\"side\":32,\"channels\":3},"          \
  "{\"name\":\"right\",\"side\":16,\"channels\":1}]},\"classes\":{\"fine\":10,\"coarse\":4},\"modules\":["        \
  "{\"name\":\"l\",\"type\":\"convolution\",\"input\":\"left\",\"out\":6,\"side\":5,\"stride\":3},"               \
  "{\"name\":\"lt\",\"type\":\"tanh\"},"                                                                          \
  "{\"name\":\"r\",\"type\":\"convolution\",\"input\":\"right\",\"out\":6,\"side\":7},{\"name\":\"rt\",\"type\":" \
  "\"tanh\"},"                                                                                                    \
  "{\"type\":\"add\",\"input\":[\"lt\",\"rt\"]},{\"type\":\"average_pool\",\"side\":2},"                          \
  "{\"name\":\"flat\",\"type\":\"flatten\"},{\"name\":\"coarse_scores\",\"type\":\"linear\",\"out\":4},"          \
  "{\"name\":\"h\",\"type\":\"linear\",\"input\":\"flat\",\"out\":24},{\"name\":\"g\",\"type\":\"gelu\"},"        \
  "{\"name\":\"early_scores\",\"type\":\"linear\",\"out\":10},{\"name\":\"h2\",\"type\":\"linear\",\"input\":"    \
  "\"g\",\"out\":16},{\"type\":\"tanh\"},{\"name\":\"fine_scores\",\"type\":\"linear\",\"out\":10}],\"losses\":[" \
  "{\"name\":\"coarse\",\"of\":\"coarse_scores\",\"label\":\"coarse\",\"weight\":0.3},"                           \
  "{\"name\":\"early\",\"of\":\"early_scores\",\"label\":\"fine\",\"weight\":0.5,\"loss\":"                       \
  "\"binary_cross_entropy\"},{\"name\":\"fine\",\"of\":\"fine_scores\",\"label\":\"fine\"}]}"

/* The networks of PyTorch's DCGAN tutorial with small widths, for pictures of 32 x 32 pixels. `norm`: the norm's type. */
#define DCGAN(norm)                                                                                                  \
  "{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":32,\"channels\":3},\"noise\":{\"side\":1,"          \
  "\"channels\":8}},\"networks\":[{\"name\":\"generator\",\"modules\":["                                             \
  "{\"type\":\"transposed_convolution\",\"out\":16,\"side\":4,\"bias\":false},{\"type\":\"" norm                     \
  "\"},{\"type\":\"relu\"},{\"type\":\"transposed_convolution\",\"out\":8," WINDOW4 "},{\"type\":\"" norm            \
  "\"},{\"type\":\"relu\"},{\"type\":\"transposed_convolution\",\"out\":4," WINDOW4 "},{\"type\":\"" norm            \
  "\"},{\"type\":\"relu\"},{\"type\":\"transposed_convolution\",\"out\":3," WINDOW4                                  \
  "},{\"type\":\"tanh\"}]},"                                                                                         \
  "{\"name\":\"discriminator\",\"modules\":[{\"type\":\"convolution\",\"out\":4," WINDOW4                            \
  "},{\"type\":\"leaky_relu\",\"slope\":0.2},{\"type\":\"convolution\",\"out\":8," WINDOW4 "},{\"type\":\"" norm     \
  "\"},{\"type\":\"leaky_relu\",\"slope\":0.2},{\"type\":\"convolution\",\"out\":16," WINDOW4 "},{\"type\":\"" norm  \
  "\"},{\"type\":\"leaky_relu\",\"slope\":0.2},{\"type\":\"convolution\",\"out\":1,\"side\":4,\"bias\":false}]}],"   \
  "\"turns\":[{\"train\":\"discriminator\",\"losses\":[{\"name\":\"real\",\"run\":[\"pictures\",\"discriminator\"]," \
  "\"target\":1},{\"name\":\"fake\",\"run\":[\"noise\",\"generator\",\"discriminator\"],\"target\":0}]},"            \
  "{\"train\":\"generator\",\"losses\":[{\"name\":\"fooled\",\"run\":[\"noise\",\"generator\","                      \
  "\"discriminator\"],\"target\":1}]}]}"
#define WINDOW4 "\"side\":4,\"stride\":2,\"padding\":1,\"bias\":false"

#endif
