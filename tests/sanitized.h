/* TWS_SANITIZED: 1 when the tests run under the address sanitizer, of either compiler, else 0. Such runs look for other
 * faults than wrong results and take several times as long: they may do with a sample of many like cases. */
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
