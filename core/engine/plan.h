/* Plans: what a window became. The plan cache maps a window's structure to its plan; a plan holds
 * variants, which differ in what the structure does not say: which numbers are fixed in the
 * programs, and which results leave the window.
 *
 * A variant fits a window when all its fixed numbers are equal and every live result is one of its
 * outputs. Of several that fit, the one with the fewest outputs runs. When none fits, a new one is
 * made in which the numbers that differed became arguments: so a number starts as a constant and is
 * generalised when a second value is seen. It also gives what older ones gave, since what leaves an
 * eager window changes with the code around it. A window that recurs (a compiled graph) says once
 * and for all what leaves it: there a variant must have just these outputs, while there is room for
 * another one.
 */
#ifndef TPU_ENGINE_PLAN_H_
#define TPU_ENGINE_PLAN_H_

#include "compile/compile.h"
#include "launch/launch.h"
#include "lower/lower.h"
#include "partition/partition.h"

/* One allocation but for its steps. */
typedef struct tpui_variant_t {
  uint8_t* slot_dynamic;    // [slot_count]
  tpu_slot_t* slot_values;  // [slot_count] the fixed numbers
  uint8_t* live;            // [value_count] outputs
  uint32_t output_count;    // how many those are, once a plan has it
  uint32_t step_count;
  tpu_step_t* steps;  // owned
  bool heavy;         // worth a thread switch
  bool single;        // one program per op, since larger ones could not be compiled
  bool interpreted;   // one step per op, on the host where its memory is the device's
  bool broken;        // some op could not be compiled alone either: never fits again
} tpui_variant_t;

#define TPUI_MAX_VARIANTS 8

typedef struct tpui_build_t tpui_build_t;  // see tier.c

typedef struct tpui_plan_t {
  uint64_t hash;
  tpu_window_t window;  // a copy without slots; its arrays lie behind the plan
  int variant_count;
  tpui_variant_t* variants[TPUI_MAX_VARIANTS];  // newest first
  tpui_variant_t* interpreted;    // for the first occurrences; NULL before and after them
  uint32_t interpretations;       // launches of it ...
  uint32_t most_interpretations;  // ... and how many there will be, see tier.h
  bool recurs;                    // somebody said that it comes again, see tpui_tier_expect
  uint64_t compiled_launches;     // launches of programs
  tpui_build_t* build;            // owned; what is being compiled for later occurrences, or NULL
  tpu_slot_t* seen_slots;         // [slot_count] numbers of the first occurrence
  uint8_t* seen_varied;           // [slot_count] another occurrence had another number
  uint8_t* seen_live;             // [value_count] some occurrence needed the value
  struct tpui_plan_t* next;  // plan of the window that followed last time; may be gone: see cache
  uint64_t last_use;
} tpui_plan_t;

typedef struct tpui_plan_cache_t {
  tpui_plan_t** plans;  // open addressing by hash; capacity a power of two
  size_t count, capacity;
  uint64_t records;  // of all plans' windows, each with some more for the plan itself
  uint64_t clock;
} tpui_plan_cache_t;

typedef struct tpui_planner_t {
  tpu_compiler_t* compiler;
  tpu_partition_options_t partition;  // a copy: plans are also made without the lock
  const tpu_host_ops_t* host_ops;     // NULL: there are none
} tpui_planner_t;

/* The plan with this structure, or NULL. */
tpui_plan_t* tpui_plan_find(const tpui_plan_cache_t* cache, const tpu_window_t* window,
                            uint64_t hash);
uint64_t tpui_plan_hash(const tpu_window_t* window);
/* For a window whose words are known to be a prefix of the plan's (a kept prediction): true when it
 * is all of them, with equal externals. */
bool tpui_plan_completes(const tpui_plan_t* plan, const tpu_window_t* window);
/* Adds an empty plan for the window. May drop plans that were not used for long: `*out_dropped`,
 * then no plan's `next` is known afterwards. */
TPU_MUST_USE tpu_status_t tpui_plan_add(tpui_plan_cache_t* cache, const tpu_window_t* window,
                                        uint64_t hash, tpui_plan_t** out_plan, bool* out_dropped);
/* A plan that is in no cache, its caller's; free it with tpui_plan_free. */
TPU_MUST_USE tpu_status_t tpui_plan_make(const tpu_window_t* window, tpui_plan_t** out_plan);
void tpui_plan_free(tpui_plan_t* plan);
/* Drops those plans that were used longest ago and have half of all records, but none used at
 * `newest` or later. False when that leaves all. No plan's `next` is known afterwards. */
TPU_MUST_USE tpu_status_t tpui_plan_cache_halve(tpui_plan_cache_t* cache, uint64_t newest,
                                                bool* out_dropped);
void tpui_plan_cache_clear(tpui_plan_cache_t* cache);

void tpui_variant_free(tpui_variant_t* variant);
void tpui_variant_free_steps(tpui_variant_t* variant);

/* `live` has one byte per value: 1 if somebody needs it after the window. */
bool tpui_variant_fits(const tpui_variant_t* variant, const tpu_window_t* window,
                       const tpu_slot_t* slots, const uint8_t* live);
/* Whether a new variant gives just what its window needs. */
static inline bool tpui_plan_is_exact(const tpui_plan_t* plan) {
  return plan->recurs && plan->variant_count < TPUI_MAX_VARIANTS;
}
/* Also with steps that could not be made and only say why, which tpui_variant_fits wants tried
 * again. */
bool tpui_variant_gives(const tpui_variant_t* variant, const tpu_window_t* window,
                        const tpu_slot_t* slots, const uint8_t* live);
/* The variant to run: one that fits, or NULL. */
tpui_variant_t* tpui_plan_fit(const tpui_plan_t* plan, const tpu_slot_t* slots,
                              const uint8_t* live);
/* Makes a variant for this window (partition, lower, compile).
 * A window with a program that cannot be compiled is made of single ops instead; those that fail
 * alone keep their error in their step, so that only their own results fail. */
TPU_MUST_USE tpu_status_t tpui_plan_extend(const tpui_planner_t* planner, tpui_plan_t* plan,
                                           const tpu_slot_t* slots, const uint8_t* live,
                                           const uint8_t* external_dead,
                                           tpui_variant_t** out_variant);

/* Some of a window's records, to be run once more. */
typedef struct tpui_pieces_t {
  const uint32_t* records;  // [record_count] in an order in which they can be computed
  uint32_t record_count;
  bool single;                   // a program per record, else one for all
  bool checks;                   // see tpu_partition_options_t
  const uint8_t* live;           // [value_count] results that are needed after them
  const uint8_t* external_dead;  // [external_count] externals that nobody needs after them
} tpui_pieces_t;
/* Steps for them, with the numbers that `like`, a variant of the plan, takes as arguments. The
 * caller frees the variant; it is none of the plan's. A piece that cannot be compiled keeps its
 * error in its step. Needs no lock. */
TPU_MUST_USE tpu_status_t tpui_plan_pieces(const tpui_planner_t* planner, const tpui_plan_t* plan,
                                           const tpui_variant_t* like, const tpu_slot_t* slots,
                                           const tpui_pieces_t* pieces,
                                           tpui_variant_t** out_variant);

/* The three parts of tpui_plan_extend. A variant for a window with these numbers and results;
 * filling it (partition, lower, compile), which needs no lock while nothing else changes the plan's
 * window or the variant; taking it into the plan. */
TPU_MUST_USE tpu_status_t tpui_variant_make(const tpui_plan_t* plan, const tpu_slot_t* slots,
                                            const uint8_t* live, tpui_variant_t** out_variant);
TPU_MUST_USE tpu_status_t tpui_variant_fill(const tpui_planner_t* planner, const tpui_plan_t* plan,
                                            tpui_variant_t* variant, const uint8_t* external_dead);
void tpui_plan_adopt(tpui_plan_t* plan, tpui_variant_t* variant);

/* Takes the programs of a window as text, in the order of their launches. */
typedef struct tpui_program_sink_t {
  tpu_status_t (*take)(void* user, const tpu_program_t* program, const tpu_lowered_t* lowered);
  void* user;
} tpui_program_sink_t;
/* Partition and lower as for a plan that is made anew, for planner->partition.platform; nothing is
 * compiled and nothing kept. The first error of the lowering or of the sink ends it. */
TPU_MUST_USE tpu_status_t tpui_plan_write(const tpui_planner_t* planner, const tpu_window_t* window,
                                          const uint8_t* live, const uint8_t* external_dead,
                                          const tpui_program_sink_t* sink);

/* Elements that the window reads and makes. A double: their sum may exceed int64. */
double tpui_window_elements(const tpu_window_t* window);
/* How often windows like this one are interpreted, and the end of a build; see tier.c. */
uint32_t tpui_tier_interpretations(const tpu_window_t* window);
bool tpui_build_is_done(const tpui_build_t* build);
void tpui_build_free(tpui_build_t* build);

/* The variant that interprets this window: one step per op, host steps where there is a host form.
 * Remembers its numbers and what it needs for the variants that come later. `*out_variant` is NULL
 * when a new one must be made and `may_make` is false, since the old one goes then. */
TPU_MUST_USE tpu_status_t tpui_plan_interpret(const tpui_planner_t* planner, tpui_plan_t* plan,
                                              const tpu_slot_t* slots, const uint8_t* live,
                                              const uint8_t* external_dead, bool may_make,
                                              tpui_variant_t** out_variant);

#endif  // TPU_ENGINE_PLAN_H_
