//! The product under deterministic faults of network, disk and clock: `cargo sim -- --seeds 1..100`.

#[cfg(not(tokio_unstable))]
compile_error!(
    "the simulation seeds tokio's scheduler: build it with --cfg tokio_unstable, as .cargo/config.toml does"
);

#[allow(dead_code, reason = "the oracles read it")]
mod history;

fn main() {}
