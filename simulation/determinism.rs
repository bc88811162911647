//! Owns: determinism: two processes with the same seed run the same. Once armed, this file provides clock and
//! randomness for the whole process, libraries included, by overriding the functions of the C library.
//! Never: a second seed in one process, because libraries keep state from the first one.

use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The wall clock at the start of a run: 2026-01-01.
pub const EPOCH: Duration = Duration::from_secs(1_767_225_600);
/// The monotonic clock at the start of a run. Far from zero, so that subtracting an hour works.
const BOOTED: Duration = Duration::from_secs(1_000_000);

static ARMED: AtomicBool = AtomicBool::new(false);
static RANDOM: AtomicU64 = AtomicU64::new(0);
static NOW_NS: AtomicU64 = AtomicU64::new(0);

/// From now on this process uses the clock and the randomness of this seed.
pub fn arm(seed: u64) {
    reseed(seed);
    ARMED.store(true, Ordering::SeqCst);
    // The hash maps of this thread take their keys once; this call makes it happen here.
    let _ = RandomState::new();
}

/// Restarts the randomness. What was drawn before, for example by logging, makes no difference.
pub fn reseed(seed: u64) {
    RANDOM.store(seed ^ 0x5e55_10e5, Ordering::SeqCst);
}

/// Moves the clock. It stands still between calls, so code within one step of the simulation takes no time.
pub fn advance_to(elapsed: Duration) {
    NOW_NS.store(elapsed.as_nanos() as u64, Ordering::SeqCst);
}

pub fn now() -> Duration {
    Duration::from_nanos(NOW_NS.load(Ordering::SeqCst))
}

/// The mixing function of SplitMix64.
pub fn mix(state: u64) -> u64 {
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A pseudo-random generator for the choices of a run.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// Each purpose of a seed has an independent sequence.
    pub fn new(seed: u64, purpose: u64) -> Chance {
        Chance(mix(seed ^ mix(purpose.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most.saturating_sub(least) + 1)
    }

    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count.max(1))
    }

    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> Option<&'a T> {
        if among.is_empty() { None } else { among.get(self.below(among.len())) }
    }
}

/// The overrides, for Linux. On other systems the simulation runs, but not deterministically.
#[cfg(target_os = "linux")]
mod overrides {
    use super::*;

    fn random() -> u64 {
        let state = RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    /// # Safety
    /// As for the C function: `buffer` has room for `length` bytes.
    #[unsafe(no_mangle)]
    #[inline(never)]
    unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, flags: u32) -> isize {
        if !ARMED.load(Ordering::SeqCst) || buffer.is_null() {
            // SAFETY: the arguments are passed on unchanged.
            return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize };
        }
        // SAFETY: the caller guarantees that much room.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
        for piece in bytes.chunks_mut(8) {
            let random = random().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
        length as isize
    }

    /// # Safety
    /// As for the C function: `buffer` has room for `length` bytes.
    #[unsafe(no_mangle)]
    #[inline(never)]
    unsafe extern "C" fn getentropy(buffer: *mut u8, length: usize) -> libc::c_int {
        // SAFETY: the same guarantee.
        if unsafe { getrandom(buffer, length, 0) } < 0 { -1 } else { 0 }
    }

    /// # Safety
    /// As for the C function: `time` may be written to.
    #[unsafe(no_mangle)]
    #[inline(never)]
    unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
        if !ARMED.load(Ordering::SeqCst) || time.is_null() {
            // SAFETY: the arguments are passed on unchanged.
            return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as libc::c_int };
        }
        let begun = if clock == libc::CLOCK_REALTIME || clock == libc::CLOCK_REALTIME_COARSE { EPOCH } else { BOOTED };
        let now = begun + now();
        let spelled = libc::timespec { tv_sec: now.as_secs() as libc::time_t, tv_nsec: now.subsec_nanos().into() };
        // SAFETY: the caller guarantees that it may be written to.
        unsafe { time.write(spelled) };
        0
    }
}
