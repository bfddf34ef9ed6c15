/* Expectations of the tests in C. They may be checked on any thread. */
#ifndef GRADWIRE_C_API_EXPECT_H_
#define GRADWIRE_C_API_EXPECT_H_

#include <stdio.h>
#include <string.h>

#include "gradwire/gradwire.h"

static int failures = 0;

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  __sync_fetch_and_add(&failures, 1);
  fprintf(stderr, "line %d: expected %s (last error: %s)\n", line, what, gradwire_last_error());
}

/* Expects `code`, and a message that contains `words`. */
static void expect_failure(int got, int code, const char* words, const char* call, int line) {
  if (got == code && strstr(gradwire_last_error(), words) != NULL) return;
  __sync_fetch_and_add(&failures, 1);
  fprintf(stderr, "line %d: %s gave %d and \"%s\"; expected %d and \"…%s…\"\n", line, call, got,
          gradwire_last_error(), code, words);
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)
#define EXPECT_OK(call) expect((call) == GRADWIRE_OK, #call " to succeed", __LINE__)
#define EXPECT_FAILURE(call, code, words) expect_failure((call), (code), (words), #call, __LINE__)

/* For `main` to return. */
static int summary(void) {
  if (failures != 0) fprintf(stderr, "%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

#endif /* GRADWIRE_C_API_EXPECT_H_ */
