#include "engine/tier.h"

#include <math.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/layout.h"
#include "engine/flight.h"
#include "engine/reason.h"

/* A window is interpreted until that has cost about what compiling costs, as far as its structure
 * tells (docs/decisions/013-host-steps.md has the measurements). The unit is the time of a record
 * on few elements. */
#define ELEMENTS_PER_UNIT 2048   // read or written
#define PRODUCTS_PER_UNIT 32768  // of matrix products and convolutions
#define UNITS_TO_COMPILE_A_RECORD 16384
#define FEWEST_INTERPRETATIONS 3
#define FEWEST_BEFORE_A_BUILD 2  // they show which numbers vary
// Of what recurs, which is interpreted once: below this, building takes no longer than waking up.
#define FEWEST_RECORDS_OF_A_BUILD 32

struct tpui_build_t {
  tpu_queue_item_t item;
  tpu_engine_t* engine;
  tpui_planner_t planner;
  tpui_plan_t* plan;        // has this build, so it stays
  tpui_variant_t* variant;  // owned until it is adopted
  uint8_t* external_dead;
  tpu_status_t error;  // owned
  bool awaited;        // by who asked for it: what went wrong is told
  uint32_t given_up;   // the engine's, when this began
  bool done;
};

/* Products of one record: exact for a matrix product, [m, k] x [k, n] being sqrt(mk kn mn). */
static double products_of(const tpu_window_t* w, const tpu_record_t* r) {
  tpu_op_family_t family = tpu_op_info(r->op)->family;
  if (family != TPU_FAMILY_MATMUL && family != TPU_FAMILY_CONV) return 0;
  double product = (double)tpu_meta_get(r->results[0])->numel;
  int tensors = 0;
  for (int k = 0; k < r->operand_count && tensors < 2; ++k) {
    tpu_meta_id_t meta = tpu_window_ref_meta(w, tpu_record_ref(r, k));
    if (meta == 0) continue;
    product *= (double)tpu_meta_get(meta)->numel;
    ++tensors;
  }
  return tensors == 2 ? sqrt(product) : 0;
}

uint32_t tpui_tier_interpretations(const tpu_window_t* w) {
  double elements = tpui_window_elements(w), products = 0, records = (double)w->record_count;
  for (uint32_t i = 0; i < w->record_count; ++i) {
    tpu_record_t r;
    tpu_window_record(w, i, &r);
    products += products_of(w, &r);
  }
  double cost = records + elements / ELEMENTS_PER_UNIT + products / PRODUCTS_PER_UNIT;
  double count = records * UNITS_TO_COMPILE_A_RECORD / cost;
  double most = (double)tpu_env_int(TPU_ENV_INTERPRETATIONS);
  if (count < FEWEST_INTERPRETATIONS) count = FEWEST_INTERPRETATIONS;
  if (count > most) count = most;
  return count > 0 ? (uint32_t)count : 0;
}

void tpui_tier_expect(tpui_plan_t* plan) {
  plan->recurs = true;
  if (plan->most_interpretations > 1) plan->most_interpretations = 1;
}

/* On the build thread. */
static void run_build(tpu_queue_item_t* item) {
  tpui_build_t* build = (tpui_build_t*)item;
  tpu_engine_t* e = build->engine;
  build->error =
      tpui_variant_fill(&build->planner, build->plan, build->variant, build->external_dead);
  tpu_mutex_lock(&e->lock);
  build->done = true;
  --e->building;
  (void)pthread_cond_broadcast(&e->landed);
  tpu_mutex_unlock(&e->lock);
}

bool tpui_build_is_done(const tpui_build_t* build) { return build->done; }

void tpui_build_free(tpui_build_t* build) {
  if (build == NULL) return;
  tpui_variant_free(build->variant);
  tpu_status_free(build->error);
  tpu_free(build);
}

static tpu_status_t make_build(tpu_engine_t* e, tpui_plan_t* plan, const tpu_slot_t* slots,
                               const uint8_t* live, const uint8_t* external_dead,
                               tpui_build_t** out_build) {
  tpui_build_t *build = NULL, made = {.engine = e, .plan = plan, .given_up = e->given_up};
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, build, 1);
  TPU_LAYOUT_COPY(&layout, made.external_dead, external_dead, plan->window.external_count);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  *build = made;
  build->planner = tpui_planner(e);
  build->item.run = run_build;
  tpu_status_t status = tpui_variant_make(plan, slots, live, &build->variant);
  if (status != NULL) {
    tpui_build_free(build);
    return status;
  }
  *out_build = build;
  return NULL;
}

/* The plan has no build afterwards if there is no thread to be had. */
static tpu_status_t begin_build(tpu_engine_t* e, tpui_plan_t* plan, bool awaited,
                                const tpu_slot_t* slots, const uint8_t* live,
                                const uint8_t* external_dead) {
  tpui_build_t* build = NULL;
  TPU_RETURN_IF_ERROR(make_build(e, plan, slots, live, external_dead, &build));
  build->awaited = awaited;
  tpu_status_t status = tpu_queue_push(awaited ? e->compiles : e->builds, &build->item);
  if (status != NULL) {
    tpu_status_free(status);
    tpui_build_free(build);
    return NULL;
  }
  plan->build = build;
  ++e->building;
  return NULL;
}

/* After a quarter, so that compiling, which takes as long as all of them, is done by their end; at
 * once for what recurs. */
static bool is_time_to_build(const tpui_plan_t* plan) {
  if (plan->recurs) return plan->window.record_count >= FEWEST_RECORDS_OF_A_BUILD;
  uint32_t before = plan->most_interpretations / 4;
  if (before < FEWEST_BEFORE_A_BUILD) before = FEWEST_BEFORE_A_BUILD;
  return plan->interpretations >= before;
}

tpu_status_t tpui_tier_choose(tpu_engine_t* e, tpui_plan_t* plan, const tpu_slot_t* slots,
                              const uint8_t* live, const uint8_t* external_dead,
                              bool* out_interpret) {
  *out_interpret = false;
  if (TPU_LIKELY(e->host_ops == NULL || plan->interpretations >= plan->most_interpretations)) {
    return NULL;
  }
  TPU_RETURN_IF_ERROR(tpu_tiers_default(out_interpret));
  *out_interpret = *out_interpret && e->host_ops->allowed();
  bool begins = plan->build == NULL && plan->variant_count == 0 && is_time_to_build(plan);
  if (!*out_interpret || !begins) return NULL;
  tpui_reason_note(e, plan, slots, live);
  return begin_build(e, plan, false, slots, live, external_dead);
}

tpu_status_t tpui_tier_make(tpu_engine_t* e, tpui_plan_t* plan, const tpu_slot_t* slots,
                            const uint8_t* live, const uint8_t* external_dead,
                            tpui_variant_t** out_variant) {
  *out_variant = NULL;
  if (e->giving_up > 0) return NULL;
  tpui_reason_note(e, plan, slots, live);
  if (e->stop != NULL) {
    TPU_RETURN_IF_ERROR(begin_build(e, plan, true, slots, live, external_dead));
    if (plan->build != NULL) return NULL;
  }
  tpui_planner_t planner = tpui_planner(e);
  return tpui_plan_extend(&planner, plan, slots, live, external_dead, out_variant);
}

/* What went wrong with a build that nobody asked for, or that was given up, is found again, and
 * told, by who compiles it next. */
static tpu_status_t take_build(const tpu_engine_t* e, tpui_plan_t* plan, tpui_build_t* build,
                               const tpu_slot_t* slots, const uint8_t* live,
                               tpui_variant_t** out_variant) {
  bool told = build->awaited && build->given_up == e->given_up;
  if (build->error != NULL) {
    tpu_status_t status = told ? build->error : NULL;
    if (told) build->error = NULL;
    return status;
  }
  tpui_variant_t* variant = build->variant;
  build->variant = NULL;
  tpui_plan_adopt(plan, variant);
  if (told && tpui_variant_gives(variant, &plan->window, slots, live)) *out_variant = variant;
  return NULL;
}

tpu_status_t tpui_tier_adopt(tpu_engine_t* e, tpui_plan_t* plan, const tpu_slot_t* slots,
                             const uint8_t* live, bool* out_ready, tpui_variant_t** out_variant) {
  tpui_build_t* build = plan->build;
  *out_variant = NULL;
  *out_ready = true;
  if (TPU_LIKELY(build == NULL)) return NULL;
  *out_ready = build->done && e->in_flight == 0;
  if (!*out_ready) return NULL;
  tpu_status_t status = take_build(e, plan, build, slots, live, out_variant);
  tpui_build_free(build);
  plan->build = NULL;
  return status;
}

tpu_status_t tpui_tier_wait(tpu_engine_t* e, const tpui_plan_t* plan) {
  uint32_t drops = e->drops;  // the plan may be gone after the next one
  while (e->drops == drops && (e->giving_up > 0 || (plan->build != NULL && !plan->build->done))) {
    TPU_RETURN_IF_ERROR(tpui_wait_landing(e));
  }
  return NULL;
}

void tpui_tier_stop(tpu_engine_t* e) {
  ++e->given_up;
  if (e->giving_up++ == 0) tpu_compiler_refuse(e->compiler, true);
  while (e->building > 0) (void)pthread_cond_wait(&e->landed, &e->lock);
  if (--e->giving_up == 0) {
    tpu_compiler_refuse(e->compiler, false);
    (void)pthread_cond_broadcast(&e->landed);
  }
}
