/* Where an ordered window is cut into programs: repeats first, then by size. */
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/layout.h"
#include "partition/stages.h"

#define GRAM 4             // records that must agree before a repeat is considered
#define MAX_CANDIDATES 12  // periods tried per position

typedef struct cutter_t {
  const tpu_window_t* window;
  const uint32_t* order;
  uint32_t count;
  const tpu_partition_options_t* options;
  uint64_t* signatures;  // [count] what a record does, without which values it does it to
  uint32_t* next;        // [count] next position with the same GRAM signatures; count: none
  int64_t* crossing;     // [count + 1] scratch: bytes that cross in front of a position
  uint32_t* last_use;    // [value_count] scratch: last position in the range that reads the value
  uint32_t* cuts;
  uint32_t cut_count;
} cutter_t;

uint64_t tpui_partition_signature(const tpu_window_t* window, uint32_t record) {
  tpu_record_t r;
  tpu_window_record(window, record, &r);
  const uint32_t* words = window->words + window->record_words[record];
  uint64_t hash = tpu_hash_bytes(words, TPU_RECORD_HEADER_WORDS * sizeof(uint32_t), 0);
  for (int k = 0; k < r.operand_count; ++k) {
    uint32_t ref = tpu_record_ref(&r, k);
    bool scalar = tpu_ref_kind(ref) == TPU_REF_SCALAR;
    uint32_t what = scalar ? ref : (ref & TPU_REF_VIEW_BIT) | (tpu_ref_kind(ref) == TPU_REF_NONE);
    hash = tpu_hash_mix(hash, (uint64_t)what << 32 | tpu_record_view(&r, k));
    hash = tpu_hash_mix(hash, tpu_window_ref_meta(window, ref));
  }
  for (int k = 0; k < r.result_count; ++k) hash = tpu_hash_mix(hash, r.results[k]);
  return hash;
}

/* next[i] for all i, by walking back through a table of the newest position of each gram. */
static tpu_status_t link_grams(cutter_t* c) {
  size_t capacity = 64;
  while (capacity < (size_t)c->count * 2) capacity *= 2;
  void* memory = NULL;
  uint64_t* keys = NULL;
  uint32_t* places = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, keys, capacity);
  TPU_LAYOUT_ADD(&layout, places, capacity);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  for (uint32_t i = c->count; i-- > 0;) {
    c->next[i] = c->count;
    if (i + GRAM > c->count) continue;
    uint64_t gram = 1;
    for (uint32_t k = 0; k < GRAM; ++k) gram = tpu_hash_mix(gram, c->signatures[i + k]);
    size_t slot = gram & (capacity - 1);
    while (keys[slot] != 0 && keys[slot] != gram) slot = (slot + 1) & (capacity - 1);
    if (keys[slot] == gram) c->next[i] = places[slot];
    keys[slot] = gram;
    places[slot] = i;
  }
  tpu_free(memory);
  return NULL;
}

/* How far the sequence goes on repeating with period p from position i. */
static uint32_t run_length(const cutter_t* c, uint32_t i, uint32_t p) {
  uint32_t length = 0;
  while (i + p + length < c->count && c->signatures[i + length] == c->signatures[i + p + length]) {
    ++length;
  }
  return length;
}

/* Elements that the matrix products and convolutions of a period must touch before the period is
 * worth a program of its own, however few its records are. */
#define HEAVY_ELEMENTS (1 << 18)

typedef struct repeat_t {
  uint32_t period;
  uint32_t length;  // records covered, from the position asked
  bool heavy;       // running one period costs far more than launching it
} repeat_t;

static int64_t elements_of(const cutter_t* c, const tpu_record_t* r) {
  int64_t elements = 0;
  for (int k = 0; k < r->result_count; ++k) elements += tpu_meta_get(r->results[k])->numel;
  for (int k = 0; k < r->operand_count; ++k) {
    tpu_meta_id_t meta = tpu_window_ref_meta(c->window, tpu_record_ref(r, k));
    if (meta != 0) elements += tpu_meta_get(meta)->numel;
  }
  return elements;
}

static bool is_heavy(const cutter_t* c, uint32_t begin, uint32_t period) {
  int64_t elements = 0;
  for (uint32_t i = begin; i < begin + period && elements < HEAVY_ELEMENTS; ++i) {
    tpu_record_t r;
    tpu_window_record(c->window, c->order[i], &r);
    tpu_op_family_t family = tpu_op_info(r.op)->family;
    if (family == TPU_FAMILY_MATMUL || family == TPU_FAMILY_CONV) elements += elements_of(c, &r);
  }
  return elements >= HEAVY_ELEMENTS;
}

/* The repeat that covers most from position i on; length 0: none worth it. */
static repeat_t find_repeat(const cutter_t* c, uint32_t i) {
  repeat_t best = {0, 0, false};
  uint32_t j = c->next[i];
  for (int tries = 0; tries < MAX_CANDIDATES && j < c->count; ++tries, j = c->next[j]) {
    uint32_t p = j - i, length = run_length(c, i, p), covered = p + length;
    if (length < p || covered <= best.length) continue;
    bool heavy = is_heavy(c, i, p);
    if (heavy || covered >= 2 * c->options->min_records) best = (repeat_t){p, covered, heavy};
  }
  return best;
}

/* Fills crossing[0 .. end-begin] with the bytes of values made in [begin, position) and read in
 * [position, end). */
static void measure_crossing(cutter_t* c, uint32_t begin, uint32_t end) {
  memset(c->crossing, 0, (end - begin + 1) * sizeof(int64_t));
  for (uint32_t i = begin; i < end; ++i) {
    tpu_record_t r;
    tpu_window_record(c->window, c->order[i], &r);
    for (int k = 0; k < r.operand_count; ++k) {
      uint32_t ref = tpu_record_ref(&r, k);
      if (tpu_ref_kind(ref) == TPU_REF_WINDOW) c->last_use[tpu_ref_index(ref)] = i;
    }
  }
  for (uint32_t i = begin; i < end; ++i) {
    tpu_record_t r;
    tpu_window_record(c->window, c->order[i], &r);
    for (int k = 0; k < r.result_count; ++k) {
      uint32_t value = r.first_value + (uint32_t)k, last = c->last_use[value];
      if (last == UINT32_MAX || last < begin || last >= end || last <= i) continue;
      int64_t bytes = tpu_meta_bytes(tpu_meta_get(r.results[k])) + 64;  // 64: a buffer is not free
      c->crossing[i + 1 - begin] += bytes;
      c->crossing[last + 1 - begin] -= bytes;
    }
  }
  for (uint32_t i = 1; i <= end - begin; ++i) c->crossing[i] += c->crossing[i - 1];
  for (uint32_t i = begin; i < end; ++i) {
    tpu_record_t r;
    tpu_window_record(c->window, c->order[i], &r);
    for (int k = 0; k < r.operand_count; ++k) {
      uint32_t ref = tpu_record_ref(&r, k);
      if (tpu_ref_kind(ref) == TPU_REF_WINDOW) c->last_use[tpu_ref_index(ref)] = UINT32_MAX;
    }
  }
}

static void add_cut(cutter_t* c, uint32_t position) {
  if (position < c->count && (c->cut_count == 0 || c->cuts[c->cut_count - 1] < position)) {
    c->cuts[c->cut_count++] = position;
  }
}

/* Cheapest place in (low, high], relative to the measured range; the earliest among equals. */
static uint32_t cheapest_cut(const cutter_t* c, uint32_t low, uint32_t high) {
  uint32_t best = low + 1;
  for (uint32_t i = low + 1; i <= high; ++i) {
    if (c->crossing[i] < c->crossing[best]) best = i;
  }
  return best;
}

/* Cuts [begin, end) into pieces of at most max_records; `begin` itself becomes a cut. */
static void cut_by_size(cutter_t* c, uint32_t begin, uint32_t end) {
  if (begin >= end) return;
  add_cut(c, begin);
  uint32_t max = c->options->max_records;
  if (end - begin <= max) return;
  measure_crossing(c, begin, end);
  for (uint32_t at = 0; end - begin - at > max;) {
    at = cheapest_cut(c, at + max / 2, at + max);
    add_cut(c, begin + at);
  }
}

typedef struct grid_t {
  uint32_t unit, phase;  // cuts at begin + phase + k * unit
} grid_t;

/* Bytes that cross an average boundary of this grid, strictly inside the measured repeat. */
static int64_t grid_cost(const cutter_t* c, uint32_t length, uint32_t unit, uint32_t phase) {
  int64_t sum = 0, boundaries = 0;
  for (uint32_t at = phase == 0 ? unit : phase; at < length; at += unit, ++boundaries) {
    sum += c->crossing[at];
  }
  return boundaries == 0 ? INT64_MAX : sum / boundaries;
}

/* One period per program; periods that are too small to be worth a launch go several at a time, as
 * many as cross least (whole parameters of an optimizer), the most among equals. */
static grid_t choose_grid(const cutter_t* c, repeat_t repeat) {
  uint32_t p = repeat.period, min = c->options->min_records, max = c->options->max_records;
  bool alone = p >= min || repeat.heavy;
  uint32_t first = alone ? p : (min + p - 1) / p * p, last = alone ? p : max / p * p;
  if (last > repeat.length / 2) last = repeat.length / 2 / p * p;
  grid_t best = {first, 0};
  int64_t best_cost = INT64_MAX;
  for (uint32_t unit = first; unit <= last || unit == first; unit += p) {
    int64_t unit_cost = INT64_MAX;
    uint32_t unit_phase = 0;
    for (uint32_t phase = 0; phase < unit; ++phase) {
      int64_t cost = grid_cost(c, repeat.length, unit, phase);
      if (cost < unit_cost) unit_cost = cost, unit_phase = phase;
    }
    if (unit_cost <= best_cost) best_cost = unit_cost, best = (grid_t){unit, unit_phase};
  }
  return best;
}

/* Cuts the repeats that start at `begin`, after what is left over in front of the first boundary.
 * `pending` is where uncut records begin. Returns where uncut records begin afterwards. */
static uint32_t cut_repeat(cutter_t* c, uint32_t pending, uint32_t begin, repeat_t repeat) {
  uint32_t end = begin + repeat.length;
  measure_crossing(c, begin, end);
  grid_t grid = choose_grid(c, repeat);
  uint32_t first = begin + grid.phase, at = first;
  cut_by_size(c, pending, first);
  uint32_t inner_from = c->cut_count, inner_count = 0;
  for (; at + grid.unit <= end; at += grid.unit) {
    if (at == first) {
      cut_by_size(c, at, at + grid.unit);
      inner_count = c->cut_count - inner_from;
      continue;
    }
    // The same places in every unit, so that all units become the same programs.
    for (uint32_t k = 0; k < inner_count; ++k) add_cut(c, c->cuts[inner_from + k] - first + at);
  }
  return at;
}

static void cut_all(cutter_t* c) {
  uint32_t pending = 0;
  for (uint32_t i = 0; i < c->count;) {
    repeat_t repeat = find_repeat(c, i);
    if (repeat.length == 0) {
      ++i;
      continue;
    }
    pending = cut_repeat(c, pending, i, repeat);
    i = pending > i ? pending : i + 1;
  }
  cut_by_size(c, pending, c->count);
}

tpu_status_t tpui_partition_cuts(const tpu_window_t* window, const uint32_t* order, uint32_t count,
                                 const tpu_partition_options_t* options, uint32_t* out_cuts,
                                 uint32_t* out_cut_count) {
  *out_cut_count = 0;
  if (count == 0) return NULL;
  size_t n = count, v = window->value_count;
  void* memory = NULL;
  cutter_t c = {
      .window = window, .order = order, .count = count, .options = options, .cuts = out_cuts};
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, c.signatures, n);
  TPU_LAYOUT_ADD(&layout, c.crossing, n + 1);
  TPU_LAYOUT_ADD(&layout, c.next, n);
  TPU_LAYOUT_ADD(&layout, c.last_use, v);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  memset(c.last_use, 0xff, v * sizeof(*c.last_use));
  for (uint32_t i = 0; i < count; ++i) c.signatures[i] = tpui_partition_signature(window, order[i]);
  tpu_status_t status = link_grams(&c);
  if (status == NULL) {
    cut_all(&c);
    *out_cut_count = c.cut_count;
  }
  tpu_free(memory);
  return status;
}
