// abi_trace.h - what a kernel built with -DTRACED writes down (trace.inc), and the names of events:
// numbers only, read by the PTX (cpp) and by bench/trace/trace.cpp.

// A list of 8-byte entries for the lead lane of each warpgroup of TRACE_CTAS neighbouring CTAs.
#define TRACE_CTAS 8
#define TRACE_ROLES 4           // warpgroups of a CTA, at most
#define TRACE_LIST_BYTES 8192   // a power of 2
// In front of them, as long as one: u32 the first CTA that is traced.  Number of a CTA: x fastest.
#define TRACE_BYTES 270336
#if TRACE_BYTES != TRACE_LIST_BYTES * (1 + TRACE_CTAS * TRACE_ROLES)
#error TRACE_BYTES is a product, written out as PTX wants a number
#endif
// An entry is u32 what, u32 clock.  The first of a list has 1 + the multiprocessor's number; then
// what = event that ends there + 256 * event that begins there, 0: none.

#define EVENT_NONE 0
#define EVENT_WAIT 1            // for operands, for a turn
#define EVENT_LOAD_Q 2          // forward: from a free slot until the copies are issued
#define EVENT_LOAD_K 3
#define EVENT_LOAD_V 4
#define EVENT_QK 5              // products: from issue until known to be complete
#define EVENT_SOFTMAX 6
#define EVENT_PV 7
#define EVENT_STORE_O 8
#define EVENT_LOAD_Q_DO 9       // backward: the next step's slot, as above
#define EVENT_S 10
#define EVENT_DP 11
#define EVENT_P 12              // from scores to P
#define EVENT_DV 13
#define EVENT_DS 14
#define EVENT_DK 15
#define EVENT_DQ 16
#define EVENT_ADD_DQ 17         // reductions, issued
#define EVENT_STORE_DKV 18
#define EVENT_COUNT 19
