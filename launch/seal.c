#include "launch/seal.h"
#include <string.h>

static const uint8_t magic[8] = {'t', 'w', 's', 'r', 'a', 'n', 'k', '2'};

int tws_hello_rank(const tws_hello *hello, int ranks) {
  if (memcmp(hello->magic, magic, sizeof magic) != 0 || hello->zero || hello->rank >= (uint32_t)ranks) return -1;
  return (int)hello->rank;
}

int tws_secret_read(const char *text, uint8_t secret[TWS_SECRET]) {
  static const char digits[] = "0123456789abcdef";
  for (int i = 0; i < TWS_SECRET_TEXT; i++) {
    const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
    if (!digit) return 0;
    secret[i / 2] = (uint8_t)((i % 2 ? secret[i / 2] << 4 : 0) | (int)(digit - digits));
  }
  return text[TWS_SECRET_TEXT] == '\0';
}

void tws_secret_wipe(void *secret, size_t bytes) {
  explicit_bzero(secret, bytes);
}

static uint32_t read_length(const uint8_t *head) {
  return (uint32_t)head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 24;
}

size_t tws_sealed_bytes(const uint8_t head[TWS_SEAL_HEAD], size_t most) {
  const uint32_t inside = read_length(head);
  return inside > 0 && inside <= most ? inside + TWS_SEAL_EXTRA : 0;
}

#ifdef TWS_HAVE_SODIUM
#include <sodium.h>

_Static_assert(sizeof(tws_hello) == 48 && sizeof(tws_answer) == 64, "they are sent as they are in memory");
_Static_assert(TWS_SEAL_EXTRA == TWS_SEAL_HEAD + crypto_aead_chacha20poly1305_ietf_ABYTES, "what sealing adds");
_Static_assert(TWS_SECRET >= crypto_generichash_KEYBYTES_MIN && TWS_SECRET <= crypto_generichash_KEYBYTES_MAX, "a key");

int tws_seal_available(void) {
  return sodium_init() >= 0;
}

int tws_secret_make(char text[TWS_SECRET_TEXT + 1]) {
  uint8_t secret[TWS_SECRET];
  if (!tws_seal_available()) return 0;
  randombytes_buf(secret, sizeof secret);
  sodium_bin2hex(text, TWS_SECRET_TEXT + 1, secret, sizeof secret);
  sodium_memzero(secret, sizeof secret);
  return 1;
}

int tws_hello_make(int rank, tws_hello *hello) {
  *hello = (tws_hello){.rank = (uint32_t)rank};
  memcpy(hello->magic, magic, sizeof magic);
  if (!tws_seal_available()) return 0;
  randombytes_buf(hello->random, sizeof hello->random);
  return 1;
}

typedef struct keys {
  uint8_t launcher_proof[TWS_RANDOM], rank_proof[TWS_RANDOM], to_rank[32], to_launcher[32];
} keys;

/* Derives all keys and proofs from the secret and both sides' random bytes. */
static void derive(const uint8_t secret[TWS_SECRET], const tws_hello *hello, const uint8_t random[TWS_RANDOM],
                   keys *out) {
  static const char context[crypto_kdf_CONTEXTBYTES] = {'t', 'w', 's', 'l', 'a', 'u', 'n', 'c'};
  uint8_t master[crypto_kdf_KEYBYTES];
  crypto_generichash_state state;
  crypto_generichash_init(&state, secret, TWS_SECRET, sizeof master);
  crypto_generichash_update(&state, (const uint8_t *)hello, sizeof *hello);
  crypto_generichash_update(&state, random, TWS_RANDOM);
  crypto_generichash_final(&state, master, sizeof master);
  uint8_t *const parts[] = {out->launcher_proof, out->rank_proof, out->to_rank, out->to_launcher};
  for (uint64_t i = 0; i < 4; i++) crypto_kdf_derive_from_key(parts[i], 32, i + 1, context, master);
  sodium_memzero(master, sizeof master);
  sodium_memzero(&state, sizeof state);
}

int tws_hello_answer(const uint8_t secret[TWS_SECRET], const tws_hello *hello, tws_answer *answer,
                     tws_session *session) {
  keys k;
  if (!tws_seal_available()) return 0;
  randombytes_buf(answer->random, sizeof answer->random);
  derive(secret, hello, answer->random, &k);
  memcpy(answer->proof, k.launcher_proof, sizeof answer->proof);
  *session = (tws_session){0};
  memcpy(session->send_key, k.to_rank, sizeof k.to_rank);
  memcpy(session->receive_key, k.to_launcher, sizeof k.to_launcher);
  memcpy(session->expected, k.rank_proof, sizeof k.rank_proof);
  sodium_memzero(&k, sizeof k);
  return 1;
}

int tws_proof_check(tws_session *session, const uint8_t proof[TWS_RANDOM]) {
  return sodium_memcmp(session->expected, proof, TWS_RANDOM) == 0;
}

int tws_answer_check(const uint8_t secret[TWS_SECRET], const tws_hello *hello, const tws_answer *answer,
                     tws_session *session, uint8_t proof[TWS_RANDOM]) {
  keys k;
  if (!tws_seal_available()) return 0;
  derive(secret, hello, answer->random, &k);
  const int right = sodium_memcmp(k.launcher_proof, answer->proof, sizeof k.launcher_proof) == 0;
  *session = (tws_session){0};
  if (right) {
    memcpy(session->send_key, k.to_launcher, sizeof k.to_launcher);
    memcpy(session->receive_key, k.to_rank, sizeof k.to_rank);
    memcpy(proof, k.rank_proof, sizeof k.rank_proof);
  }
  sodium_memzero(&k, sizeof k);
  return right;
}

/* Makes a nonce of a record's number. None is used twice with a key: each direction of each connection has its own key
 * and numbers. */
static void number_as_nonce(uint64_t number, uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES]) {
  memset(nonce, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
  for (int i = 0; i < 8; i++) nonce[4 + i] = (uint8_t)(number >> 8 * i);
}

size_t tws_seal(tws_session *session, const void *record, size_t bytes, uint8_t *out) {
  uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
  if (bytes == 0 || bytes > UINT32_MAX) return 0;
  for (int i = 0; i < TWS_SEAL_HEAD; i++) out[i] = (uint8_t)(bytes >> 8 * i);
  number_as_nonce(session->sent++, nonce);
  crypto_aead_chacha20poly1305_ietf_encrypt(out + TWS_SEAL_HEAD, NULL, record, bytes, out, TWS_SEAL_HEAD, NULL, nonce,
                                            session->send_key);
  return bytes + TWS_SEAL_EXTRA;
}

size_t tws_unseal(tws_session *session, const uint8_t *sealed, size_t bytes, void *record) {
  uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
  if (bytes <= TWS_SEAL_EXTRA || read_length(sealed) != bytes - TWS_SEAL_EXTRA) return 0;
  number_as_nonce(session->received, nonce);
  if (crypto_aead_chacha20poly1305_ietf_decrypt(record, NULL, NULL, sealed + TWS_SEAL_HEAD, bytes - TWS_SEAL_HEAD,
                                                sealed, TWS_SEAL_HEAD, nonce, session->receive_key) != 0)
    return 0;
  session->received++;
  return bytes - TWS_SEAL_EXTRA;
}

#else

int tws_seal_available(void) {
  return 0;
}

int tws_secret_make(char text[TWS_SECRET_TEXT + 1]) {
  text[0] = '\0';
  return 0;
}

int tws_hello_make(int rank, tws_hello *hello) {
  *hello = (tws_hello){.rank = (uint32_t)rank};
  memcpy(hello->magic, magic, sizeof magic);
  return 0;
}

int tws_hello_answer(const uint8_t secret[TWS_SECRET], const tws_hello *hello, tws_answer *answer,
                     tws_session *session) {
  (void)secret, (void)hello, (void)answer, (void)session;
  return 0;
}

int tws_proof_check(tws_session *session, const uint8_t proof[TWS_RANDOM]) {
  (void)session, (void)proof;
  return 0;
}

int tws_answer_check(const uint8_t secret[TWS_SECRET], const tws_hello *hello, const tws_answer *answer,
                     tws_session *session, uint8_t proof[TWS_RANDOM]) {
  (void)secret, (void)hello, (void)answer, (void)session, (void)proof;
  return 0;
}

size_t tws_seal(tws_session *session, const void *record, size_t bytes, uint8_t *out) {
  (void)session, (void)record, (void)bytes, (void)out;
  return 0;
}

size_t tws_unseal(tws_session *session, const uint8_t *sealed, size_t bytes, void *record) {
  (void)session, (void)sealed, (void)bytes, (void)record;
  return 0;
}

#endif
