//! An allocator that records how much each thread had allocated at once.
#![allow(unsafe_code, reason = "an allocator is told so")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Weighing;

#[global_allocator]
static ALLOCATOR: Weighing = Weighing;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system's allocator. Counting allocates nothing,
// because the counters start as constants and have no destructor.
unsafe impl GlobalAlloc for Weighing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get().saturating_add(layout.size());
        HELD.set(held);
        MOST.set(MOST.get().max(held));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The most that this thread held at once while `work` ran, beyond what it held before.
pub(crate) fn most_held(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    work();
    MOST.get().saturating_sub(before)
}

#[test]
fn what_is_allocated_is_seen() {
    assert!(most_held(|| drop(std::hint::black_box(vec![1_u8; 1 << 20]))) >= 1 << 20);
    assert!(most_held(|| ()) < 1 << 10);
}
