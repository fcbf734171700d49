#include "trace/address.h"

#include <sys/mman.h>

#include "base/alloc.h"

#define SUPERBLOCK_SHIFT 24
#define MIN_CLASS 8           // 256 bytes
#define CLASS_COUNT 48        // up to 2^47 bytes
#define RESERVE_SHIFT_MAX 45  // 32 TiB
#define RESERVE_SHIFT_MIN 36

typedef struct superblock_t {
  void** owners;   // small classes: one per range; owned
  void* owner;     // large ranges: set in the first superblock
  uint32_t head;   // large ranges: index of their first superblock
  uint8_t class_;  // 0: unused
} superblock_t;

typedef struct free_list_t {
  void** addresses;
  size_t count, capacity;
  size_t ranges;  // free and taken ones; capacity >= ranges
} free_list_t;

struct tpu_address_space_t {
  char* base;
  int shift;             // reservation is 2^shift bytes
  superblock_t* blocks;  // [block_count] used so far
  size_t block_count, block_capacity;
  free_list_t free[CLASS_COUNT];
};

tpu_status_t tpu_address_space_create(tpu_address_space_t** out_space) {
  *out_space = NULL;
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(tpu_address_space_t), &memory));
  tpu_address_space_t* space = memory;
  // Limits on address space (ulimit -v, containers) may forbid the large reservation.
  for (space->shift = RESERVE_SHIFT_MAX; space->shift >= RESERVE_SHIFT_MIN; --space->shift) {
    void* base = mmap(NULL, (size_t)1 << space->shift, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != MAP_FAILED) {
      space->base = base;
      *out_space = space;
      return NULL;
    }
  }
  tpu_free(space);
  return tpu_status_make(TPU_RESOURCE_EXHAUSTED,
                         "cannot reserve %d GiB of address space; raise `ulimit -v`",
                         1 << (RESERVE_SHIFT_MIN - 30));
}

void tpu_address_space_destroy(tpu_address_space_t* space) {
  if (space == NULL) return;
  for (size_t i = 0; i < space->block_count; ++i) tpu_free(space->blocks[i].owners);
  for (int i = 0; i < CLASS_COUNT; ++i) tpu_free(space->free[i].addresses);
  tpu_free(space->blocks);
  (void)munmap(space->base, (size_t)1 << space->shift);
  tpu_free(space);
}

static int class_of(int64_t size) {
  int class_ = MIN_CLASS;
  while (class_ < CLASS_COUNT && ((int64_t)1 << class_) < size) ++class_;
  return class_;
}

/* Room for all ranges of a class, so that giving one back needs no memory. */
static tpu_status_t reserve_free(free_list_t* list, size_t fresh) {
  TPU_RETURN_IF_ERROR(
      tpu_grow((void**)&list->addresses, &list->capacity, list->ranges + fresh, sizeof(void*)));
  list->ranges += fresh;
  return NULL;
}

static superblock_t* block_of(const tpu_address_space_t* space, const void* address) {
  size_t offset = (size_t)((const char*)address - space->base);
  size_t index = offset >> SUPERBLOCK_SHIFT;
  if ((const char*)address < space->base || index >= space->block_count) return NULL;
  superblock_t* block = &space->blocks[index];
  return block->class_ == 0 ? NULL : &space->blocks[block->head];
}

/* Opens fresh superblocks for a class and puts the ranges on its free list. */
static tpu_status_t open_blocks(tpu_address_space_t* space, int class_) {
  size_t count = class_ > SUPERBLOCK_SHIFT ? (size_t)1 << (class_ - SUPERBLOCK_SHIFT) : 1;
  size_t first = space->block_count;
  if ((first + count) << SUPERBLOCK_SHIFT > (size_t)1 << space->shift) {
    return tpu_status_make(
        TPU_RESOURCE_EXHAUSTED,
        "storage addresses: no range of %lld bytes is left in the reservation of "
        "%lld bytes; free tensors first",
        1ll << class_, 1ll << space->shift);
  }
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&space->blocks, &space->block_capacity, first + count,
                               sizeof(superblock_t)));
  size_t ranges = class_ >= SUPERBLOCK_SHIFT ? 1 : (size_t)1 << (SUPERBLOCK_SHIFT - class_);
  void* owners = NULL;
  if (ranges > 1) TPU_RETURN_IF_ERROR(tpu_calloc(ranges, sizeof(void*), &owners));
  free_list_t* list = &space->free[class_];
  tpu_status_t status = reserve_free(list, ranges);
  if (status != NULL) {
    tpu_free(owners);
    return status;
  }
  for (size_t i = 0; i < count; ++i) {
    space->blocks[first + i] = (superblock_t){.head = (uint32_t)first, .class_ = (uint8_t)class_};
  }
  space->blocks[first].owners = owners;
  space->block_count += count;
  char* base = space->base + (first << SUPERBLOCK_SHIFT);
  for (size_t i = ranges; i-- > 0;) list->addresses[list->count++] = base + (i << class_);
  return NULL;
}

static void** owner_slot(const tpu_address_space_t* space, const void* address) {
  superblock_t* block = block_of(space, address);
  if (block == NULL) return NULL;
  if (block->owners == NULL) return &block->owner;
  size_t offset = (size_t)((const char*)address - space->base) & ((1u << SUPERBLOCK_SHIFT) - 1);
  return &block->owners[offset >> block->class_];
}

tpu_status_t tpu_address_take(tpu_address_space_t* space, int64_t size, void* owner,
                              void** out_address) {
  *out_address = NULL;
  int class_ = class_of(size);
  if (class_ >= CLASS_COUNT || class_ >= space->shift) {
    return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "a storage of %lld bytes is too large",
                           (long long)size);
  }
  free_list_t* list = &space->free[class_];
  if (TPU_UNLIKELY(list->count == 0)) TPU_RETURN_IF_ERROR(open_blocks(space, class_));
  void* address = list->addresses[--list->count];
  *owner_slot(space, address) = owner;
  *out_address = address;
  return NULL;
}

void tpu_address_give(tpu_address_space_t* space, void* address) {
  if (address == NULL) return;
  superblock_t* block = block_of(space, address);
  if (block == NULL) return;
  *owner_slot(space, address) = NULL;
  free_list_t* list = &space->free[block->class_];
  list->addresses[list->count++] = address;
}

void* tpu_address_owner(const tpu_address_space_t* space, const void* address) {
  void** slot = address == NULL ? NULL : owner_slot(space, address);
  return slot == NULL ? NULL : *slot;
}
