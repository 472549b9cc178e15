#include "common/float_mode.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <stdint.h>
#endif

void pot_fp_strict(void) {
#if defined(__x86_64__)
    enum { FLUSH_TO_ZERO = 0x8000, ROUNDING = 0x6000, DENORMALS_ARE_ZERO = 0x40 };
    _mm_setcsr(_mm_getcsr() & ~(unsigned)(FLUSH_TO_ZERO | ROUNDING | DENORMALS_ARE_ZERO));
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    /* FZ, RMode, FZ16, and of newer cores AH and FIZ */
    control &= ~((uint64_t)1 << 24 | (uint64_t)3 << 22 | (uint64_t)1 << 19 | (uint64_t)3);
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
#else
#error "potluck needs to know how this CPU turns flush-to-zero off"
#endif
}
