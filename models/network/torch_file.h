/* Reads files of torch.save (since PyTorch 1.6), which are archives with a pickle, data.pkl, and one member per storage
 * with its bytes. Layout: https://docs.pytorch.org/docs/main/notes/serialization.html. */
#ifndef TWS_MODELS_NETWORK_TORCH_FILE_H
#define TWS_MODELS_NETWORK_TORCH_FILE_H

#include "base/archive.h"
#include "models/network/pickle.h"

typedef struct tws_torch_file {
  tws_arena *arena;
  tws_archive *archive;
  tws_pickle pickle;  /* each storage has been checked to have the right number of bytes in the archive */
  const char *folder; /* prefix of names in the archive: "archive/" */
  uint8_t *verified;  /* [entry of the archive] 1: its checksum has been verified */
} tws_torch_file;

/* Opens a file of torch.save. Fails with TWS_INVALID if it is damaged or its pickle uses a name that is not accepted;
 * TWS_UNSUPPORTED for big-endian files, TorchScript, and the format of PyTorch 1.5 and earlier. */
tws_code tws_torch_open(const char *path, tws_torch_file **out, tws_error *err);
void tws_torch_close(tws_torch_file *file); /* NULL is allowed */
/* Returns 1 if the file has one of the formats of torch.save. */
int tws_torch_is(const char *path);
/* Computes the offset in the file at which a tensor's consecutive elements begin. Fails with TWS_UNSUPPORTED if they
 * are not consecutive; `name` is used in the message. */
tws_code tws_torch_place(const tws_torch_file *file, const tws_pickle_value *tensor, const char *name, int64_t *at,
                         tws_error *err);
/* Verifies the checksum of the tensor's storage, once per storage; fails with TWS_INVALID if the storage is damaged. */
tws_code tws_torch_verify(tws_torch_file *file, const tws_pickle_value *tensor, tws_error *err);

#endif
