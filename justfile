# Every recipe is a plain command that also runs without just (https://just.systems). `just --list` shows them.

# Fast checks before a commit: format, lints, unit tests. Under 3 minutes with warm caches.
check:
    cargo fmt --check -- src/requests/*.rs src/requests/store/*.rs src/requests/turn/*.rs src/requests/model/*.rs
    cargo clippy --all-targets -- -D warnings
    cargo test --lib

# Every test except the simulation's long runs and the SDK clients.
test:
    cargo test

# Whole clusters under faults that a seed decides: just sim 1..50
sim seeds="1..20":
    cargo sim -- --seeds {{seeds}}

# Measure this machine: just bench append --seconds 10
bench +args="append":
    cargo run --release -- bench {{args}}

# Format the code and apply the fixes that clippy knows.
fix:
    cargo fmt -- src/requests/*.rs src/requests/store/*.rs src/requests/turn/*.rs src/requests/model/*.rs
    cargo clippy --all-targets --fix --allow-dirty --allow-staged

# Everything that CI runs: about 30 minutes on 2 cores from a cold clone.
ci:
    .ci/run
