/* Authentication of launcher and ranks over the network, and encryption of the records between them.
 *
 * Both know a secret of 32 random bytes, generated for one job. The rank sends HELLO: its number and 32 random bytes.
 * The launcher answers with 32 random bytes of its own and its proof; the rank checks it and sends its proof. All keys
 * are derived by a hash (BLAKE2b) of HELLO and the launcher's random bytes, keyed with the secret: each side's proof,
 * and one key for each direction. A record is sealed with ChaCha20-Poly1305; its nonce is its sequence number in its
 * direction, and its length, which precedes it, is authenticated with it. So a record that was changed, repeated, left
 * out, or taken from another connection or direction is rejected.
 *
 * libsodium provides the cryptography. Without it tws_seal_available() is 0 and everything else fails. */
#ifndef TWS_LAUNCH_SEAL_H
#define TWS_LAUNCH_SEAL_H

#include <stddef.h>
#include <stdint.h>

enum {
  TWS_SECRET = 32,                    /* length of the secret, bytes */
  TWS_SECRET_TEXT = 2 * TWS_SECRET,   /* length of the secret as hexadecimal text, characters */
  TWS_RANDOM = 32,                    /* length of each side's random bytes and of a proof, bytes */
  TWS_SEAL_HEAD = 4,                  /* length of the field that has the length of the rest of the record, bytes */
  TWS_SEAL_EXTRA = TWS_SEAL_HEAD + 16 /* what sealing adds to a record: the length and an authenticator */
};

typedef struct tws_hello {
  uint8_t magic[8];
  uint32_t rank, zero;
  uint8_t random[TWS_RANDOM];
} tws_hello;
typedef struct tws_answer {
  uint8_t random[TWS_RANDOM], proof[TWS_RANDOM];
} tws_answer;

/* One connection's keys, and the number of records sent in each direction. */
typedef struct tws_session {
  uint8_t send_key[32], receive_key[32], expected[TWS_RANDOM]; /* expected: the proof that the other side has to send */
  uint64_t sent, received;
} tws_session;

int tws_seal_available(void);
#define TWS_SEAL_HINT "install libsodium (Debian: libsodium-dev) and build twinspeed again, or use this machine alone"
int tws_secret_make(char text[TWS_SECRET_TEXT + 1]);               /* returns 0 if there is no libsodium */
int tws_secret_read(const char *text, uint8_t secret[TWS_SECRET]); /* returns 0 if the text is no secret */
void tws_secret_wipe(void *secret, size_t bytes);

int tws_hello_make(int rank, tws_hello *hello);        /* local ranks do not use the random bytes */
int tws_hello_rank(const tws_hello *hello, int ranks); /* returns the rank; -1 if `hello` is no HELLO of a rank below
                                                        * `ranks` */
/* Called by the launcher: answers a HELLO, and prepares the session, which is valid once the rank's proof has been
 * checked. */
int tws_hello_answer(const uint8_t secret[TWS_SECRET], const tws_hello *hello, tws_answer *answer,
                     tws_session *session);
int tws_proof_check(tws_session *session, const uint8_t proof[TWS_RANDOM]);
/* Called by a rank: returns 0 if the sender of the answer does not know the secret; otherwise sets `proof` to the
 * rank's own proof. */
int tws_answer_check(const uint8_t secret[TWS_SECRET], const tws_hello *hello, const tws_answer *answer,
                     tws_session *session, uint8_t proof[TWS_RANDOM]);

/* Seals a record into `out`, which has room for bytes + TWS_SEAL_EXTRA. Returns the number of bytes, or 0. */
size_t tws_seal(tws_session *session, const void *record, size_t bytes, uint8_t *out);
/* Returns the size of a whole sealed record, read from its first four bytes; 0 if its content would be empty or longer
 * than `most` bytes. */
size_t tws_sealed_bytes(const uint8_t head[TWS_SEAL_HEAD], size_t most);
/* Opens a whole sealed record of `bytes` bytes into `record`, which has room for bytes - TWS_SEAL_EXTRA. Returns
 * their number, or 0 if it is not the next one that the peer has sealed. */
size_t tws_unseal(tws_session *session, const uint8_t *sealed, size_t bytes, void *record);

#endif
