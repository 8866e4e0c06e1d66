/* TWS_SANITIZED: 1 when the tests run under the address sanitizer, of either compiler, else 0. Such runs look for
 * memory errors rather than wrong results and take several times as long, so suites may run a sample of many similar
 * cases. */
#ifndef TWS_TESTS_SANITIZED_H
#define TWS_TESTS_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__)
#define TWS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TWS_SANITIZED 1
#endif
#endif
#ifndef TWS_SANITIZED
#define TWS_SANITIZED 0
#endif

#endif
