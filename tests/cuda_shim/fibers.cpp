/* Threads of a block as fibers (ucontext), switched at barriers only.
 *
 * A fiber that comes to a barrier hands over to the next one of the queue.  When the queue is empty, whoever may go on is
 * put into it: each warp whose lanes all wait at the same exchange, or the whole block when all wait at the
 * same __syncthreads.  If neither is so, a GPU would hang or do what nobody wrote: the program ends with a
 * sentence. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

#include "cuda_runtime.h"
#include "shim.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SHIM_ASAN
#endif
#if __has_feature(thread_sanitizer)
#define SHIM_TSAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SHIM_ASAN
#elif defined(__SANITIZE_THREAD__)
#define SHIM_TSAN
#endif
#ifdef SHIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SHIM_TSAN
#include <sanitizer/tsan_interface.h>
#endif

shim_index threadIdx, blockIdx;

namespace {

enum { LANES = 32, STACK_BYTES = 256 << 10, GUARD_BYTES = 64 << 10, GARBAGE = 0xa5 };
enum progress { RUNNING, AT_WARP, AT_BLOCK, DONE };

struct fiber {
    ucontext_t context;
    void *stack;
    size_t stack_bytes;
    void *fake_stack; /* of AddressSanitizer */
    void *tsan;
    progress state;
    unsigned index;   /* threadIdx.x */
    int line;         /* of the barrier */
    uint32_t slot[2]; /* what it gives in an exchange, and in the next one */
    unsigned exchanges;
};

struct shared_piece {
    int line;
    size_t bytes;
    void *memory;
};

/* Threads of a block are made once and live for ever: a fiber begins the next block where it ended the last.  The list is
 * never freed either, so that leak checkers see that they are in use. */
std::vector<fiber *> &fibers = *new std::vector<fiber *>;
fiber outside, *current = &outside, *previous;
std::vector<fiber *> queue;
size_t queue_at;
unsigned n_threads;
std::vector<shared_piece> pieces;
void (*kernel_body)(void *);
void *kernel_argument;

enum { FORWARD, REVERSE, SHUFFLE } order;
bool order_known;
uint64_t seed;

uint32_t draw(uint32_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

/* ---- switching ---- */

void arrived() {
#ifdef SHIM_ASAN
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(current->fake_stack, &stack, &bytes);
    previous->stack = const_cast<void *>(stack);
    previous->stack_bytes = bytes;
#endif
}

void switch_to(fiber *next) {
    if (next == current) return;
    fiber *self = current;
    previous = self;
    current = next;
#ifdef SHIM_ASAN
    __sanitizer_start_switch_fiber(&self->fake_stack, next->stack, next->stack_bytes);
#endif
#ifdef SHIM_TSAN
    __tsan_switch_to_fiber(next->tsan, 0);
#endif
    swapcontext(&self->context, &next->context);
    arrived();
}

/* ---- who goes on ---- */

/* Whether fibers [begin, end) all wait in this way; they must then wait at one line. */
bool all_wait(unsigned begin, unsigned end, progress how, const char *what) {
    for (unsigned i = begin; i < end; i++)
        if (fibers[i]->state != how) return false;
    for (unsigned i = begin + 1; i < end; i++)
        if (fibers[i]->line != fibers[begin]->line) shim_fail(what, fibers[i]->line);
    return true;
}

void release(unsigned begin, unsigned end) {
    for (unsigned i = begin; i < end; i++) {
        fibers[i]->state = RUNNING;
        queue.push_back(fibers[i]);
    }
}

void put_in_order() {
    const size_t n = queue.size();
    for (size_t i = 0; i < n; i++) {
        size_t other = order == SHUFFLE ? i + draw((uint32_t)(n - i)) : order == REVERSE && i < n / 2 ? n - 1 - i : i;
        fiber *f = queue[i];
        queue[i] = queue[other];
        queue[other] = f;
    }
}

/* The next fiber that may run; `outside` when all have returned. */
fiber *next_fiber() {
    if (queue_at < queue.size()) return queue[queue_at++];
    queue.clear();
    queue_at = 0;
    unsigned done = 0;
    std::vector<unsigned> warps;
    for (unsigned i = 0; i < n_threads; i++) done += fibers[i]->state == DONE;
    if (done == n_threads) return &outside;
    for (unsigned w = 0; w < n_threads; w += LANES)
        if (all_wait(w, w + LANES, AT_WARP, "lanes of a warp wait at different exchanges, one of them"))
            warps.push_back(w);
    for (size_t i = 0; i < warps.size(); i++) /* a shuffle holds some warps back, but not the last candidate */
        if (order != SHUFFLE || draw(2) || (queue.empty() && i + 1 == warps.size()))
            release(warps[i], warps[i] + LANES);
    if (queue.empty() && all_wait(0, n_threads, AT_BLOCK, "threads wait at different __syncthreads, one of them"))
        release(0, n_threads);
    if (queue.empty())
        for (unsigned i = 0; i < n_threads; i++)
            if (fibers[i]->state != DONE)
                shim_fail(
                    "a barrier is not reached by all threads that should: some returned or wait elsewhere; one waits",
                    fibers[i]->line);
    put_in_order();
    return queue[queue_at++];
}

/* The index belongs to whoever runs, so it is set again after every wait. */
void wait(progress how, int line) {
    current->state = how;
    current->line = line;
    switch_to(next_fiber());
    threadIdx.x = current->index;
}

void fiber_main() {
    arrived();
    for (;;) {
        threadIdx.x = current->index;
        kernel_body(kernel_argument);
        current->state = DONE;
        switch_to(next_fiber());
    }
}

void make_fiber() {
    fiber *f = new fiber();
    f->index = (unsigned)fibers.size();
    const size_t bytes = STACK_BYTES + GUARD_BYTES;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0) shim_fail("no memory for a stack", 0);
    f->stack = static_cast<char *>(memory) + GUARD_BYTES;
    f->stack_bytes = STACK_BYTES;
#ifdef SHIM_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->stack_bytes;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
    fibers.push_back(f);
}

} // namespace

void pot_shim_order(const char *name) {
    order_known = true;
    order = strcmp(name, "forward") == 0 ? FORWARD : strcmp(name, "reverse") == 0 ? REVERSE : SHUFFLE;
    if (order == SHUFFLE) seed = strtoull(name, NULL, 0);
}

void shim_fail(const char *what, int line) {
    fprintf(stderr, "cuda shim: block %u: %s at line %d\n", blockIdx.x, what, line);
    abort();
}

void shim_barrier_block(int line) { wait(AT_BLOCK, line); }
void shim_barrier_warp(int line) { wait(AT_WARP, line); }

/* One barrier an exchange is enough: a lane that is already at the next one uses the other slot, and cannot pass it before all
 * lanes are done with this one. */
uint32_t shim_exchange(uint32_t value, int distance, int line) {
    const unsigned slot = current->exchanges++ & 1, me = threadIdx.x;
    current->slot[slot] = value;
    wait(AT_WARP, line);
    return fibers[me ^ (unsigned)distance]->slot[slot];
}

void *shim_shared(size_t bytes, int line) {
    for (shared_piece &p : pieces)
        if (p.line == line) return p.memory;
    shared_piece p = {line, bytes, NULL};
    if (posix_memalign(&p.memory, 128, bytes) != 0) shim_fail("no memory for shared memory", line);
    memset(p.memory, GARBAGE, bytes);
    pieces.push_back(p);
    return p.memory;
}

void shim_run(unsigned blocks, unsigned threads, void (*body)(void *), void *argument) {
    if (!order_known) pot_shim_order(getenv("POT_CUDA_SHIM_ORDER") ? getenv("POT_CUDA_SHIM_ORDER") : "forward");
    if (threads % LANES != 0) shim_fail("a block is not whole warps", 0);
#ifdef SHIM_TSAN
    outside.tsan = __tsan_get_current_fiber();
#endif
    while (fibers.size() < threads) make_fiber();
    n_threads = threads;
    kernel_body = body;
    kernel_argument = argument;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        size_t shared_bytes = 0;
        release(0, threads);
        put_in_order();
        switch_to(queue[queue_at++]);
        for (shared_piece &p : pieces) {
            shared_bytes += p.bytes;
            free(p.memory);
        }
        pieces.clear();
        if (shared_bytes > 48 << 10) shim_fail("a block has more than 48 KB of shared memory", 0);
    }
}
