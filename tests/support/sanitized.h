/* SANITIZED is 1 in builds with a sanitizer that replaces the allocator, slows the program down, and reserves
 * terabytes of address space. */
#ifndef AX_TESTS_SANITIZED_H
#define AX_TESTS_SANITIZED_H

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* THREAD_SANITIZED is 1 with the thread sanitizer. */
#if defined __SANITIZE_THREAD__
#define THREAD_SANITIZED 1
#elif defined __has_feature
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZED 1
#endif
#endif
#ifndef THREAD_SANITIZED
#define THREAD_SANITIZED 0
#endif

#endif
