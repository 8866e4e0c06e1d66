/* Files of torch.save (since PyTorch 1.6): an archive with a pickle, data.pkl, and one member with the bytes of each
 * storage. Layout: https://docs.pytorch.org/docs/main/notes/serialization.html. */
#ifndef TWS_MODELS_NETWORK_TORCH_FILE_H
#define TWS_MODELS_NETWORK_TORCH_FILE_H

#include "base/archive.h"
#include "models/network/pickle.h"

typedef struct tws_torch_file {
  tws_arena *arena;
  tws_archive *archive;
  tws_pickle pickle;  /* each of its storages is in the archive with as many bytes as its elements have */
  const char *folder; /* in the archive: "archive/" */
  uint8_t *verified;  /* by entry of the archive */
} tws_torch_file;

/* TWS_INVALID: damaged, or with a name in its pickle that is not taken; TWS_UNSUPPORTED: big-endian, TorchScript, or
 * the format of PyTorch 1.5 and before. */
tws_code tws_torch_open(const char *path, tws_torch_file **out, tws_error *err);
void tws_torch_close(tws_torch_file *file); /* NULL is allowed */
/* 1: one or another of torch.save's formats. */
int tws_torch_is(const char *path);
/* Byte of the file at which a tensor's elements begin, one after another. TWS_UNSUPPORTED: they do not lie so; `name`
 * is for the message. */
tws_code tws_torch_place(const tws_torch_file *file, const tws_pickle_value *tensor, const char *name, int64_t *at,
                         tws_error *err);
/* The checksum of the storage that a tensor is a view of is compared, once. TWS_INVALID: it is damaged. */
tws_code tws_torch_verify(tws_torch_file *file, const tws_pickle_value *tensor, tws_error *err);

#endif
