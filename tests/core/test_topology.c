/* Compiling for a device that is not there. */
#include <string.h>

#include "compile/topology.h"
#include "fake_plugin/fake_plugin.h"
#include "test.h"

static const char text[] =
    "module @m { func.func public @main(%a: tensor<3xf32>) -> tensor<3xf32> {\n"
    "return %a : tensor<3xf32> } }";

static tpu_status_t compile(const char* target, const char* program) {
  tpu_compiled_t made;
  tpu_status_t status = tpu_topology_compile(fake_plugin_path(), TPU_PLATFORM_TPU, target, program,
                                             strlen(program), true, &made);
  tpu_compiled_free(&made);
  return status;
}

TPU_TEST(topology_compiles_and_leaves_nothing) {
  const fake_control_t* fake = fake_plugin_control();
  TPU_REQUIRE(fake != NULL);
  fake->reset();
  fake->temporaries(77);
  tpu_compiled_t made;
  TPU_EXPECT_OK(tpu_topology_compile(fake_plugin_path(), TPU_PLATFORM_TPU, "fake:1x1", text,
                                     strlen(text), true, &made));
  TPU_EXPECT_EQ(made.bytes.temporaries, 77);
  TPU_EXPECT(made.cost.flops == 12 && made.cost.bytes == -1);
  TPU_EXPECT(made.optimized.size == strlen(text) &&
             memcmp(tpu_strbuf_text(&made.optimized), text, strlen(text)) == 0);
  tpu_compiled_free(&made);
  TPU_EXPECT_CODE(compile("fake:9x9", text), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(compile("fake:1x1", "module {"), TPU_UNKNOWN);
  TPU_EXPECT_CODE(compile("fake:1x1", ""), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(compile(NULL, text), TPU_INVALID_ARGUMENT);
  fake_stats_t stats;
  fake->stats(&stats);
  TPU_EXPECT_EQ(stats.violations, 0);
  TPU_EXPECT_EQ(fake->live(), 0);
  fake->reset();
}

TPU_TEST(topology_every_call_may_fail) {
  const fake_control_t* fake = fake_plugin_control();
  TPU_REQUIRE(fake != NULL);
  fake->reset();
  TPU_EXPECT_OK(compile("fake:1x1", text));
  fake_stats_t stats;
  fake->stats(&stats);
  int64_t calls = stats.calls;
  TPU_EXPECT(calls >= 5);
  for (int64_t n = 1; n <= calls; ++n) {
    fake->reset();
    fake->fail_at(n, 13);
    if (fake->fail_pending()) TPU_EXPECT_CODE(compile("fake:1x1", text), TPU_INTERNAL);
    TPU_EXPECT_EQ(fake->live(), 0);
  }
  fake->reset();
}
