/* The signature memo: what was learnt is found, whatever the size of the table. */
#include <string.h>

#include "test.h"
#include "trace/memo.h"

/* Signatures of different lengths that share prefixes. */
static size_t make_signature(uint32_t i, uint32_t* words) {
  size_t size = 1 + i % 7;
  for (size_t k = 0; k < size; ++k) words[k] = k + 1 < size ? 7 : i;
  return size;
}

TPU_TEST(memo_grows_and_finds) {
  tpu_memo_t* memo = NULL;
  TPU_REQUIRE_OK(tpu_memo_create(&memo));
  enum { COUNT = 20000 };
  uint32_t words[8];
  TPU_EXPECT(tpu_memo_find(memo, words, make_signature(1, words)) == NULL);
  for (uint32_t i = 0; i < COUNT; ++i) {
    size_t size = make_signature(i, words);
    TPU_EXPECT(tpu_memo_find(memo, words, size) == NULL);
    uint32_t answer[3] = {i, i + 1, i + 2};
    TPU_REQUIRE_OK(tpu_memo_learn(memo, words, size, answer, 1 + i % 3));
  }
  for (uint32_t i = 0; i < COUNT; ++i) {
    const uint32_t* answer = tpu_memo_find(memo, words, make_signature(i, words));
    TPU_REQUIRE(answer != NULL);
    for (uint32_t k = 0; k < 1 + i % 3; ++k) TPU_EXPECT_EQ(answer[k], i + k);
  }
  TPU_EXPECT(tpu_memo_find(memo, words, make_signature(COUNT + 5, words)) == NULL);
  tpu_memo_destroy(memo);
  tpu_memo_destroy(NULL);
}

TPU_TEST(memo_a_prefix_is_another_signature) {
  tpu_memo_t* memo = NULL;
  TPU_REQUIRE_OK(tpu_memo_create(&memo));
  const uint32_t words[4] = {1, 2, 3, 4};
  uint32_t answer = 10;
  TPU_REQUIRE_OK(tpu_memo_learn(memo, words, 3, &answer, 1));
  TPU_EXPECT(tpu_memo_find(memo, words, 2) == NULL);
  TPU_EXPECT(tpu_memo_find(memo, words, 4) == NULL);
  TPU_EXPECT(tpu_memo_find(memo, words, 3) != NULL);
  tpu_memo_destroy(memo);
}

TPU_TEST(memo_the_newest_answer_holds) {
  tpu_memo_t* memo = NULL;
  TPU_REQUIRE_OK(tpu_memo_create(&memo));
  const uint32_t words[2] = {1, 2};
  uint32_t first[2] = {5, 6}, second[2] = {7, 8};
  TPU_REQUIRE_OK(tpu_memo_learn(memo, words, 2, first, 2));
  TPU_REQUIRE_OK(tpu_memo_learn(memo, words, 2, second, 2));
  const uint32_t* answer = tpu_memo_find(memo, words, 2);
  TPU_REQUIRE(answer != NULL);
  TPU_EXPECT(memcmp(answer, second, sizeof(second)) == 0);
  tpu_memo_destroy(memo);
}

/* Signatures that never come again do not fill memory: at some number all are forgotten. */
TPU_TEST(memo_is_bounded) {
  tpu_memo_t* memo = NULL;
  TPU_REQUIRE_OK(tpu_memo_create(&memo));
  uint32_t words[8];
  for (uint32_t i = 0; i < 150000; ++i) {
    TPU_REQUIRE_OK(tpu_memo_learn(memo, words, make_signature(i, words), &i, 1));
  }
  TPU_EXPECT(tpu_memo_find(memo, words, make_signature(0, words)) == NULL);
  const uint32_t* answer = tpu_memo_find(memo, words, make_signature(149999, words));
  TPU_EXPECT(answer != NULL && *answer == 149999);
  tpu_memo_destroy(memo);
}

static tpu_status_t use_memo(void* arg) {
  (void)arg;
  tpu_memo_t* memo = NULL;
  tpu_status_t status = tpu_memo_create(&memo);
  uint32_t words[8];
  for (uint32_t i = 0; i < 600 && status == NULL; ++i) {
    status = tpu_memo_learn(memo, words, make_signature(i, words), &i, 1);
  }
  for (uint32_t i = 0; i < 600 && status == NULL; ++i) {
    const uint32_t* answer = tpu_memo_find(memo, words, make_signature(i, words));
    if (answer == NULL || *answer != i) status = tpu_status_make(TPU_INTERNAL, "lost %u", i);
  }
  tpu_memo_destroy(memo);
  return status;
}

TPU_TEST(memo_out_of_memory) { TPU_EXPECT(TPU_OOM_SWEEP(use_memo, NULL) > 4); }
