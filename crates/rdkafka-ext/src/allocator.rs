//! Which allocator librdkafka's memory comes from.
//!
//! A consumer's memory is mostly librdkafka's: fetched message sets, allocated and freed by different threads all the
//! time. The program therefore links mimalloc over C's `malloc`, for librdkafka too, and this is how a test can see that it
//! really did: whether a replaced symbol wins is decided by the linker, and nothing complains when it does not.

use std::ptr;

use rdkafka_sys as sys;

// Links mimalloc into whatever uses this crate. Its own bindings leave the question below out.
use libmimalloc_sys as _;

unsafe extern "C" {
    fn mi_is_in_heap_region(pointer: *const std::ffi::c_void) -> bool;
}

/// Whether memory that librdkafka allocates comes from mimalloc.
#[must_use]
pub fn librdkafka_allocates_with_mimalloc() -> bool {
    const BYTES: usize = 1_000;
    // SAFETY: no client is needed (null stands for the default allocator); the block is freed once, by its own allocator,
    // and only asked about in between. mimalloc's question takes any address.
    unsafe {
        let block = sys::rd_kafka_mem_malloc(ptr::null_mut(), BYTES);
        let ours = !block.is_null() && mi_is_in_heap_region(block);
        sys::rd_kafka_mem_free(ptr::null_mut(), block);
        ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn librdkafka_memory_comes_from_mimalloc() {
        assert!(librdkafka_allocates_with_mimalloc());
        // The question can be answered by no: memory of the stack is not mimalloc's.
        let on_stack = 0_u8;
        // SAFETY: any address may be asked about.
        assert!(!unsafe { mi_is_in_heap_region((&raw const on_stack).cast()) });
    }
}
