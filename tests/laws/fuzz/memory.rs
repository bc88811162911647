//! Owns: the peak memory of a piece of work, counted per thread by the global allocator of this test binary.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread holds, and the maximum since the last `peak`. Memory of other threads may make it
    /// negative.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: isize) {
    // A thread that is ending has no counter.
    let _ = HELD.try_with(|held| {
        let (now, peak) = held.get();
        held.set((now + bytes, peak.max(now + bytes)));
    });
}

// SAFETY: every call goes to the system allocator unchanged; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as isize - layout.size() as isize);
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// Runs the work. Returns its result and by how many bytes the memory of this thread grew at its peak.
pub fn peak<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let (before, _) = HELD.get();
    HELD.set((before, before));
    let result = work();
    let (_, peak) = HELD.get();
    (result, (peak - before).max(0) as usize)
}

#[test]
fn the_peak_is_what_was_held_at_once() {
    let ((), peak) = peak(|| {
        drop(vec![0u8; 100_000]);
        drop(vec![0u8; 200_000]);
    });
    assert!((200_000..300_000).contains(&peak), "{peak}");
}
